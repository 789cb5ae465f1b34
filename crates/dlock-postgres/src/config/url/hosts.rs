//! Where the servers are: hosts and ports before the path or as parameters, or the folder of a socket.

use dlock_core::backend::{BackendUrl, Host};
use dlock_core::{Error, Result};

use crate::config::{DEFAULT_PORT, ServerAddress};

/// Takes the folder of a socket out of the place of the host, where libpq allows it percent-encoded.
pub(super) fn without_socket(url: &str) -> Result<(String, Option<String>)> {
    let unchanged = || (url.to_owned(), None);
    let Some((scheme, rest)) = url.split_once("://") else {
        return Ok(unchanged());
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, behind) = rest.split_at(end);
    let (login, host) = match authority.rsplit_once('@') {
        Some((login, host)) => (format!("{login}@"), host),
        None => (String::new(), authority),
    };
    if !host.to_ascii_lowercase().starts_with("%2f") {
        return Ok(unchanged());
    }
    let (folder, port) = match host.split_once(':') {
        Some((folder, port)) => (folder, format!("?port={port}")),
        None => (host, String::new()),
    };
    // Read by the same parser, as a parameter.
    let folder = BackendUrl::parse(&format!("postgres:?host={folder}"))?.take::<String>("host")?;
    let behind = match (port.is_empty(), behind.split_once('?')) {
        (true, _) => behind.to_owned(),
        (false, Some((path, query))) => format!("{path}{port}&{query}"),
        (false, None) => format!("{behind}{port}"),
    };
    Ok((format!("{scheme}://{login}{behind}"), folder))
}

/// The servers that a URL names, by whichever of libpq's ways.
pub(super) fn servers(url: &mut BackendUrl, socket: Option<String>) -> Result<Vec<ServerAddress>> {
    let host: Option<String> = url.take("host")?;
    let port: Option<String> = url.take("port")?;
    let ports = port.as_deref().map(ports).transpose()?.unwrap_or_default();
    let hosts = url.hosts();
    if !hosts.is_empty() || socket.is_some() {
        if host.is_some() || (port.is_some() && socket.is_none()) {
            return Err(Error::invalid(
                "the URL names its host twice, before the path and as host or port: remove one",
            ));
        }
        if let Some(folder) = socket {
            let port = ports.first().copied().unwrap_or(DEFAULT_PORT);
            return Ok(vec![ServerAddress::Unix(folder.into(), port)]);
        }
        return Ok(hosts.iter().cloned().map(ServerAddress::Tcp).collect());
    }
    let Some(host) = host else {
        return Ok(Vec::new());
    };
    let hosts: Vec<&str> = host.split(',').collect();
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(Error::invalid(format!(
            "the URL has {} hosts and {} ports: give one port for all hosts, or one for each",
            hosts.len(),
            ports.len()
        )));
    }
    let server = |(number, host): (usize, &&str)| {
        let port = ports.get(number).or(ports.first()).copied();
        match host.starts_with('/') {
            true => ServerAddress::Unix(host.into(), port.unwrap_or(DEFAULT_PORT)),
            false => ServerAddress::Tcp(Host {
                name: (*host).to_owned(),
                port,
            }),
        }
    };
    Ok(hosts.iter().enumerate().map(server).collect())
}

fn ports(text: &str) -> Result<Vec<u16>> {
    let one = |port: &str| {
        match port {
        "" => Ok(DEFAULT_PORT),
        port => port.parse().map_err(|_| {
            Error::invalid(format!(
                "the URL's parameter port={text:?} is wrong: it is a number, or one for each host with commas"
            ))
        }),
    }
    };
    text.split(',').map(one).collect()
}
