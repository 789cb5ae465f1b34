//! Who a client is for its store.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::UrlKey;
use crate::backend::BackendUrl;
use crate::{Error, ErrorKind, HeldNow, Result};

/// A user and a password, as every store's `Config` has them: `user`, `password`, `password_file`, or `credentials` that are asked for.
///
/// `Debug` shows neither the password nor what is in its file.
///
/// ```
/// use dlock_core::kit::Login;
///
/// let login = Login::new("app", "s3cret");
/// assert!(!format!("{login:?}").contains("s3cret"));
/// ```
#[derive(Clone, Default)]
pub struct Login {
    /// The user.
    pub user: Option<String>,
    /// The password, or where it is.
    pub password: Option<Password>,
    /// Asked for both, for each connection.
    ask: Option<Ask>,
}

type Ask = Arc<dyn Fn() -> BoxFuture<'static, Result<Login>> + Send + Sync>;

/// A password, or where it is.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    /// The password itself.
    Text(String),
    /// A file that holds it, read for each connection: so it can be changed while the program runs. A line break at its end does not count.
    File(PathBuf),
}

impl Login {
    /// The keys that [`take`](Login::take) takes.
    pub const KEYS: &'static [UrlKey] = &[UrlKey::new(
        "password_file",
        "a path",
        "",
        "the file with the password, read for each connection, so that it can be changed while the program runs",
    )];

    /// The login of a URL: `user:password@`, or `user@` and `password_file`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when both are given.
    pub fn take(url: &mut BackendUrl) -> Result<Self> {
        let file: Option<String> = url.take("password_file")?;
        let text = url.password().map(str::to_owned);
        if file.is_some() && text.is_some() {
            return Err(Error::invalid(
                "the URL has a password and password_file: give one of them",
            ));
        }
        Ok(Self {
            user: url.user().map(str::to_owned),
            password: text
                .map(Password::Text)
                .or(file.map(|path| Password::File(path.into()))),
            ask: None,
        })
    }

    /// A user and a password.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: Some(user.into()),
            ..Self::of_default_user(password)
        }
    }

    /// A password alone, for a store that has a default user.
    pub fn of_default_user(password: impl Into<String>) -> Self {
        Self {
            password: Some(Password::Text(password.into())),
            ..Self::default()
        }
    }

    /// Asks for user and password whenever a connection is made, for those that change (IAM, Vault).
    pub fn asked<F, A>(ask: F) -> Self
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<Self>> + Send + 'static,
    {
        Self {
            ask: Some(Arc::new(move || Box::pin(ask()))),
            ..Self::default()
        }
    }

    /// The same, with user and password asked for; what is given too is refused by [`check`](Login::check).
    #[doc(hidden)]
    pub fn and_asked<F, A>(self, ask: F) -> Self
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<Self>> + Send + 'static,
    {
        Self {
            ask: Self::asked(ask).ask,
            ..self
        }
    }

    /// Whether there is one, given or to be asked for.
    pub fn is_some(&self) -> bool {
        *self != Self::default()
    }

    /// What can be found out without a connection.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when the password's file cannot be read, or a user or password is given where both are asked for.
    pub fn check(&self) -> Result<()> {
        if self.ask.is_some() && (self.user.is_some() || self.password.is_some()) {
            return Err(Error::invalid(
                "a user or password is given, and credentials gives them too: leave them out",
            ));
        }
        self.password
            .as_ref()
            .map_or(Ok(()), |password| password.read().map(drop))
    }

    /// The same for a connection that is made now: asked for, and read from the password's file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Denied`] when the file cannot be read, and what the one who was asked says. Nothing was sent.
    pub async fn now(&self) -> Result<(Option<String>, Option<String>)> {
        let asked = match &self.ask {
            None => None,
            Some(ask) => Some(ask().await.map_err(|error| {
                let text = format!("no user and password were given to us: {error}");
                error.with_message(text).with_held(HeldNow::No)
            })?),
        };
        let Self { user, password, .. } = asked.as_ref().unwrap_or(self);
        let password = password.as_ref().map(Password::read).transpose();
        let password = password.map_err(|error| error.with_kind(ErrorKind::Denied))?;
        Ok((user.clone(), password))
    }

    /// For a store that takes a user and a password, or none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when only one of them is given.
    pub fn both_or_none(&self) -> Result<()> {
        if self.user.is_some() == self.password.is_some() {
            return Ok(());
        }
        Err(Error::invalid(
            "a user is given without a password or the other way round: give both or none",
        ))
    }
}

/// Two that ask are the same if they ask the same.
impl PartialEq for Login {
    fn eq(&self, other: &Self) -> bool {
        let same_ask = match (&self.ask, &other.ask) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            (None, None) => true,
            _ => false,
        };
        same_ask && self.user == other.user && self.password == other.password
    }
}

impl Eq for Login {}

impl Password {
    /// The password as it is now.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when its file cannot be read.
    pub fn read(&self) -> Result<String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
                Err(error) => Err(Error::invalid(format!(
                    "password_file is {}, which cannot be read: {error}",
                    path.display()
                ))),
            },
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .field("password", &self.password)
            .field("is_asked_for", &self.ask.is_some())
            .finish()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("***"),
            Self::File(path) => path.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(url: &str) -> Result<Login> {
        Login::take(&mut BackendUrl::parse(url)?)
    }

    #[test]
    fn a_login_is_a_user_and_a_password_or_its_file() {
        let text = |text: &str| Some(Password::Text(text.to_owned()));
        for (url, user, password) in [
            ("x://h", None, None),
            ("x://app:s3cret@h", Some("app"), text("s3cret")),
            ("x://:s3cret@h", None, text("s3cret")),
            ("x://app@h", Some("app"), None),
            (
                "x://app@h?password_file=/run/p",
                Some("app"),
                Some(Password::File("/run/p".into())),
            ),
        ] {
            let login = take(url).expect(url);
            assert_eq!(login.user.as_deref(), user, "{url}");
            assert_eq!(login.password, password, "{url}");
            assert!(!format!("{login:?}").contains("s3cret"), "{login:?}");
            assert_eq!(
                login.both_or_none().is_ok(),
                user.is_some() == password.is_some()
            );
        }
        let error = take("x://app:s3cret@h?password_file=/run/p").expect_err("both");
        assert!(error.message().contains("give one of them"), "{error}");
        assert!(!format!("{error:?}").contains("s3cret"));
    }

    #[tokio::test]
    async fn who_is_asked_is_asked_for_each_connection() {
        let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let counted = count.clone();
        let mut login = Login::asked(move || {
            let number = counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async move { Ok(Login::new("app", format!("s3cret-{number}"))) }
        });
        login.check().expect("nobody is asked yet");
        for number in 0..2 {
            let now = login.now().await.expect("told");
            let expected = (Some("app".to_owned()), Some(format!("s3cret-{number}")));
            assert_eq!(now, expected);
        }
        login.user = Some("app".to_owned());
        let error = login.check().expect_err("both");
        assert!(error.message().contains("leave them out"), "{error}");
        let failed =
            Login::asked(|| async { Err(Error::new(ErrorKind::TimedOut, "the vault is shut")) });
        let error = failed.now().await.expect_err("nothing was told");
        assert_eq!(
            (error.kind(), error.held_now()),
            (ErrorKind::TimedOut, HeldNow::No)
        );
        assert!(error.message().contains("the vault is shut"), "{error}");
    }

    #[test]
    fn a_password_file_is_read_each_time_without_its_line_break() {
        let path = std::env::temp_dir().join(format!("dlock-kit-{}", uuid::Uuid::new_v4()));
        let password = Password::File(path.clone());
        let error = password.read().expect_err("not there yet");
        assert!(error.message().contains("cannot be read"), "{error}");
        for text in ["first\n", "second\r\n", "third"] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(password.read().expect("there"), text.trim_end());
        }
        std::fs::remove_file(&path).expect("removed");
    }
}
