//! As much of the Redis protocol as readiness checks and tests need, without a client crate.

use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::error::Doing;
use crate::{Error, Result};

/// What a Redis server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Nothing there.
    Nil,
    /// A number.
    Number(i64),
    /// A status or a string.
    Text(String),
    /// Several answers.
    List(Vec<Reply>),
}

impl Reply {
    /// The text of a status, a string or a number; `None` for the others.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Number(number) => Some(number.to_string()),
            Self::Nil | Self::List(_) => None,
        }
    }

    /// The parts of a list; empty for the others.
    #[must_use]
    pub fn list(&self) -> &[Self] {
        match self {
            Self::List(parts) => parts,
            _ => &[],
        }
    }

    /// The value behind a key in a flat list of keys and values.
    #[must_use]
    pub fn field(&self, key: &str) -> Option<String> {
        self.list()
            .chunks_exact(2)
            .find(|pair| pair[0].text().as_deref() == Some(key))?[1]
            .text()
    }
}

/// Sends one command on a connection of its own, after `AUTH` where there is a password.
///
/// An error reply of the server is an [`Error::Answer`].
pub(crate) async fn ask(
    addr: SocketAddr,
    password: Option<&str>,
    command: &[&str],
) -> Result<Reply> {
    let mut replies = ask_all(addr, password, &[command]).await?;
    Ok(replies.remove(0))
}

/// Sends commands one after the other on one connection.
pub(crate) async fn ask_all(
    addr: SocketAddr,
    password: Option<&str>,
    commands: &[&[&str]],
) -> Result<Vec<Reply>> {
    let stream = TcpStream::connect(addr)
        .await
        .doing(format!("connect to {addr}"))?;
    let mut stream = BufReader::new(stream);
    if let Some(password) = password {
        exchange(&mut stream, &["AUTH", password]).await?;
    }
    let mut replies = Vec::with_capacity(commands.len());
    for command in commands {
        replies.push(exchange(&mut stream, command).await?);
    }
    Ok(replies)
}

pub(crate) async fn exchange(stream: &mut BufReader<TcpStream>, command: &[&str]) -> Result<Reply> {
    let mut request = format!("*{}\r\n", command.len());
    for word in command {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    // Only the verb goes into errors: the rest may hold a password.
    let verb = command.first().copied().unwrap_or_default();
    stream.write_all(request.as_bytes()).await.doing(verb)?;
    read(stream, verb).await
}

async fn read(stream: &mut BufReader<TcpStream>, verb: &str) -> Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line).await.doing(verb)?;
    let odd = || Error::answer(verb, &*line);
    let (kind, rest) = line.trim_end().split_at_checked(1).ok_or_else(odd)?;
    let number = || rest.parse::<i64>().map_err(|_| odd());
    match kind {
        "+" => Ok(Reply::Text(rest.to_owned())),
        ":" => Ok(Reply::Number(number()?)),
        "$" | "*" => {
            let Ok(length) = usize::try_from(number()?) else {
                return Ok(Reply::Nil);
            };
            if kind == "$" {
                let mut bytes = vec![0; length + 2];
                stream.read_exact(&mut bytes).await.doing(verb)?;
                bytes.truncate(length);
                return Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()));
            }
            let mut parts = Vec::with_capacity(length);
            for _ in 0..length {
                parts.push(Box::pin(read(stream, verb)).await?);
            }
            Ok(Reply::List(parts))
        }
        _ => Err(odd()),
    }
}
