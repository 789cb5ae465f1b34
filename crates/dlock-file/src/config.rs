use std::path::{Path, PathBuf};

use dlock_core::{BackendUrl, Error, Result};

use crate::FileBackend;

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
}

impl Config {
    /// The locks in `folder`. Everybody who names the same folder shares them.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// Reads `file:/path`, or `file:` for the default folder: `$XDG_RUNTIME_DIR/dlock`, else `$XDG_STATE_HOME/dlock` or
    /// `~/.local/state/dlock`, else `dlock-UID` in the folder for temporary files.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid), naming the part of the URL that is wrong.
    pub fn from_url(url: &str) -> Result<Self> {
        let url = BackendUrl::parse(url)?;
        if url.scheme() != "file" {
            return Err(Error::invalid(format!(
                "the URL's scheme is {:?}: this backend takes \"file:\"",
                url.scheme()
            )));
        }
        if let Some(host) = url.hosts().first() {
            return Err(Error::invalid(format!(
                "the URL names the host {:?}, but file locks are of this host: write \"file:/path\" with one slash, or \
                 three",
                host.name
            )));
        }
        url.finish(&[])?;
        Ok(match url.path() {
            "" => Self::new(default_folder(|key| {
                std::env::var_os(key).map(PathBuf::from)
            })),
            path => Self::new(path),
        })
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
    /// symbolic link, belongs to another user, or others may write to it.
    pub fn connect(self) -> Result<FileBackend> {
        FileBackend::open(&self.folder)
    }
}

fn default_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    // The XDG specification: a path that is not absolute is invalid and to be ignored.
    let absolute = |key| variable(key).filter(|path| path.is_absolute());
    if let Some(runtime) = absolute("XDG_RUNTIME_DIR") {
        return runtime.join("dlock");
    }
    if let Some(state) = absolute("XDG_STATE_HOME") {
        return state.join("dlock");
    }
    match absolute("HOME") {
        Some(home) => home.join(".local/state/dlock"),
        None => std::env::temp_dir().join(format!("dlock-{}", rustix::process::geteuid().as_raw())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named() {
        for (url, expected) in [
            ("redis:", "takes \"file:\""),
            ("file://var/lock", "names the host \"var\""),
            ("file:/x?lease=5s", "takes none"),
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
    fn the_default_folder_is_the_users_own() {
        let with = |known: &'static [(&str, &str)]| {
            default_folder(move |key| {
                let found = known.iter().find(|(name, _)| *name == key);
                found.map(|(_, value)| PathBuf::from(value))
            })
        };
        let all: &[_] = &[
            ("XDG_RUNTIME_DIR", "/run/user/7"),
            ("XDG_STATE_HOME", "/s"),
            ("HOME", "/h"),
        ];
        assert_eq!(with(all), Path::new("/run/user/7/dlock"));
        assert_eq!(
            with(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")]),
            Path::new("/s/dlock")
        );
        let relative: &[_] = &[("XDG_RUNTIME_DIR", "run"), ("HOME", "/h")];
        assert_eq!(with(relative), Path::new("/h/.local/state/dlock"));
        let nothing = with(&[]);
        assert!(nothing.to_string_lossy().contains("dlock-"), "{nothing:?}");
    }
}
