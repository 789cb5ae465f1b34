//! The data that the locks protect: a fenced register and an unfenced one for each lock, in a Redis of their own that nothing happens to.

use std::net::SocketAddr;

use dlock_judge::{Line, Op, Phase, Register};
use tokio::io::BufReader;
use tokio::net::TcpStream;

use crate::error::Doing;
use crate::server::resp;
use crate::{Error, Reply, Result};

/// Registers: key, token -> the value, or nothing for a stale token. A read counts as well: without that a stale holder could write between another's
/// read and its first write, and that write would be lost.
const READ: &str = "\
local seen = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
local token = tonumber(ARGV[1])
if token < seen then return false end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
return redis.call('HGET', KEYS[1], 'value') or '0'";

/// Registers: key, list, token, value, who -> 1, or nothing for a stale token.
const WRITE: &str = "\
local seen = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
if tonumber(ARGV[1]) < seen then return false end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'value', ARGV[2])
redis.call('RPUSH', KEYS[2], ARGV[3])
return 1";

/// A connection to them.
#[derive(Debug)]
pub struct Registers {
    stream: BufReader<TcpStream>,
}

impl Registers {
    /// Connects.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn connect(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(addr).await.doing("connect")?;
        stream.set_nodelay(true).doing("set no delay")?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Reads. `None` when the token is stale.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn read(
        &mut self,
        register: Register,
        lock: &str,
        token: u64,
    ) -> Result<Option<u64>> {
        let (key, _) = keys(register, lock);
        let token = fence(register, token);
        let reply = self.ask(&["EVAL", READ, "1", &key, &token]).await?;
        match &reply {
            Reply::Nil => Ok(None),
            reply => {
                let value = reply.text().and_then(|text| text.parse().ok());
                let value = value.ok_or_else(|| Error::answer("read", format!("{reply:?}")))?;
                Ok(Some(value))
            }
        }
    }

    /// Writes. Whether it was taken.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn write(
        &mut self,
        register: Register,
        lock: &str,
        (token, value): (u64, u64),
        (process, attempt): (u32, u64),
    ) -> Result<bool> {
        let (key, list) = keys(register, lock);
        let who = format!("{process} {attempt} {token} {value}");
        let (fence, value) = (fence(register, token), value.to_string());
        let words = ["EVAL", WRITE, "2", &key, &list, &fence, &value, &who];
        Ok(self.ask(&words).await? != Reply::Nil)
    }

    /// The list of what both registers of a lock took, as lines of a history.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn took(&mut self, lock: &str) -> Result<Vec<Line>> {
        let mut lines = Vec::new();
        for register in [Register::Fenced, Register::Unfenced] {
            let (key, list) = keys(register, lock);
            let entries = self.ask(&["LRANGE", &list, "0", "-1"]).await?;
            for entry in entries.list() {
                let text = entry.text().unwrap_or_default();
                let numbers: Vec<u64> = text.split(' ').filter_map(|n| n.parse().ok()).collect();
                let [process, attempt, token, value] = numbers[..] else {
                    return Err(Error::answer("an entry of a register", text));
                };
                let process = u32::try_from(process).expect("it was one");
                let mut line = Line::new(super::now(), process, Op::Took, Phase::Info);
                (line.attempt, line.token, line.value) = (attempt, Some(token), Some(value));
                (line.lock, line.register) = (lock.to_owned(), Some(register));
                lines.push(line);
            }
            self.ask(&["DEL", &key, &list]).await?;
        }
        Ok(lines)
    }

    async fn ask(&mut self, words: &[&str]) -> Result<Reply> {
        resp::exchange(&mut self.stream, words).await
    }
}

fn keys(register: Register, lock: &str) -> (String, String) {
    let kind = match register {
        Register::Fenced => "fenced",
        Register::Unfenced => "unfenced",
    };
    (format!("{kind}:{lock}"), format!("{kind}:took:{lock}"))
}

/// The unfenced one takes every token.
fn fence(register: Register, token: u64) -> String {
    match register {
        Register::Fenced => token.to_string(),
        Register::Unfenced => "0".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_fenced_register_refuses_a_token_lower_than_one_that_only_read() {
        let server = crate::RedisServer::start().await.unwrap();
        let mut registers = Registers::connect(server.addr()).await.unwrap();
        for (register, stale) in [(Register::Fenced, None), (Register::Unfenced, Some(1))] {
            assert_eq!(registers.read(register, "m", 1).await.unwrap(), Some(0));
            assert!(
                registers
                    .write(register, "m", (1, 1), (7, 8))
                    .await
                    .unwrap()
            );
            assert_eq!(registers.read(register, "m", 2).await.unwrap(), Some(1));
            assert_eq!(registers.read(register, "m", 1).await.unwrap(), stale);
            let took = registers
                .write(register, "m", (1, 2), (7, 9))
                .await
                .unwrap();
            assert_eq!(took, stale.is_some());
        }
        let took = registers.took("m").await.unwrap();
        let values: Vec<_> = took.iter().map(|line| (line.attempt, line.value)).collect();
        assert_eq!(values, [(8, Some(1)), (8, Some(1)), (9, Some(2))]);
    }
}
