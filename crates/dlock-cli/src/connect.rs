//! Which store: `--backend`, `--backend-file`, `DLOCK_URL`, else the files of this host.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use dlocks::backend::BackendUrl;
use dlocks::{Locks, Settings};

use crate::exit::Failure;

/// Nobody waits longer for a store that does not answer when all is done.
const FAREWELL: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Args)]
pub(crate) struct Store {
    /// The store that keeps the locks, such as redis://host:6379, etcd://host:2379, zk://host:2181 or file:/path [default: $DLOCK_URL, else file:]
    #[arg(long, value_name = "URL", global = true, help_heading = "Store")]
    pub(crate) backend: Option<String>,

    /// Read the URL from a file, so that a password does not stand in the process list
    #[arg(
        long,
        value_name = "PATH",
        global = true,
        conflicts_with = "backend",
        help_heading = "Store"
    )]
    pub(crate) backend_file: Option<std::path::PathBuf>,

    /// Print JSON for programs instead of text for people
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,
}

impl Store {
    pub(crate) fn url(&self) -> Result<String, Failure> {
        if let Some(url) = &self.backend {
            return Ok(url.clone());
        }
        if let Some(path) = &self.backend_file {
            return read_url(path);
        }
        match std::env::var("DLOCK_URL") {
            Ok(url) if !url.is_empty() => Ok(url),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(Failure::usage("DLOCK_URL is not UTF-8: percent-encode it"))
            }
            _ => Ok("file:".to_owned()),
        }
    }

    /// Whether the user named a store.
    pub(crate) fn is_named(&self) -> bool {
        self.backend.is_some()
            || self.backend_file.is_some()
            || std::env::var_os("DLOCK_URL").is_some_and(|url| !url.is_empty())
    }

    pub(crate) async fn connect(&self, settings: Settings) -> Result<Locks, Failure> {
        Ok(open(&self.url()?, settings).await?)
    }
}

/// Leaves nothing in the store, as far as it answers.
pub(crate) async fn leave(locks: &Locks) {
    let _ = tokio::time::timeout(FAREWELL, locks.close()).await;
}

pub(crate) async fn open(url: &str, settings: Settings) -> dlocks::Result<Locks> {
    dlocks::builder(url).settings(settings).connect().await
}

/// The URL for people and for the child's environment: without password and parameters, which may hold one.
pub(crate) fn shown(url: &str) -> String {
    BackendUrl::parse(url).map_or_else(|_| "?".to_owned(), |url| url.to_string())
}

fn read_url(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "cannot read the backend's URL from {}: {error}",
            path.display()
        ))
    })?;
    let mut lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    match (lines.next(), lines.next()) {
        (Some(url), None) => Ok(url.to_owned()),
        (None, _) => Err(Failure::usage(format!(
            "{} holds no URL: write one line into it, such as redis://user:password@host",
            path.display()
        ))),
        (Some(_), Some(_)) => Err(Failure::usage(format!(
            "{} holds more than one line: write only the URL into it",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_password() {
        assert_eq!(shown("redis://me:secret@h/2?token=x"), "redis://me@h/2");
        assert_eq!(shown("nonsense"), "?");
    }
}
