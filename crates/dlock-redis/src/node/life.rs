//! Which life of a server answers, and how old it is: one that came back without its data has forgotten who holds.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use dlock_core::{Error, Result};

use super::Node;
use crate::acquire::unexpected_reply;
use crate::connect::RedisReply;

/// One life of a server process, as seen on one connection.
#[derive(Debug, Clone)]
pub struct Life {
    connection: u64,
    run_id: Arc<str>,
    /// It ran already at this moment, for `uptime`.
    seen: Instant,
    uptime: Duration,
}

impl Life {
    /// Redis' own name for this life: another after every start.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// How long the server has been running at least, by its own clock and then by ours.
    pub fn age(&self) -> Duration {
        self.uptime.saturating_add(self.seen.elapsed())
    }
}

impl Node {
    /// Which life of the server answers on the connection in use. One trip for each new connection, none otherwise.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked, or the user lacks the permission for `INFO`.
    pub async fn life(&self) -> Result<Life> {
        let known = self.known_life();
        if let Some(life) = known
            && self.is_same(&life)
        {
            return Ok(life);
        }
        let (connection, info) = Box::pin(self.store.link.server_info())
            .await
            .map_err(|trouble| trouble.about("asking for its age (INFO server)").unsent())?;
        let life = read_life(connection, &info).ok_or_else(|| {
            Error::from(unexpected_reply("INFO server in an unknown form").unsent())
        })?;
        *self.life.lock().unwrap_or_else(PoisonError::into_inner) = Some(life.clone());
        Ok(life)
    }

    fn known_life(&self) -> Option<Life> {
        self.life
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The number of the connection in use, if there is one; a new connection has a higher one.
    pub fn connection(&self) -> Option<u64> {
        self.store.link.number()
    }

    /// Whether the connection is still the one on which this life was seen. A server that restarts ends all connections, so
    /// what was asked and answered while this stays true was answered by this life.
    pub fn is_same(&self, life: &Life) -> bool {
        self.store.link.number() == Some(life.connection)
    }
}

fn read_life(connection: u64, info: &RedisReply) -> Option<Life> {
    let RedisReply::Text(info) = info else {
        return None;
    };
    let field = |name: &str| {
        info.lines()
            .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    };
    Some(Life {
        connection,
        run_id: field("run_id")?.into(),
        seen: Instant::now(),
        // The server subtracts the time of its start from the time now, both without their fractions: after 0.07 s it may say 1. So
        // it has certainly run for a second less. Below zero its clock has been set back since it started: how long ago that was
        // is not known.
        uptime: Duration::from_secs(
            field("uptime_in_seconds")?
                .parse::<i64>()
                .ok()?
                .saturating_sub(1)
                .try_into()
                .unwrap_or(0),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_a_server_is_read() {
        let info = RedisReply::Text("# Server\r\nrun_id:abc\r\nuptime_in_seconds:7\r\n".to_owned());
        let life = read_life(1, &info).expect("both fields");
        assert_eq!(life.run_id(), "abc");
        assert!(life.age() >= Duration::from_secs(6) && life.age() < Duration::from_secs(7));
        let info = RedisReply::Text("run_id:abc\r\nuptime_in_seconds:-3600\r\n".to_owned());
        let life = read_life(1, &info).expect("a clock that was set back");
        assert!(life.age() < Duration::from_secs(7));
        assert!(read_life(1, &RedisReply::Text("run_id:abc".to_owned())).is_none());
        assert!(read_life(1, &RedisReply::Nothing).is_none());
    }
}
