use std::fmt;

/// How a lock is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LockMode {
    /// A row with the time until which it is held.
    #[default]
    Lease,
    /// An advisory lock of a connection of its own, which the server frees with the connection.
    Session,
}

impl fmt::Display for LockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lease => "lease",
            Self::Session => "session",
        })
    }
}
