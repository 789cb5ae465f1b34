//! Which URLs a backend takes, as data: the reader of URLs and `docs/urls.md` are made from it.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::backend::BackendUrl;
use crate::{Error, Operation, Result};

/// What connect and answer time-outs may be, in every store.
pub const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(600);

/// A scheme that a backend takes.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct UrlScheme {
    /// As it stands before the colon.
    pub name: &'static str,
    /// A URL with everything that can stand before the query.
    pub example: &'static str,
    /// What it names.
    pub about: &'static str,
}

impl UrlScheme {
    /// A scheme, with an example of a whole URL and what it names.
    pub const fn new(name: &'static str, example: &'static str, about: &'static str) -> Self {
        Self {
            name,
            example,
            about,
        }
    }
}

/// A key of the query.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct UrlKey {
    /// The same as that of the setting in the backend's `Config`.
    pub name: &'static str,
    /// What may stand there, such as `a duration` or `true`, `false`.
    pub value: &'static str,
    /// What counts when it is not there; empty for nothing.
    pub default: &'static str,
    /// What it does.
    pub about: &'static str,
}

impl UrlKey {
    /// A key: its name, what may stand there, its default, and what it does.
    pub const fn new(
        name: &'static str,
        value: &'static str,
        default: &'static str,
        about: &'static str,
    ) -> Self {
        Self {
            name,
            value,
            default,
            about,
        }
    }

    /// `connect_timeout`, the same in every store.
    pub const fn connect_timeout(default: &'static str) -> Self {
        Self::new(
            "connect_timeout",
            "a duration from 1ms to 10m",
            default,
            "how long making a connection may take, with everything it needs",
        )
    }

    /// `answer_timeout`, the same in every store.
    pub const fn answer_timeout(default: &'static str) -> Self {
        Self::new(
            "answer_timeout",
            "a duration from 1ms to 10m",
            default,
            "how long one answer of the store may take",
        )
    }

    /// `lease`, for a store whose holds live as long as their session: another word for the session's time.
    pub const fn session_lease() -> Self {
        Self::new(
            "lease",
            "a duration",
            "",
            "the word of every store: here it is the session's time",
        )
    }
}

/// The URLs that a backend takes.
///
/// ```
/// use std::time::Duration;
/// use dlock_core::kit::{self, Login, Tls, UrlForm, UrlKey, UrlScheme};
///
/// struct Config { host: String, login: Login, tls: Option<Tls>, connect_timeout: Duration }
///
/// const URL: UrlForm = UrlForm {
///     backend: "shelf",
///     schemes: &[
///         UrlScheme::new("shelf", "shelf://user:password@host:port", "one server"),
///         UrlScheme::new("shelfs", "shelfs://user:password@host:port", "the same with TLS"),
///     ],
///     keys: &[&[UrlKey::connect_timeout("2s")], Login::KEYS, Tls::KEYS],
/// };
///
/// fn from_url(url: &str) -> Result<Config, dlock_core::Error> {
///     URL.read(url, |url| {
///         let host = url.one_host("shelf://host:port")?.with_port(7777);
///         let tls = url.scheme() == "shelfs";
///         let mut config = Config { host, login: Login::take(url)?, tls: Tls::take(url, tls)?, connect_timeout: Duration::from_secs(2) };
///         url.set_durations([("connect_timeout", &mut config.connect_timeout)])?;
///         kit::within("connect_timeout", config.connect_timeout, kit::TIMEOUTS)?;
///         Ok(config)
///     })
/// }
///
/// let config = from_url("shelfs://app:s3cret@h?ca=system&connect_timeout=1s")?;
/// assert_eq!((config.host.as_str(), config.tls.is_some()), ("h:7777", true));
/// let error = from_url("shelf://h?prefix=x").err().map(|error| error.to_string()).unwrap_or_default();
/// assert_eq!(error, "shelf: configure: invalid input: the URL's parameter \"prefix\" is not known to \"shelf\"; it takes \
///     connect_timeout, password_file, tls, ca, cert, key, server_name");
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct UrlForm {
    /// The backend's short name, as in its capabilities.
    pub backend: &'static str,
    /// Its schemes.
    pub schemes: &'static [UrlScheme],
    /// The keys of the query, in groups: its own, and those that every store has.
    pub keys: &'static [&'static [UrlKey]],
}

impl UrlForm {
    /// Takes a URL apart, lets `settings` take what it knows, and refuses the rest, so that nothing is ignored in silence. Every error names the backend.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a URL that is wrong, another scheme or an unknown key, and what `settings` says.
    pub fn read<T>(
        &self,
        url: &str,
        settings: impl FnOnce(&mut BackendUrl) -> Result<T>,
    ) -> Result<T> {
        let read = || {
            let mut url = BackendUrl::parse(url)?;
            if !self.schemes.iter().any(|known| known.name == url.scheme()) {
                let known: Vec<&str> = self.schemes.iter().map(|scheme| scheme.name).collect();
                return Err(Error::invalid(format!(
                    "the URL's scheme is {:?}: this backend takes {}",
                    url.scheme(),
                    known.join(", ")
                )));
            }
            let settings = settings(&mut url)?;
            url.finish(&self.key_names())?;
            Ok(settings)
        };
        read().map_err(|error| self.with_context(error))
    }

    /// Says that it is about this backend's settings, unless the error knows better.
    pub fn with_context(&self, error: Error) -> Error {
        error.context(self.backend, Operation::Configure, None)
    }

    /// The names of all keys.
    pub fn key_names(&self) -> Vec<&'static str> {
        let all = self.keys.iter().copied().flatten();
        all.map(|key| key.name).collect()
    }
}

/// Checks a setting against its range.
///
/// ```
/// use dlock_core::kit::within;
///
/// assert!(within("connections", 16, 1..=10_000).is_ok());
/// let error = within("connections", 0, 1..=10_000).err().map(|error| error.message().to_owned());
/// assert_eq!(error.as_deref(), Some("connections is 0: it must be from 1 to 10000"));
/// ```
///
/// # Errors
///
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), naming the setting, its value and the range.
pub fn within<T: PartialOrd + fmt::Debug>(
    what: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    let (low, high) = range.into_inner();
    Err(Error::invalid(format!(
        "{what} is {value:?}: it must be from {low:?} to {high:?}"
    )))
}
