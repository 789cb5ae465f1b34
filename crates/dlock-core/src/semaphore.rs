use std::time::Duration;

use crate::acquire::Ask;
use crate::{Guard, Mode, Name, Result};

/// A lock for at most `limit` holders at a time, each with a lease of its own.
///
/// Made by [`Locks::semaphore`](crate::Locks::semaphore). Everybody must give the same limit: while a semaphore is in
/// use, another limit is [`ErrorKind::Conflict`](crate::ErrorKind::Conflict). Not reentrant, whatever the owner: each
/// acquire takes a permit.
///
/// # Cancel safety
///
/// As for [`Mutex`](crate::Mutex).
#[derive(Debug, Clone)]
pub struct Semaphore {
    ask: Ask,
}

impl Semaphore {
    pub(crate) fn new(ask: Ask) -> Self {
        Self { ask }
    }

    /// Waits for a permit.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`](crate::Mutex::lock), and `Conflict` for another limit than the one in use.
    pub async fn acquire(&self) -> Result<Guard> {
        self.ask.wait().await
    }

    /// Takes a permit if one is free; `None` otherwise.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Semaphore::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.ask.try_now().await
    }

    /// Waits at most `limit` for a permit.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Semaphore::acquire).
    pub async fn acquire_within(&self, limit: Duration) -> Result<Option<Guard>> {
        self.ask.within(limit).await
    }

    /// Does the work with a permit, as [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run`](crate::Mutex::run).
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        self.acquire().await?.run(work).await
    }

    /// How many permits there are.
    pub fn limit(&self) -> u32 {
        match self.ask.mode {
            Mode::Permit { limit } => limit,
            _ => 1,
        }
    }

    /// The semaphore's name.
    pub fn name(&self) -> &Name {
        &self.ask.name
    }
}
