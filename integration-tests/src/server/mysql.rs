//! One MySQL or MariaDB server.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::{Server, Site, Store};
use crate::error::Doing;
use crate::{Error, Folder, Result, folder, program, seen};

/// A running MySQL or MariaDB.
pub type MySqlServer = Server<MySql>;

/// Who made the server: the two have grown apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Flavor {
    /// MariaDB, from the machine's packages.
    #[default]
    MariaDb,
    /// MySQL, as `ci/mysql` has unpacked it.
    MySql,
}

impl Flavor {
    /// Both.
    pub const ALL: [Self; 2] = [Self::MariaDb, Self::MySql];

    /// As messages and folders call it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MariaDb => "mariadb",
            Self::MySql => "mysql",
        }
    }

    /// Whether tests of it can be run here. A server that is missing is an error for the test that wants it, unless `DLOCK_TEST_WITHOUT` says that
    /// it is known to be missing; `ci/test` sets that, and says at its end what was not tested.
    #[must_use]
    pub fn is_tested(self) -> bool {
        program::is_tested(self.as_str())
    }

    /// A server of this kind with the default settings.
    ///
    /// # Errors
    /// When its program is missing, or it does not come up.
    pub async fn start(self) -> Result<MySqlServer> {
        self.start_with(&[]).await
    }

    /// The same with further arguments.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(self, args: &[&str]) -> Result<MySqlServer> {
        MySqlServer::start_with(MySql {
            flavor: self,
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            ..MySql::default()
        })
        .await
    }
}

/// The folder of `ci/mysql`, if it is another one than that of its default.
const MYSQL_FOLDER: &str = "DLOCK_TEST_MYSQL_DIR";

/// The settings of a server. It has a database `dlock` and a user `root` with the password `dlock`.
#[derive(Debug, Clone, Default)]
pub struct MySql {
    /// Which of the two it is.
    pub flavor: Flavor,
    /// Further arguments, as in `["--wait-timeout=5"]`. They win over ours.
    pub args: Vec<String>,
    /// Further environment.
    pub env: Vec<(String, String)>,
}

/// What every start makes sure of. By name or by address, root gets in from this machine with the password. A line is a statement.
const FIRST_SQL: &str = "\
CREATE DATABASE IF NOT EXISTS dlock;
CREATE USER IF NOT EXISTS root@'127.0.0.1';
ALTER USER root@'127.0.0.1' IDENTIFIED BY 'dlock';
GRANT ALL PRIVILEGES ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
ALTER USER root@localhost IDENTIFIED BY 'dlock';
";

/// Small files and buffers: a test database is tiny, and each server gets its own copy.
fn small(flavor: Flavor) -> &'static [&'static str] {
    match flavor {
        Flavor::MariaDb => &[
            "--innodb-log-file-size=4M",
            "--innodb-buffer-pool-size=16M",
            "--innodb-data-file-path=ibdata1:6M:autoextend",
        ],
        Flavor::MySql => &[
            "--innodb-redo-log-capacity=8M",
            "--innodb-buffer-pool-size=16M",
            "--innodb-data-file-path=ibdata1:6M:autoextend",
            "--mysqlx=OFF",
            // Debian's default is a folder that its package would make.
            "--secure-file-priv=NULL",
            // As MariaDB is by default.
            "--skip-log-bin",
        ],
    }
}

impl Store for MySql {
    const NAME: &'static str = "mysql";
    const URL_VARIABLE: &'static str = "DLOCK_TEST_MYSQL_URL";

    async fn prepare(&self, site: &Site) -> Result<()> {
        let data = site.file("data");
        let flavor = self.flavor;
        fs::write(site.file("first.sql"), FIRST_SQL).doing("write first.sql")?;
        tokio::task::spawn_blocking(move || {
            copy_all(&template(flavor)?, &data).doing("copy the template database")
        })
        .await
        .expect("the copy does not panic")
    }

    fn command(&self, site: &Site) -> Result<Command> {
        let mut command = program_of(self.flavor)?.command;
        command.envs(self.env.iter().cloned());
        command.args(small(self.flavor));
        for (option, file) in [
            ("datadir", "data"),
            ("socket", "socket"),
            ("pid-file", "pid"),
            ("init-file", "first.sql"),
        ] {
            command.arg(format!("--{option}={}", site.file(file).display()));
        }
        command.args([
            format!("--port={}", site.port()),
            format!("--tmpdir={}", site.folder.path().display()),
        ]);
        command.args([
            "--bind-address=127.0.0.1",
            "--user=root",
            "--skip-name-resolve",
        ]);
        // Cut connections count as errors of the host, which would be locked out after a hundred.
        command.args(["--max-connect-errors=1000000", "--max-connections=1000"]);
        command.args(&self.args);
        Ok(command)
    }

    async fn probe(&self, site: &Site) -> Result<()> {
        // The server speaks first: length (3 bytes), sequence 0, protocol version 10, and its own version, which a zero ends. It does so
        // once it takes clients.
        let mut stream = TcpStream::connect(site.addr()).await.doing("connect")?;
        let mut greeting = [0; 5];
        stream
            .read_exact(&mut greeting)
            .await
            .doing("read the greeting")?;
        let [low, middle, _, 0, 10] = greeting else {
            return Err(Error::answer("greeting", format!("{greeting:?}")));
        };
        let mut rest = vec![0; usize::from(u16::from_le_bytes([low, middle])) - 1];
        stream
            .read_exact(&mut rest)
            .await
            .doing("read the greeting")?;
        let version = rest.split(|byte| *byte == 0).next().unwrap_or_default();
        let version = String::from_utf8_lossy(version);
        // MariaDB puts this in front, for old replicas.
        seen::note(self.flavor.as_str(), version.trim_start_matches("5.5.5-"));
        Ok(())
    }

    fn url(&self, site: &Site) -> String {
        format!("mysql://root:dlock@{}/dlock", site.addr())
    }
}

impl MySqlServer {
    /// Which of the two it is.
    #[must_use]
    pub fn flavor(&self) -> Flavor {
        self.settings().flavor
    }

    /// Runs SQL with the `mariadb` client, which speaks with both, and returns what it prints: a line per row, columns parted by tabs.
    ///
    /// # Errors
    /// When the client is missing or reports an error.
    pub async fn sql(&self, sql: &str) -> Result<String> {
        let mut command = Command::new(program::find("mariadb", "mariadb-client")?);
        command.args([
            "--no-defaults",
            "--host=127.0.0.1",
            "--user=root",
            "--password=dlock",
            "--batch",
        ]);
        command.args([
            "--skip-column-names",
            &format!("--port={}", self.port()),
            "--execute",
            sql,
            "dlock",
        ]);
        program::output_of(command).await
    }
}

/// How a server is called.
struct Program {
    /// With what must come first: the machine's own configuration is not for tests.
    command: Command,
    /// The file that changes with every version.
    file: PathBuf,
}

fn program_of(flavor: Flavor) -> Result<Program> {
    if flavor == Flavor::MariaDb {
        let file = program::find("mariadbd", "mariadb-server")?;
        let mut command = Command::new(&file);
        command.arg("--no-defaults");
        return Ok(Program { command, file });
    }
    let root = mysql_folder().join("root");
    let file = root.join("usr/sbin/mysqld");
    let libraries = root.join(format!("usr/lib/{}-linux-gnu", env::consts::ARCH));
    // Each machine's loader has its own name.
    let loader = fs::read_dir(&libraries)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            let name = path.file_name().map(|name| name.to_string_lossy());
            name.is_some_and(|name| name.starts_with("ld-linux"))
        });
    let (Some(loader), true) = (loader, file.is_file()) else {
        return Err(Error::NotInstalled {
            what: format!("a real MySQL ({})", file.display()),
            package: "mysql-server-core",
        });
    };
    // Its libraries are newer than this machine's, libc too, so it comes with a loader of its own.
    let mut command = Command::new(loader);
    command.arg("--library-path").arg(&libraries).arg(&file);
    command.arg("--no-defaults");
    command.arg(format!("--basedir={}", root.join("usr").display()));
    Ok(Program { command, file })
}

/// Where `ci/mysql` unpacks.
fn mysql_folder() -> PathBuf {
    program::unpacked("mysql", MYSQL_FOLDER)
}

/// An empty data folder, made by the first test process that needs it and shared by all later ones.
fn template(flavor: Flavor) -> Result<PathBuf> {
    let Program { mut command, file } = program_of(flavor)?;
    let about = file.metadata().doing("look at the server's program")?;
    let made = about
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .unwrap_or_default();
    let cache = folder::shared("cache")?;
    let name = flavor.as_str();
    // Another version of the server gets another template.
    let ready = cache.join(format!("{name}-{}-{}", about.len(), made.as_secs()));

    let door = folder::lock_file(&cache.join(format!("{name}.lock")))
        .doing("open the lock of the template")?;
    door.lock().doing("lock the template")?;
    if !ready.is_dir() {
        let scratch = Folder::new("mysql-template")?;
        let data = scratch.file("data");
        if flavor == Flavor::MariaDb {
            command = Command::new(program::find("mariadb-install-db", "mariadb-server")?);
            command.args([
                "--no-defaults",
                "--skip-test-db",
                "--auth-root-authentication-method=normal",
            ]);
        } else {
            command.arg("--initialize-insecure");
        }
        command
            .args(small(flavor))
            .arg("--user=root")
            .arg(format!("--datadir={}", data.display()));
        program::run(&mut command)?;
        // A rename is whole or not at all, so a killed test leaves no half template.
        fs::rename(&data, &ready).doing("put the template in place")?;
    }
    Ok(ready)
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        // MySQL's own name, which each server makes for itself: two of one name do not replicate.
        if entry.file_name() == "auto.cnf" {
            continue;
        }
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
