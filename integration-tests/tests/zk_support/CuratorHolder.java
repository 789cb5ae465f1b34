import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryOneTime;

/**
 * Takes one of Curator's locks ("mutex", "reader" or "writer") once for each line "lock" on its input, and gives it back at "unlock". Says what it
 * does.
 */
class CuratorHolder {
    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 20000, 10000, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        InterProcessReadWriteLock both = new InterProcessReadWriteLock(client, args[1]);
        InterProcessLock lock;
        switch (args[2]) {
            case "reader": lock = both.readLock(); break;
            case "writer": lock = both.writeLock(); break;
            default: lock = new InterProcessMutex(client, args[1]);
        }
        System.out.println("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String command = commands.readLine(); command != null; command = commands.readLine()) {
            if (command.equals("lock")) {
                System.out.println("asking");
                lock.acquire();
                System.out.println("held");
            } else {
                lock.release();
                System.out.println("released");
            }
        }
        client.close();
    }
}
