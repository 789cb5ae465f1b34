//! The hosts of a URL.

use std::fmt;
use std::net::Ipv6Addr;

use super::decode;
use crate::{Error, Result};

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

/// `host1:port,host2`; none when the text is empty.
pub(super) fn parse_hosts(text: &str) -> Result<Vec<Host>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    text.split(',').map(parse_host).collect()
}

/// What stands in the place of a port can be a password whose host was forgotten (`redis://user:password`), so no message here shows
/// it, nor the whole text.
fn parse_host(text: &str) -> Result<Host> {
    let (name, port, bracketed) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) = rest.split_once(']').ok_or_else(|| {
                Error::invalid(
                    "a host of the URL lacks its closing bracket: write an IPv6 address like [::1]:6379",
                )
            })?;
            let port = match rest.strip_prefix(':') {
                None if !rest.is_empty() => {
                    return Err(Error::invalid(
                        "the URL has something between the bracket of a host and its port: write [::1]:6379",
                    ));
                }
                port => port,
            };
            (name, port, true)
        }
        None => match text.split_once(':') {
            Some((name, port)) => (name, Some(port), false),
            None => (text, None, false),
        },
    };
    if name.is_empty() && !bracketed {
        return Err(Error::invalid(
            "the URL has an empty host name: write host or host:port, several with commas, and a login as user:password@host",
        ));
    }
    let name = decode("host", name)?;
    check_name(&name, bracketed)?;
    let port = port.map(|port| parse_port(&name, port)).transpose()?;
    Ok(Host { name, port })
}

fn parse_port(name: &str, port: &str) -> Result<u16> {
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    port.parse()
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| {
            Error::invalid(format!(
                "the port of {name:?} is not a number from 0 to 65535 (not shown, as it may be a password): write host:port, and if \
                 that was a login, write user:password@host"
            ))
        })
}

/// Names go into connection strings and requests of the clients, so nothing may be in them that ends a host or a line there.
fn check_name(name: &str, bracketed: bool) -> Result<()> {
    let bad = |c: &char| {
        c.is_control() || c.is_whitespace() || "/?#@,[]\\".contains(*c) || (*c == ':' && !bracketed)
    };
    if let Some(found) = name.chars().find(bad) {
        return Err(Error::invalid(format!(
            "a host of the URL holds the character {found:?}, percent-encoded: give a host name or an IP address"
        )));
    }
    // After a '%' comes the zone of a link-local address, such as eth0.
    let address = name.split_once('%').map_or(name, |(address, _)| address);
    if bracketed && address.parse::<Ipv6Addr>().is_err() {
        return Err(Error::invalid(
            "a host of the URL is in brackets and is not an IPv6 address: brackets are for IPv6, write other hosts without",
        ));
    }
    Ok(())
}
