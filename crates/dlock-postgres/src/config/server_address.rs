use std::fmt;
use std::path::PathBuf;

use dlock_core::backend::Host;

use super::DEFAULT_PORT;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServerAddress {
    Tcp(Host),
    /// The folder of its socket, and the port in the socket's name.
    Unix(PathBuf, u16),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host) => f.write_str(&host.with_port(DEFAULT_PORT)),
            Self::Unix(folder, port) => write!(f, "{}:{port}", folder.display()),
        }
    }
}
