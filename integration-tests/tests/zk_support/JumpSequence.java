import java.io.File;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.zookeeper.server.DataTree;
import org.apache.zookeeper.server.persistence.FileTxnSnapLog;

/** Sets the counter from which a node of a server that does not run numbers its children: DATA-FOLDER PATH NUMBER. */
public class JumpSequence {
    public static void main(String[] args) throws Exception {
        File folder = new File(args[0]);
        FileTxnSnapLog log = new FileTxnSnapLog(folder, folder);
        DataTree tree = new DataTree();
        ConcurrentHashMap<Long, Integer> sessions = new ConcurrentHashMap<>();
        log.restore(tree, sessions, (header, transaction, digest) -> { });
        tree.getNode(args[1]).stat.setCversion(Integer.parseInt(args[2]));
        log.save(tree, sessions, true);
        log.close();
    }
}
