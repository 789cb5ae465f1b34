//! One PostgreSQL server, and a PgBouncer in front of one.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Server, Site, Store};
use crate::error::Doing;
use crate::process::processes_in;
use crate::{Error, Folder, Result, folder, program};

/// A running PostgreSQL.
pub type PostgresServer = Server<Postgres>;

/// A running PgBouncer.
pub type PgBouncerServer = Server<PgBouncer>;

/// The settings of a server. It has a database `dlock` and a superuser `dlock`, who needs no password from this machine; others do.
///
/// Neither the server nor its tools run as root, so a test that does runs them as the user `postgres`, whom Debian's package makes.
/// [`Server::freeze`] stops the process that takes connections, not those that serve them.
#[derive(Debug, Clone, Default)]
pub struct Postgres {
    /// Further settings of the server, as in `["statement_timeout=100ms"]`. They win over ours.
    pub set: Vec<String>,
    /// Files in the server's folder, which it alone may read: certificates and keys. Settings name them by [`Site::file`]'s path, which
    /// `{folder}` stands for.
    pub files: Vec<(String, String)>,
    /// Lines of pg_hba.conf that come before ours.
    pub access: String,
    /// The port of a server on this machine that this one follows as its standby.
    pub follows: Option<u16>,
    /// Further environment.
    pub env: Vec<(String, String)>,
}

const ACCESS: &str = "\
local all all trust
host all dlock 127.0.0.1/32 trust
host replication dlock 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
";

impl Store for Postgres {
    const NAME: &'static str = "postgres";
    const URL_VARIABLE: &'static str = "DLOCK_TEST_POSTGRES_URL";

    async fn prepare(&self, site: &Site) -> Result<()> {
        let (settings, folder) = (self.clone(), site.folder.path().to_owned());
        tokio::task::spawn_blocking(move || settings.fill(&folder))
            .await
            .expect("filling a folder does not panic")
    }

    fn command(&self, site: &Site) -> Result<Command> {
        let mut command = as_server(&tool("postgres")?)?;
        command.envs(self.env.iter().cloned());
        command.arg("-D").arg(site.file("data"));
        let folder = site.folder.path().display().to_string();
        let ours = [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={}", site.port()),
            format!("unix_socket_directories={folder}"),
            "max_connections=300".to_owned(),
            "shared_buffers=16MB".to_owned(),
            "max_wal_size=256MB".to_owned(),
            "hot_standby=on".to_owned(),
        ];
        let theirs = self.set.iter().map(|set| set.replace("{folder}", &folder));
        for set in ours.into_iter().chain(theirs) {
            command.arg("-c").arg(set);
        }
        Ok(command)
    }

    async fn probe(&self, site: &Site) -> Result<()> {
        let sql = psql(site.addr(), "dlock", "SELECT 1")?;
        program::output_of(sql).await.map(|_| ())
    }

    fn url(&self, site: &Site) -> String {
        format!("postgres://dlock@{}/dlock", site.addr())
    }

    /// At once, and in order; at SIGTERM it would wait until the last client has gone.
    fn stop_signal(&self) -> Signal {
        Signal::INT
    }
}

impl Postgres {
    /// A server with further settings.
    #[must_use]
    pub fn set(set: &[&str]) -> Self {
        Self {
            set: set.iter().map(|set| (*set).to_owned()).collect(),
            ..Self::default()
        }
    }

    fn fill(&self, folder: &Path) -> Result<()> {
        let owner = owner()?;
        own(folder, owner)?;
        let data = folder.join("data");
        match self.follows {
            None => copy_all(&template()?, &data, owner).doing("copy the template database")?,
            Some(port) => {
                let mut backup = as_server(&tool("pg_basebackup")?)?;
                backup.arg("-D").arg(&data);
                backup.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "dlock"]);
                backup.args(["-R", "-X", "stream", "-c", "fast", "--no-sync"]);
                program::run(&mut backup)?;
            }
        }
        let access = format!("{}\n{ACCESS}", self.access);
        let access = ("data/pg_hba.conf".to_owned(), access);
        for (name, text) in self.files.iter().chain([&access]) {
            let file = folder.join(name);
            fs::write(&file, text).doing(format!("write {name}"))?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600))
                .doing(format!("close {name}"))?;
            own(&file, owner)?;
        }
        Ok(())
    }
}

impl PostgresServer {
    /// Runs SQL with `psql` as the superuser, and returns what it prints: a line per row, columns parted by tabs.
    ///
    /// # Errors
    /// When the client is missing or reports an error.
    pub async fn sql(&self, sql: &str) -> Result<String> {
        program::output_of(psql(self.addr(), "dlock", sql)?).await
    }

    /// The folder of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.site().folder.path().to_owned()
    }

    /// Stops all its processes, those that serve clients too ([`Server::freeze`] stops the first one alone).
    pub fn freeze_all(&self) {
        self.freeze();
        self.signal_children(Signal::STOP);
    }

    /// Lets them run on.
    pub fn thaw_all(&self) {
        self.signal_children(Signal::CONT);
        self.thaw();
    }

    /// Its children work where it does, also when it has been killed and they have not noticed yet.
    fn signal_children(&self, signal: Signal) {
        let first = self.pid();
        for pid in processes_in(&self.site().file("data")) {
            if pid.as_raw_nonzero().get().unsigned_abs() != first {
                // One that has ended meanwhile is no matter.
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
    }

    /// Makes a standby the primary.
    ///
    /// # Errors
    /// When it is none.
    pub async fn promote(&self) -> Result<()> {
        self.sql("SELECT pg_promote(true, 60)").await.map(|_| ())
    }
}

/// The settings of a PgBouncer.
#[derive(Debug, Clone)]
pub struct PgBouncer {
    /// The server behind it.
    pub to: SocketAddr,
    /// `session`, `transaction` or `statement`.
    pub mode: &'static str,
    /// How many connections it has to the server.
    pub size: u32,
}

impl Store for PgBouncer {
    const NAME: &'static str = "pgbouncer";
    const URL_VARIABLE: &'static str = "DLOCK_TEST_PGBOUNCER_URL";

    async fn prepare(&self, site: &Site) -> Result<()> {
        let config = format!(
            "[databases]\ndlock = host=127.0.0.1 port={} dbname=dlock\n\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = {}\ndefault_pool_size = {}\nmax_client_conn = 500\n",
            self.to.port(),
            site.port(),
            site.file("users").display(),
            self.mode,
            self.size,
        );
        fs::write(site.file("config"), config).doing("write config")?;
        fs::write(site.file("users"), "\"dlock\" \"\"\n").doing("write users")?;
        own(site.folder.path(), owner()?)
    }

    fn command(&self, site: &Site) -> Result<Command> {
        let mut command = as_server(&program::find("pgbouncer", "pgbouncer")?)?;
        command.arg(site.file("config"));
        Ok(command)
    }

    async fn probe(&self, site: &Site) -> Result<()> {
        // Does it speak TLS? It says 'N' or 'S' once it takes clients.
        let mut stream = TcpStream::connect(site.addr()).await.doing("connect")?;
        let question = [0, 0, 0, 8, 4, 210, 22, 47];
        stream.write_all(&question).await.doing("ask")?;
        let mut answer = [0];
        stream.read_exact(&mut answer).await.doing("read")?;
        Ok(())
    }

    fn url(&self, site: &Site) -> String {
        format!("postgres://dlock@{}/dlock", site.addr())
    }

    fn stop_signal(&self) -> Signal {
        Signal::INT
    }
}

fn psql(addr: SocketAddr, user: &str, sql: &str) -> Result<Command> {
    let mut command = Command::new(tool("psql")?);
    command.env("PGCONNECT_TIMEOUT", "10");
    command.args(["-h", "127.0.0.1", "-p", &addr.port().to_string()]);
    command.args(["-U", user, "-d", "dlock", "-XqAt", "-F", "\t"]);
    command.args(["-v", "ON_ERROR_STOP=1", "-c", sql]);
    Ok(command)
}

/// A program of the newest server that Debian's packages have brought. What else is called `postgres` may be anything.
fn tool(name: &str) -> Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    versions
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version: u32 = path.file_name()?.to_str()?.parse().ok()?;
            let file = path.join("bin").join(name);
            file.is_file().then_some((version, file))
        })
        .max()
        .map(|(_, file)| file)
        .ok_or_else(|| Error::NotInstalled {
            what: format!("{name} of a PostgreSQL server"),
            package: "postgresql",
        })
}

/// A command that runs as somebody who is not root. To become somebody else takes the signal of a dead parent away, so it is asked for again.
fn as_server(file: &Path) -> Result<Command> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Command::new(file));
    }
    let mut command = Command::new(program::find("setpriv", "util-linux")?);
    command.args([
        "--reuid",
        "postgres",
        "--regid",
        "postgres",
        "--clear-groups",
    ]);
    command.args(["--pdeathsig", "KILL", "--"]).arg(file);
    Ok(command)
}

/// Who owns the files of a server; `None` when that is whoever runs the test.
fn owner() -> Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").doing("read /etc/passwd")?;
    let line = users.lines().find(|line| line.starts_with("postgres:"));
    let fields: Vec<&str> = line.unwrap_or_default().split(':').collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse().ok());
    match (number(2), number(3)) {
        (Some(user), Some(group)) => Ok(Some((user, group))),
        _ => Err(Error::NotInstalled {
            what: "the user postgres".to_owned(),
            package: "postgresql",
        }),
    }
}

fn own(path: &Path, owner: Option<(u32, u32)>) -> Result<()> {
    let Some((user, group)) = owner else {
        return Ok(());
    };
    std::os::unix::fs::chown(path, Some(user), Some(group))
        .doing(format!("give {} away", path.display()))
}

/// An empty data folder with the database, made by the first test process that needs it and shared by all later ones.
fn template() -> Result<PathBuf> {
    let postgres = tool("postgres")?;
    let about = postgres.metadata().doing("look at the server's program")?;
    let made = about
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .unwrap_or_default();
    let cache = folder::shared("cache")?;
    // Another version of the server gets another template.
    let ready = cache.join(format!("postgres-{}-{}", about.size(), made.as_secs()));
    let door =
        folder::lock_file(&cache.join("postgres.lock")).doing("open the lock of the template")?;
    door.lock().doing("lock the template")?;
    if !ready.is_dir() {
        let scratch = Folder::new("postgres-template")?;
        own(scratch.path(), owner()?)?;
        let data = scratch.file("data");
        let mut init = as_server(&tool("initdb")?)?;
        init.arg("-D").arg(&data);
        init.args(["-U", "dlock", "--auth=trust", "--encoding=UTF8"]);
        init.args(["--locale=C", "--no-sync"]);
        program::run(&mut init)?;
        let mut single = as_server(&postgres)?;
        single.args(["--single", "-D"]).arg(&data).arg("postgres");
        let create = scratch.file("create");
        fs::write(&create, "CREATE DATABASE dlock\n").doing("write create")?;
        single.stdin(fs::File::open(&create).doing("open create")?);
        program::run(&mut single)?;
        // A rename is whole or not at all, so a killed test leaves no half template.
        fs::rename(&data, &ready).doing("put the template in place")?;
    }
    Ok(ready)
}

fn copy_all(from: &Path, to: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    fs::create_dir(to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o700))?;
    let give = |path: &Path| match owner {
        Some((user, group)) => std::os::unix::fs::chown(path, Some(user), Some(group)),
        None => Ok(()),
    };
    give(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target, owner)?;
        } else {
            fs::copy(entry.path(), &target)?;
            give(&target)?;
        }
    }
    Ok(())
}
