//! The one parser for backend URLs, which may name several hosts.

mod host;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

pub use host::Host;

use crate::{Error, Result};
use host::parse_hosts;

/// A backend URL in parts: `scheme://user:password@host1:port,host2:port/path?key=value`.
///
/// `memory:` and `file:/path` have no hosts. Text is percent-decoded. `Debug` and `Display` leave the password out.
/// A backend takes the query parameters it knows with [`take`](BackendUrl::take) and then calls
/// [`finish`](BackendUrl::finish), so that none is ignored in silence.
///
/// ```
/// use dlock_core::backend::BackendUrl;
///
/// let mut url = BackendUrl::parse("redis://app:s3cret@cache-1,cache-2:7000/2?prefix=shop")?;
/// assert_eq!(url.scheme(), "redis");
/// assert_eq!(url.password(), Some("s3cret"));
/// let hosts: Vec<_> = url.hosts().iter().map(|h| h.with_port(6379)).collect();
/// assert_eq!(hosts, ["cache-1:6379", "cache-2:7000"]);
/// assert_eq!(url.path(), "/2");
/// assert_eq!(url.take::<String>("prefix")?.as_deref(), Some("shop"));
/// url.finish(&["prefix"])?;
/// assert_eq!(url.to_string(), "redis://app@cache-1,cache-2:7000/2");
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct BackendUrl {
    scheme: String,
    user: Option<String>,
    password: Option<String>,
    hosts: Vec<Host>,
    path: String,
    query: BTreeMap<String, String>,
}

impl BackendUrl {
    /// Takes a URL apart.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), naming the part that is wrong and what to write instead. Neither the message nor
    /// the value's `Debug` and `Display` hold the password, also when it was not encoded, or when slashes, the '@' or the host were
    /// forgotten. So an unencoded '@' is refused after the host, and where there is no host (but for `file:`). What cannot be told
    /// from a host and its port, such as `redis://user:6379`, is one.
    pub fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            Error::invalid(
                "the URL has no scheme: write it like \"redis://host:port\" or \"memory:\"",
            )
        })?;
        let scheme_ok = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
        if !scheme_ok {
            return Err(Error::invalid(
                "the URL's scheme must be letters, digits, '+', '-' or '.': write it like \"redis://host:port\"",
            ));
        }
        if let Some((place, _)) = url
            .char_indices()
            .find(|(_, c)| c.is_control() || *c == ' ')
        {
            return Err(Error::invalid(format!(
                "the URL holds a space or a control character at byte {place}: remove it, or write it percent-encoded, a space as %20"
            )));
        }
        if rest.contains('#') {
            return Err(Error::invalid(
                "the URL has a fragment ('#…'): remove it; encode a '#' in a password as %23",
            ));
        }
        let scheme = scheme.to_ascii_lowercase();
        let (authority, path_and_query) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len())),
            None => ("", rest),
        };
        refuse_lost_login(&scheme, authority, path_and_query)?;
        let (path, query) = path_and_query
            .split_once('?')
            .unwrap_or((path_and_query, ""));
        let (userinfo, hosts) = match authority.rsplit_once('@') {
            Some((userinfo, hosts)) => (Some(userinfo), hosts),
            None => (None, authority),
        };
        let (user, password) = match userinfo.map(|info| info.split_once(':').unwrap_or((info, "")))
        {
            Some((user, password)) => (
                non_empty(decode("user", user)?),
                non_empty(decode("password", password)?),
            ),
            None => (None, None),
        };
        Ok(Self {
            scheme,
            user,
            password,
            hosts: parse_hosts(hosts)?,
            path: decode("path", path)?,
            query: parse_query(query)?,
        })
    }

    /// The scheme, in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The user.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// The hosts, in the order given; may be empty.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The path with its leading slash, or empty.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The only host, for a store that has one.
    ///
    /// # Errors
    ///
    /// Names what is wrong, and how to write it: `example`.
    pub fn one_host(&self, example: &str) -> Result<&Host> {
        match self.hosts.as_slice() {
            [host] => Ok(host),
            [] => Err(Error::invalid(format!(
                "the URL names no host: write {example}"
            ))),
            _ => Err(Error::invalid(format!(
                "the URL names several hosts, and this store has one: write {example}"
            ))),
        }
    }

    /// The hosts, of which there must be one at least.
    ///
    /// # Errors
    ///
    /// Says how to write it: `example`.
    pub fn some_hosts(&self, example: &str) -> Result<Vec<Host>> {
        if self.hosts.is_empty() {
            return Err(Error::invalid(format!(
                "the URL names no host: write {example}"
            )));
        }
        Ok(self.hosts.clone())
    }

    /// Takes a query parameter out and parses it; `None` when it is not there.
    ///
    /// # Errors
    ///
    /// Names the parameter when its value cannot be parsed.
    pub fn take<T>(&mut self, key: &str) -> Result<Option<T>>
    where
        T: FromStr,
        T::Err: fmt::Display,
    {
        self.query
            .remove(key)
            .map(|value| value.parse().map_err(|why| bad_value(key, &value, &why)))
            .transpose()
    }

    /// Takes a duration such as `500ms`, `30s` or `2m`.
    ///
    /// # Errors
    ///
    /// Names the parameter when its value is not a duration.
    pub fn take_duration(&mut self, key: &str) -> Result<Option<Duration>> {
        self.query
            .remove(key)
            .map(|value| {
                parse_duration(&value).map_err(|why| bad_value(key, &value, &why.message()))
            })
            .transpose()
    }

    /// Sets those settings that stand in the query.
    ///
    /// # Errors
    ///
    /// Names the parameter whose value is wrong.
    pub fn set<'a, T>(
        &mut self,
        settings: impl IntoIterator<Item = (&'static str, &'a mut T)>,
    ) -> Result<()>
    where
        T: FromStr + 'a,
        T::Err: fmt::Display,
    {
        for (key, setting) in settings {
            if let Some(value) = self.take(key)? {
                *setting = value;
            }
        }
        Ok(())
    }

    /// Sets those durations that stand in the query.
    ///
    /// # Errors
    ///
    /// Names the parameter whose value is not a duration.
    pub fn set_durations<'a>(
        &mut self,
        settings: impl IntoIterator<Item = (&'static str, &'a mut Duration)>,
    ) -> Result<()> {
        for (key, setting) in settings {
            if let Some(value) = self.take_duration(key)? {
                *setting = value;
            }
        }
        Ok(())
    }

    /// Takes the session's time of a store whose holds live as long as their session: the parameter `key`, which is the store's own word, or
    /// `lease`, the word that is the same in every URL.
    ///
    /// # Errors
    ///
    /// Names the parameter when its value is not a duration, and both when both are there.
    pub fn take_session(&mut self, key: &str) -> Result<Option<Duration>> {
        let (own, lease) = (self.take_duration(key)?, self.take_duration("lease")?);
        if own.is_some() && lease.is_some() {
            return Err(Error::invalid(format!(
                "the URL's parameters {key:?} and \"lease\" are the same for this store: give one of them"
            )));
        }
        Ok(own.or(lease))
    }

    /// Ends the reading of parameters.
    ///
    /// # Errors
    ///
    /// Names a parameter nobody took, and lists `known`, the ones this backend takes.
    pub fn finish(&self, known: &[&str]) -> Result<()> {
        match self.query.keys().next() {
            None => Ok(()),
            Some(key) if known.contains(&key.as_str()) => Err(Error::invalid(format!(
                "the URL's parameter {key:?} does not go together with the others: remove it, or look which of them needs it"
            ))),
            Some(key) if known.is_empty() => Err(Error::invalid(format!(
                "the URL has the parameter {key:?}, but {:?} takes none: remove it",
                self.scheme
            ))),
            Some(key) => Err(Error::invalid(format!(
                "the URL's parameter {key:?} is not known to {:?}; it takes {}",
                self.scheme,
                known.join(", ")
            ))),
        }
    }
}

/// Parses a duration as people write it: `500ms`, `30s`, `2m`, `1h 30m`.
///
/// # Errors
///
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with an example.
pub fn parse_duration(text: &str) -> Result<Duration> {
    humantime::parse_duration(text.trim()).map_err(|why| {
        Error::invalid(format!(
            "{text:?} is not a duration ({why}): write it like 500ms, 30s or 2m"
        ))
    })
}

fn bad_value(key: &str, value: &str, why: &dyn fmt::Display) -> Error {
    Error::invalid(format!(
        "the URL's parameter {key}={value:?} is wrong: {why}"
    ))
}

/// Refuses what is probably a login in a place where it would be shown: after the host, because a character of the password was not
/// encoded, or in a path, because slashes were forgotten or are too many.
fn refuse_lost_login(scheme: &str, authority: &str, path_and_query: &str) -> Result<()> {
    if !authority.is_empty() {
        if path_and_query.contains('@') {
            return Err(Error::invalid(
                "the URL has an '@' after a '/' or '?': encode '/' as %2F, '?' as %3F and '@' as %40",
            ));
        }
        return Ok(());
    }
    // These are made of a path, and have no passwords.
    let allowed: &[char] = match scheme {
        "file" => &['@', ':'],
        "memory" => &[':'],
        _ => &[],
    };
    let path = path_and_query.split('?').next().unwrap_or_default();
    let hit = |c: char| matches!(c, '@' | ':') && !allowed.contains(&c);
    if path.contains(hit) || (path_and_query.contains('@') && !allowed.contains(&'@')) {
        return Err(Error::invalid(format!(
            "the URL has an '@' or ':' but no host: begin with a scheme and two slashes, write it like \
             {scheme}://user:password@host:port; encode '@' as %40 and ':' as %3A where they belong to a path"
        )));
    }
    Ok(())
}

fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn decode(part: &str, text: &str) -> Result<String> {
    let text = percent_decode_str(text).decode_utf8().map_err(|_| {
        Error::invalid(format!(
            "the URL's {part} is not UTF-8 after percent-decoding: encode each byte of its UTF-8 form, such as %C3%A9 for 'é'"
        ))
    })?;
    Ok(text.into_owned())
}

fn parse_query(query: &str) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            Error::invalid(format!(
                "the URL's parameter {pair:?} has no value: write it like key=value"
            ))
        })?;
        let key = decode("query", key)?;
        if found.contains_key(&key) {
            return Err(Error::invalid(format!(
                "the URL's parameter {key:?} stands there twice: remove one"
            )));
        }
        let value = decode("query", value)?;
        found.insert(key, value);
    }
    Ok(found)
}

impl fmt::Display for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        if !self.hosts.is_empty() {
            f.write_str("//")?;
            if let Some(user) = &self.user {
                write!(f, "{user}@")?;
            }
            for (index, host) in self.hosts.iter().enumerate() {
                if index > 0 {
                    f.write_str(",")?;
                }
                write!(f, "{host}")?;
            }
        }
        f.write_str(&self.path)
    }
}

/// Without the password, and without query values, which may hold one.
impl fmt::Debug for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendUrl")
            .field("url", &self.to_string())
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("parameters", &self.query.keys().collect::<Vec<_>>())
            .finish()
    }
}

#[cfg(test)]
mod tests;
