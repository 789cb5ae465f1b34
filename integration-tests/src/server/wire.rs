//! Small questions over TCP, and who listens where.

use std::fs;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::error::Doing;
use crate::{Error, Result};

/// Sends `question` and returns all that comes until the server closes the connection.
pub(crate) async fn ask(addr: SocketAddr, question: &str) -> Result<String> {
    let deed = || format!("ask {addr}");
    let mut stream = TcpStream::connect(addr).await.doing(deed())?;
    stream.write_all(question.as_bytes()).await.doing(deed())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.doing(deed())?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Sends an HTTP request (a GET, or a POST where there is a body) and returns the body of the answer as JSON.
pub(crate) async fn ask_json(
    addr: SocketAddr,
    path: &str,
    body: Option<&str>,
) -> Result<serde_json::Value> {
    // Version 1.0: no chunks, and the server closes the connection behind its answer.
    let question = match body {
        None => format!("GET {path} HTTP/1.0\r\n\r\n"),
        Some(body) => format!(
            "POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ),
    };
    let answer = ask(addr, &question).await?;
    answer
        .split_once("\r\n\r\n")
        .and_then(|(_, body)| serde_json::from_str(body).ok())
        .ok_or_else(|| Error::answer(path, answer))
}

/// Whether the process listens on this TCP port.
pub(crate) fn listens(pid: u32, port: u16) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    let held: Vec<_> = open
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .collect();
    // The tables of the system's sockets: address:port in hexadecimal, the state (0A = listening), …, the inode.
    ["tcp", "tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")).ok())
        .any(|table| {
            table.lines().skip(1).any(|line| {
                let fields: Vec<_> = line.split_whitespace().collect();
                let [_, local, _, "0A", _, _, _, _, _, inode, ..] = fields[..] else {
                    return false;
                };
                local.ends_with(&format!(":{port:04X}"))
                    && held
                        .iter()
                        .any(|link| link.as_os_str() == format!("socket:[{inode}]").as_str())
            })
        })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_is_found_and_only_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(std::process::id(), port));
        assert!(!listens(1, port), "another process does not hold it");
        drop(listener);
        assert!(!listens(std::process::id(), port));
    }
}
