//! `--heartbeat`: tells a watchman when the command starts and how it ends, so that a job that never runs is noticed.
//!
//! A web address is asked for `ADDRESS/start`, `ADDRESS` and `ADDRESS/fail`, as the common services want it; a file holds the last word.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::exit::say;
use crate::run::report::replace;

/// Nobody waits longer for a watchman.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heartbeat {
    File(PathBuf),
    Http {
        /// With its port.
        address: String,
        /// As it stands in the URL.
        host: String,
        path: String,
        query: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beat {
    Start,
    Success,
    Failure,
}

impl FromStr for Heartbeat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("https://") {
            return Err(
                "dlock speaks plain http only: give an http address, such as that of a proxy on this host, or a file"
                    .to_owned(),
            );
        }
        let Some(rest) = text.strip_prefix("http://") else {
            if text.is_empty() || text.contains("://") {
                return Err("write an http address or the path of a file".to_owned());
            }
            return Ok(Self::File(text.into()));
        };
        let (host, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (path, query) = match path.split_once('?') {
            Some((path, query)) => (path, format!("?{query}")),
            None => (path, String::new()),
        };
        if host.is_empty() || host.contains('@') || text.contains(char::is_whitespace) {
            return Err("write the address as http://host:port/path, without a login".to_owned());
        }
        // The port comes after the last colon that is not inside the brackets of an IPv6 address.
        let after_brackets = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
        let address = if after_brackets.contains(':') {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        Ok(Self::Http {
            address,
            host: host.to_owned(),
            path: path.trim_end_matches('/').to_owned(),
            query,
        })
    }
}

impl Heartbeat {
    /// Tells it. A watchman who cannot be reached is told of on stderr, and changes nothing else.
    pub(crate) async fn beat(&self, beat: Beat, detail: &str) {
        let told = match self {
            Self::File(path) => {
                let word = match beat {
                    Beat::Start => "start",
                    Beat::Success => "success",
                    Beat::Failure => "failure",
                };
                let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now());
                let line = format!("{word} {now} {detail}");
                replace(path, &format!("{}\n", line.trim_end())).map_err(|error| error.to_string())
            }
            Self::Http { .. } => match tokio::time::timeout(PATIENCE, self.ask(beat)).await {
                Ok(told) => told,
                Err(_) => Err(format!("no answer within {PATIENCE:?}")),
            },
        };
        if let Err(why) = told {
            say(format_args!("the heartbeat did not get through: {why}"));
        }
    }

    async fn ask(&self, beat: Beat) -> Result<(), String> {
        let Self::Http {
            address,
            host,
            path,
            query,
        } = self
        else {
            return Ok(());
        };
        let ending = match beat {
            Beat::Start => "/start",
            Beat::Success if path.is_empty() => "/",
            Beat::Success => "",
            Beat::Failure => "/fail",
        };
        let request = format!(
            "GET {path}{ending}{query} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: dlock\r\nConnection: close\r\n\r\n"
        );
        let answer = async {
            let mut stream = TcpStream::connect(address.as_str()).await?;
            stream.write_all(request.as_bytes()).await?;
            // "HTTP/1.1 200" is all that matters.
            let mut start = [0; 12];
            stream.read_exact(&mut start).await?;
            std::io::Result::Ok(start)
        };
        let start = answer.await.map_err(|error| error.to_string())?;
        match start.get(9) {
            Some(b'2') if start.starts_with(b"HTTP/") => Ok(()),
            _ => Err(format!(
                "{host} answered {:?}",
                String::from_utf8_lossy(&start)
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_files_are_told_apart() {
        let http = |text: &str| match text.parse() {
            Ok(Heartbeat::Http {
                address,
                path,
                query,
                ..
            }) => (address, path, query),
            other => (format!("{other:?}"), String::new(), String::new()),
        };
        for (text, address, path, query) in [
            ("http://h", "h:80", "", ""),
            ("http://h:81/a/", "h:81", "/a", ""),
            ("http://h/a?b=/c", "h:80", "/a", "?b=/c"),
            ("http://[::1]/a", "[::1]:80", "/a", ""),
            ("http://[::1]:8/a", "[::1]:8", "/a", ""),
        ] {
            let expected = (address.to_owned(), path.to_owned(), query.to_owned());
            assert_eq!(http(text), expected, "{text}");
        }
        assert_eq!("/x/y".parse(), Ok(Heartbeat::File("/x/y".into())));
        for text in ["", "https://h", "ftp://h", "http://", "http://a:b@h/"] {
            assert!(text.parse::<Heartbeat>().is_err(), "{text}");
        }
    }
}
