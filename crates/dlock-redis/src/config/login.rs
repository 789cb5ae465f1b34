//! Who we are for the server: a user and a password that are given once, read from a file, or asked for.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dlock_core::{Error, ErrorKind, Result};
use futures::future::BoxFuture;

use super::Config;
use crate::error::Trouble;

/// A user and a password, as [`Config::credentials`] gives them.
///
/// ```
/// use dlock_redis::Login;
///
/// let login = Login::new("s3cret").user("app");
/// assert!(!format!("{login:?}").contains("s3cret"));
/// ```
#[derive(Clone)]
pub struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl Login {
    /// A password, for Redis' default user.
    pub fn new(password: impl Into<String>) -> Self {
        Self {
            user: None,
            password: Some(password.into()),
        }
    }

    /// The user, of Redis' access control lists.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }
}

/// Without the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Where a password comes from that may be another with the next connection.
#[derive(Clone)]
pub(crate) enum Source {
    File(PathBuf),
    Asked(Arc<dyn Fn() -> BoxFuture<'static, Result<Login>> + Send + Sync>),
}

impl Config {
    /// Reads the password from this file whenever a connection is made, without a line break at its end: as an agent writes it that
    /// gets short-lived passwords. Default: none.
    ///
    /// A connection that is open stays as it is when the file changes. The server ends it when it no longer wants it, and the next one has
    /// the new password.
    pub fn password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.changing = Some(Source::File(path.into()));
        self
    }

    /// Asks for user and password whenever a connection is made, for those that change (IAM, Vault). Default: none.
    ///
    /// It has the time of [`connect_timeout`](Config::connect_timeout), with everything else that a connection needs; keep what is still
    /// good rather than fetch it each time. A connection that is open is not told of new ones: when the server ends it, the next one has
    /// them, and renewals and waiters go on there.
    ///
    /// ```
    /// use dlock_redis::{Config, Login};
    ///
    /// async fn token() -> Result<String, std::io::Error> {
    ///     Ok("short-lived".to_owned()) // from your provider
    /// }
    ///
    /// let config = Config::from_url("rediss+cluster://n1,n2")?.credentials(|| async {
    ///     let token = token().await.map_err(|error| dlock_core::Error::new(dlock_core::ErrorKind::Denied, error.to_string()))?;
    ///     Ok(Login::new(token).user("app"))
    /// });
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn credentials<F, A>(mut self, ask: F) -> Self
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<Login>> + Send + 'static,
    {
        self.changing = Some(Source::Asked(Arc::new(move || Box::pin(ask()))));
        self
    }

    /// The login for a connection that is made now.
    pub(crate) async fn login(&self) -> Result<Login, Trouble> {
        match &self.changing {
            None => Ok(Login {
                user: self.user.clone(),
                password: self.password.clone(),
            }),
            Some(Source::File(path)) => {
                Ok(Login {
                    user: self.user.clone(),
                    password: Some(read(path).map_err(|error| {
                        Trouble::new(ErrorKind::Denied, error.message()).unsent()
                    })?),
                })
            }
            Some(Source::Asked(ask)) => ask().await.map_err(|error| {
                let message = format!("no user and password were given to us: {error}");
                Trouble::new(error.kind(), message).unsent()
            }),
        }
    }

    pub(super) fn check_login(&self) -> Result<()> {
        let Some(source) = &self.changing else {
            return Ok(());
        };
        if self.password.is_some() {
            return Err(Error::invalid(
                "a password is given, and also where to get it from: leave one of them out",
            ));
        }
        match source {
            Source::File(path) => read(path).map(|_| ()),
            Source::Asked(_) if self.user.is_some() => Err(Error::invalid(
                "a user is given, and credentials gives one too: leave it out here",
            )),
            Source::Asked(_) => Ok(()),
        }
    }
}

fn read(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::invalid(format!(
            "the file {path:?} of password_file cannot be read: {error}"
        ))
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
