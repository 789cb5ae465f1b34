use std::fmt;

/// How locks are kept in the database. Every program that shares a lock must use the same mode and the same table prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LockMode {
    /// One row for each lock with the time until which it is held. The next of those who wait is woken by a `GET_LOCK` that goes from
    /// holder to holder, as a hint ([`Config::bells`](crate::Config::bells)). The default: few connections, read-write locks and semaphores, tokens that never start again.
    #[default]
    Lease,
    /// A row with a unique key while the lock is held, and none while it is free. Who waits is woken as in `Lease`.
    Unique,
    /// `SELECT … FOR UPDATE` on a connection of its own for each holder and each waiter. The server queues the waiters and
    /// wakes the next one at once; the lock is free when the connection ends.
    Session,
    /// `GET_LOCK` on a connection of its own for each holder and each waiter. As `Session`, but without a transaction that stays open
    /// while the lock is held.
    Advisory,
}

impl LockMode {
    /// As it stands in a URL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Unique => "unique",
            Self::Session => "session",
            Self::Advisory => "advisory",
        }
    }
}

impl fmt::Display for LockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
