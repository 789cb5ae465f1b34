//! What the store knows about a lock, for people and tools.

use std::time::{Duration, SystemTime};

use crate::{FencingToken, Mode, Name};

/// A lock with its holders and waiters, as the store sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock.
    pub name: Name,
    /// Who holds it now; empty when it is free.
    pub holders: Vec<HolderInfo>,
    /// Who waits, in order where the store keeps one. Empty where the store does not know its waiters.
    pub waiters: Vec<WaiterInfo>,
}

impl LockInfo {
    /// A free lock.
    pub fn new(name: Name) -> Self {
        Self {
            name,
            holders: Vec::new(),
            waiters: Vec::new(),
        }
    }

    /// Whether anybody holds it.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// assert!(locks.inspect("stock:42").await?.is_locked());
    /// assert!(!locks.inspect("stock:7").await?.is_locked()); // a lock that nobody uses is free
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_locked(&self) -> bool {
        !self.holders.is_empty()
    }
}

/// One holder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct HolderInfo {
    /// The owner as it is written in the store: the attempt id.
    pub owner: String,
    /// The holder's label: program, host and process by default; an election's value.
    pub label: String,
    /// How it is held.
    pub mode: Mode,
    /// The fencing token. Where a grant brings several ([`Capabilities::turns`](crate::Capabilities::turns)), the first: a task to which the
    /// hold was passed on has one of those after it.
    pub token: Option<FencingToken>,
    /// Since when, by the store's clock where it has one.
    pub since: Option<SystemTime>,
    /// How long the store would keep it without a renewal.
    pub expires_in: Option<Duration>,
}

impl HolderInfo {
    /// A holder about whom only the owner is known.
    pub fn new(owner: impl Into<String>, mode: Mode) -> Self {
        Self {
            owner: owner.into(),
            label: String::new(),
            mode,
            token: None,
            since: None,
            expires_in: None,
        }
    }
}

/// One waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct WaiterInfo {
    /// The owner that will hold: the attempt id.
    pub owner: String,
    /// The waiter's label.
    pub label: String,
    /// How it wants to hold.
    pub mode: Mode,
}

impl WaiterInfo {
    /// A waiter about whom only the owner is known.
    pub fn new(owner: impl Into<String>, mode: Mode) -> Self {
        Self {
            owner: owner.into(),
            label: String::new(),
            mode,
        }
    }
}
