use std::path::{Path, PathBuf};

use dlock_core::backend::BackendUrl;
use dlock_core::kit::{UrlForm, UrlKey, UrlScheme};
use dlock_core::{Error, Result};
use nix::unistd::{Uid, User};

use crate::{Access, FileBackend};

/// Which folder holds the locks.
///
/// ```
/// # fn main() -> Result<(), dlock_core::Error> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let url = format!("file:{}/locks", dir.path().display());
/// let config = dlock_file::Config::from_url(&url)?; // file:/path, or file: for the user's own folder
/// let backend = config.connect()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    folder: PathBuf,
    access: Access,
}

impl Config {
    /// The URLs that [`from_url`](Config::from_url) reads, as data.
    pub const URL: UrlForm = UrlForm {
        backend: "file",
        schemes: &[UrlScheme::new(
            "file",
            "file:/path",
            "a folder of this host; `file:` alone for the user's own",
        )],
        keys: &[&[UrlKey::new(
            "access",
            "`owner`, `group`",
            "`owner`",
            "who may take part: the user to whom the folder belongs, or the members of its group",
        )]],
    };

    /// The locks in `folder`. Everybody who names the same folder shares them.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            access: Access::Owner,
        }
    }

    /// Who may take part. Default: the user to whom the folder belongs. Everybody who uses a folder must say the same.
    #[must_use = "a changed configuration is returned"]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Reads `file:/path`, or `file:` for the default folder: `.local/state/dlock` in the home that the user's account names,
    /// whatever the environment says, else `/tmp/dlock-UID`. With `?access=group` the members of the folder's group share it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid), naming the part of the URL that is wrong.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::URL.read(url, Self::parse)
    }

    fn parse(url: &mut BackendUrl) -> Result<Self> {
        if let Some(host) = url.hosts().first() {
            return Err(Error::invalid(format!(
                "the URL names the host {:?}, but file locks are of this host: write \"file:/path\" with one slash, or \
                 three",
                host.name
            )));
        }
        let access = url.take("access")?.unwrap_or_default();
        let config = match url.path() {
            "" => Self::new(default_folder(rustix::process::geteuid().as_raw())),
            path => Self::new(path),
        };
        Ok(config.access(access))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A client of that folder, which is made with private permissions if it is not there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Denied`](dlock_core::ErrorKind::Denied) when the folder cannot be made, or cannot be trusted: it is a
    /// symbolic link, belongs to another user, or others may write to it; with [`Access::Group`], when everybody may write to it or
    /// its group may not.
    pub fn connect(self) -> Result<FileBackend> {
        FileBackend::open(&self.folder, self.access)
    }
}

/// The same from cron, a systemd service and a login shell of one user, which differ in `HOME` and the XDG variables: only the
/// user's entry among the accounts is asked.
fn default_folder(user: u32) -> PathBuf {
    let account = User::from_uid(Uid::from_raw(user)).ok().flatten();
    folder_of(user, account.map(|account| account.dir))
}

fn folder_of(user: u32, home: Option<PathBuf>) -> PathBuf {
    // Accounts of services have such homes. One that is not there for another reason is an error when it is used, not a reason to
    // go elsewhere: two who go to different folders do not exclude each other.
    let none = |home: &PathBuf| {
        !home.is_absolute() || home == Path::new("/") || home.starts_with("/nonexistent")
    };
    match home.filter(|home| !none(home)) {
        Some(home) => home.join(".local/state/dlock"),
        None => PathBuf::from(format!("/tmp/dlock-{user}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named() {
        for (url, expected) in [
            ("redis:", "takes file"),
            ("file://var/lock", "names the host \"var\""),
            ("file:/x?lease=5s", "it takes access"),
            ("file:/x?access=all", "owner or group"),
        ] {
            let error = Config::from_url(url).expect_err(url);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn the_path_is_taken_as_it_is() {
        for (url, folder) in [
            ("file:/run/x", "/run/x"),
            ("file:///run/x", "/run/x"),
            ("file:/with%20space", "/with space"),
        ] {
            let config = Config::from_url(url).expect(url);
            assert_eq!(config.folder(), Path::new(folder));
        }
    }

    #[test]
    fn the_default_folder_depends_on_the_account_alone() {
        for (home, folder) in [
            (Some("/home/me"), "/home/me/.local/state/dlock"),
            (Some("/root"), "/root/.local/state/dlock"),
            (Some("/"), "/tmp/dlock-7"),
            (Some("/nonexistent"), "/tmp/dlock-7"),
            (Some(""), "/tmp/dlock-7"),
            (None, "/tmp/dlock-7"),
        ] {
            let found = folder_of(7, home.map(PathBuf::from));
            assert_eq!(found, Path::new(folder), "{home:?}");
        }
        assert_eq!(
            default_folder(0).file_name(),
            Some("dlock".as_ref()),
            "the superuser has a home"
        );
    }

    #[test]
    fn who_may_take_part_is_a_parameter() {
        for (url, access) in [
            ("file:/x", Access::Owner),
            ("file:/x?access=owner", Access::Owner),
            ("file:/x?access=group", Access::Group),
        ] {
            assert_eq!(Config::from_url(url).expect(url).access, access);
        }
    }
}
