//! The one parser for backend URLs, which may name several hosts.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::{Error, Result};

/// A backend URL in parts: `scheme://user:password@host1:port,host2:port/path?key=value`.
///
/// `memory:` and `file:/path` have no hosts. Text is percent-decoded. `Debug` and `Display` leave the password out.
/// A backend takes the query parameters it knows with [`take`](BackendUrl::take) and then calls
/// [`finish`](BackendUrl::finish), so that none is ignored in silence.
///
/// ```
/// use dlock_core::BackendUrl;
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

/// One host of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// A name or an address; an IPv6 address without its brackets.
    pub name: String,
    /// The port, if given.
    pub port: Option<u16>,
}

impl Host {
    /// `name:port`, with `default` when no port was given; IPv6 addresses in brackets.
    pub fn with_port(&self, default: u16) -> String {
        format!("{}:{}", self.bracketed(), self.port.unwrap_or(default))
    }

    fn bracketed(&self) -> String {
        if self.name.contains(':') {
            format!("[{}]", self.name)
        } else {
            self.name.clone()
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.bracketed())?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl BackendUrl {
    /// Takes a URL apart.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), naming the part that is wrong. The message never holds the password.
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
        if let Some(bad) = url.chars().find(|c| c.is_control() || *c == ' ') {
            return Err(Error::invalid(format!(
                "the URL holds {bad:?}: write it percent-encoded"
            )));
        }
        if rest.contains('#') {
            return Err(Error::invalid(
                "the URL has a fragment ('#…'): encode a '#' in a password as %23",
            ));
        }
        let (authority, path_and_query) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len())),
            None => ("", rest),
        };
        if !authority.is_empty() && !authority.contains('@') && path_and_query.contains('@') {
            // Probably a password with a '/' or '?' in it: say so without showing it.
            return Err(Error::invalid(
                "the URL has an '@' after a '/' or '?': encode '/' as %2F, '?' as %3F and '@' as %40",
            ));
        }
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
            scheme: scheme.to_ascii_lowercase(),
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

    /// Ends the reading of parameters.
    ///
    /// # Errors
    ///
    /// Names a parameter nobody took, and lists `known`, the ones this backend takes.
    pub fn finish(&self, known: &[&str]) -> Result<()> {
        match self.query.keys().next() {
            None => Ok(()),
            Some(key) if known.contains(&key.as_str()) => Err(Error::invalid(format!(
                "the URL's parameter {key:?} does not go together with the others"
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

fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn decode(part: &str, text: &str) -> Result<String> {
    let text = percent_decode_str(text).decode_utf8().map_err(|_| {
        Error::invalid(format!(
            "the URL's {part} is not UTF-8 after percent-decoding"
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

fn parse_hosts(hosts: &str) -> Result<Vec<Host>> {
    if hosts.is_empty() {
        return Ok(Vec::new());
    }
    hosts.split(',').map(parse_host).collect()
}

fn parse_host(text: &str) -> Result<Host> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']').ok_or_else(|| {
                Error::invalid(format!("the URL's host {text:?} lacks its closing bracket"))
            })?;
            (name, port.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        },
    };
    if name.is_empty() {
        return Err(Error::invalid(format!(
            "the URL has an empty host name in {text:?}: write host or host:port, several with commas"
        )));
    }
    let port = port
        .map(|port| {
            port.parse().map_err(|_| {
                Error::invalid(format!(
                    "the URL's port {port:?} of host {name:?} is not a number from 0 to 65535"
                ))
            })
        })
        .transpose()?;
    Ok(Host {
        name: decode("host", name)?,
        port,
    })
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_forms_have_no_host() {
        for (text, scheme, path) in [
            ("memory:", "memory", ""),
            ("memory://", "memory", ""),
            ("file:/var/lock", "file", "/var/lock"),
            ("file:///var/lock", "file", "/var/lock"),
            ("FILE:rel/dir", "file", "rel/dir"),
        ] {
            let url = BackendUrl::parse(text).expect(text);
            assert_eq!((url.scheme(), url.path()), (scheme, path), "{text}");
            assert!(url.hosts().is_empty());
        }
    }

    #[test]
    fn every_part_is_decoded() {
        let url = BackendUrl::parse("zk://us%40er:p%3Aa%23@[::1]:2181,b/ch%20root").expect("good");
        assert_eq!(url.user(), Some("us@er"));
        assert_eq!(url.password(), Some("p:a#"));
        assert_eq!(url.hosts()[0].with_port(1), "[::1]:2181");
        assert_eq!(url.hosts()[1].with_port(1), "b:1");
        assert_eq!(url.path(), "/ch root");
    }

    #[test]
    fn mistakes_name_the_part() {
        for (text, expected) in [
            ("localhost", "no scheme"),
            ("://x", "scheme must be"),
            ("redis://h:port", "port \"port\""),
            ("redis://h:99999", "port \"99999\""),
            ("redis://a,,b", "empty host name"),
            ("redis://[::1", "closing bracket"),
            ("redis://h?x", "\"x\" has no value"),
            ("redis://h?x=1&x=2", "twice"),
            ("redis://h/#f", "fragment"),
            ("redis://h/a b", "percent-encoded"),
            ("redis://h/%ff", "path is not UTF-8"),
            ("redis://u:pa/ss@h", "encode '/' as %2F"),
            ("redis://u:pa?ss@h", "encode '/' as %2F"),
        ] {
            let error = BackendUrl::parse(text).expect_err(text);
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn unknown_and_bad_parameters_are_named() {
        let mut url = BackendUrl::parse("x://h?n=abc&d=fast&other=1").expect("good");
        let error = url.take::<u32>("n").expect_err("not a number");
        assert!(error.to_string().contains("n=\"abc\""), "{error}");
        let error = url.take_duration("d").expect_err("not a duration");
        assert!(error.to_string().contains("500ms"), "{error}");
        let error = url.finish(&["n", "d"]).expect_err("unknown");
        assert!(error.to_string().contains("it takes n, d"), "{error}");
    }

    #[test]
    fn the_password_is_never_shown() {
        let url = BackendUrl::parse("x://me:hunter2@h/?token=hunter2").expect("good");
        assert!(!format!("{url:?} {url}").contains("hunter2"));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC*") {
            let _ = BackendUrl::parse(&text);
        }

        #[test]
        fn any_password_survives_encoding_and_stays_hidden(password in "[^\\x00]{8,40}") {
            let encoded = percent_encoding::utf8_percent_encode(&password, percent_encoding::NON_ALPHANUMERIC);
            let url = BackendUrl::parse(&format!("x://u:{encoded}@h")).expect("good");
            prop_assert_eq!(url.password(), Some(password.as_str()));
            prop_assert!(!url.to_string().contains(&password));
        }
    }
}
