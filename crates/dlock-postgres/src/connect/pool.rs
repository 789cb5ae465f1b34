//! The connections themselves: how they are made, and those that nobody uses now.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use dlock_core::{ErrorKind, kit};

use super::wire::{Often, Sink, Wire};
use crate::config::Config;
use crate::error::Trouble;

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) config: Config,
    idle: Mutex<Vec<Wire>>,
    pub(super) closed: AtomicBool,
    /// Which of the servers took writes when it was asked last.
    server: AtomicUsize,
    /// What a new connection is told, see [`Wire::learn`].
    pub(super) often: OnceLock<Vec<Often>>,
}

impl Pool {
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            idle: Mutex::default(),
            closed: AtomicBool::new(false),
            server: AtomicUsize::new(0),
            often: OnceLock::new(),
        }
    }

    /// A connection that calls share.
    pub(super) async fn open_shared(&self, direct: bool) -> Result<Wire, Trouble> {
        let mut wire = self.open(None).await?;
        if direct && let Some(often) = self.often.get() {
            let limit = self.config.connect_timeout;
            let learnt = tokio::time::timeout(limit, wire.learn(often)).await;
            let late = |_| {
                let text = format!("the server did not answer within {limit:?} at login");
                Err(Trouble::new(ErrorKind::TimedOut, text))
            };
            learnt.unwrap_or_else(late).map_err(Trouble::unsent)?;
        }
        Ok(wire)
    }

    /// Connects, to the one that takes writes if there are several.
    pub(super) async fn open(&self, sink: Option<Sink>) -> Result<Wire, Trouble> {
        if self.is_closed() {
            return Err(closed());
        }
        let config = &self.config;
        let many = config.servers.len() > 1;
        let first = self.server.load(Ordering::Relaxed);
        let mut troubles: Vec<Trouble> = Vec::new();
        for step in 0..config.servers.len() {
            let number = (first + step) % config.servers.len();
            let Some(server) = config.servers.get(number) else {
                continue;
            };
            let outcome = async {
                let mut wire = Wire::open(config, server, sink.clone()).await?;
                if many {
                    let asked = wire.ask(TAKES_WRITES, &[]);
                    let rows = tokio::time::timeout(config.connect_timeout, asked)
                        .await
                        .map_err(|_| {
                            Trouble::new(
                                ErrorKind::TimedOut,
                                format!("{server} did not tell whether it takes writes"),
                            )
                            .unsent()
                        })??;
                    let writable = rows.first().and_then(|row| row.try_get(0).ok());
                    if writable != Some(true) {
                        return Err(Trouble::read_only(&server.to_string()));
                    }
                }
                Ok(wire)
            };
            match outcome.await {
                Ok(wire) => {
                    self.server.store(number, Ordering::Relaxed);
                    return Ok(wire);
                }
                Err(trouble) => troubles.push(trouble),
            }
        }
        let all: Vec<&str> = troubles.iter().map(Trouble::message).collect();
        let all = all.join("; ");
        match troubles.pop() {
            Some(last) if troubles.is_empty() => Err(last.unsent()),
            Some(last) => {
                Err(Trouble::new(last.kind(), format!("no host will do: {all}")).unsent())
            }
            None => Err(closed()),
        }
    }

    pub(super) fn put(&self, wire: Wire) {
        let mut idle = self.idle();
        if !self.is_closed() && wire.is_open() && idle.len() < self.config.connections {
            idle.push(wire);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(super) fn idle(&self) -> MutexGuard<'_, Vec<Wire>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a server may give locks. A standby says that it is in recovery.
pub(crate) const TAKES_WRITES: &str =
    "SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off'";

pub(super) fn closed() -> Trouble {
    Trouble::from(kit::closed()).unsent()
}
