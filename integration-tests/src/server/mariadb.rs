//! One MariaDB server.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::{Server, Site, Store};
use crate::error::Doing;
use crate::{Error, Folder, Result, folder, program};

/// A running MariaDB.
pub type MariaDbServer = Server<MariaDb>;

/// The settings of a MariaDB server. It has a database `dlock` and a user `root` with the password `dlock`.
#[derive(Debug, Clone, Default)]
pub struct MariaDb {
    /// Further arguments, as in `["--wait-timeout=5"]`. They win over ours.
    pub args: Vec<String>,
    /// Further environment.
    pub env: Vec<(String, String)>,
}

/// What every start makes sure of. By name or by address, root gets in from this machine with the password.
const FIRST_SQL: &str = "\
CREATE DATABASE IF NOT EXISTS dlock;
CREATE OR REPLACE USER root@'127.0.0.1' IDENTIFIED BY 'dlock';
GRANT ALL PRIVILEGES ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
ALTER USER root@localhost IDENTIFIED BY 'dlock';
";

/// Small files and buffers: a test database is tiny, and each server gets its own copy.
const SMALL: [&str; 3] = [
    "--innodb-log-file-size=4M",
    "--innodb-buffer-pool-size=16M",
    "--innodb-data-file-path=ibdata1:6M:autoextend",
];

impl Store for MariaDb {
    const NAME: &'static str = "mariadb";
    const URL_VARIABLE: &'static str = "DLOCK_TEST_MYSQL_URL";

    async fn prepare(&self, site: &Site) -> Result<()> {
        let data = site.file("data");
        fs::write(site.file("first.sql"), FIRST_SQL).doing("write first.sql")?;
        tokio::task::spawn_blocking(move || {
            copy_all(&template()?, &data).doing("copy the template database")
        })
        .await
        .expect("the copy does not panic")
    }

    fn command(&self, site: &Site) -> Result<Command> {
        let mut command = Command::new(program::find("mariadbd", "mariadb-server")?);
        command.envs(self.env.iter().cloned());
        // Must come first: the machine's own configuration is not for tests.
        command.arg("--no-defaults").args(SMALL);
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
        // The server speaks first: length (3 bytes), sequence 0, protocol version 10. It does so once it takes clients.
        let mut stream = TcpStream::connect(site.addr()).await.doing("connect")?;
        let mut greeting = [0; 5];
        stream
            .read_exact(&mut greeting)
            .await
            .doing("read the greeting")?;
        if matches!(greeting, [_, _, _, 0, 10]) {
            return Ok(());
        }
        Err(Error::answer("greeting", format!("{greeting:?}")))
    }

    fn url(&self, site: &Site) -> String {
        format!("mysql://root:dlock@{}/dlock", site.addr())
    }
}

impl MariaDbServer {
    /// Runs SQL with the `mariadb` client, and returns what it prints: a line per row, columns parted by tabs.
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

/// An empty data folder, made by the first test process that needs it and shared by all later ones.
fn template() -> Result<PathBuf> {
    let server = program::find("mariadbd", "mariadb-server")?;
    let about = server.metadata().doing("look at mariadbd")?;
    let made = about
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .unwrap_or_default();
    let cache = folder::shared("cache")?;
    // Another version of the server gets another template.
    let ready = cache.join(format!("mariadb-{}-{}", about.len(), made.as_secs()));

    let door =
        folder::lock_file(&cache.join("mariadb.lock")).doing("open the lock of the template")?;
    door.lock().doing("lock the template")?;
    if !ready.is_dir() {
        let scratch = Folder::new("mariadb-template")?;
        let data = scratch.file("data");
        let mut install = Command::new(program::find("mariadb-install-db", "mariadb-server")?);
        install
            .arg("--no-defaults")
            .args(SMALL)
            .arg(format!("--datadir={}", data.display()));
        install.args([
            "--user=root",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
        ]);
        program::run(&mut install)?;
        // A rename is whole or not at all, so a killed test leaves no half template.
        fs::rename(&data, &ready).doing("put the template in place")?;
    }
    Ok(ready)
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
