//! What can go wrong while a server is started or asked.

use std::time::Duration;
use std::{fmt, io};

/// The result of everything here that talks to a server or to the system.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a server could not be started, stopped or asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A program or a file that a server needs is not on this machine.
    NotInstalled {
        /// The program or file.
        what: String,
        /// The Debian package that brings it.
        package: &'static str,
    },

    /// The system refused something.
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        source: io::Error,
    },

    /// A server ended before it answered. The message carries the end of its log.
    Ended {
        /// The kind of server.
        server: &'static str,
        /// The last lines of the log.
        tail: String,
    },

    /// Somebody else has the port that the server was given.
    PortTaken {
        /// The kind of server.
        server: &'static str,
        /// The last lines of the log.
        tail: String,
    },

    /// Something awaited did not come in time.
    TimedOut {
        /// What was awaited.
        what: String,
        /// How long.
        limit: Duration,
        /// What the last look showed.
        last: String,
    },

    /// A server answered something other than what the question asks for.
    Answer {
        /// The question.
        asked: String,
        /// What came back.
        answer: String,
    },
}

impl Error {
    /// Whether waiting longer cannot help.
    pub(crate) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::NotInstalled { .. } | Self::Ended { .. } | Self::PortTaken { .. }
        )
    }

    /// An unexpected answer to a question. What a look of [`until`](crate::until) returns for "not yet".
    pub fn answer(asked: impl Into<String>, answer: impl Into<String>) -> Self {
        Self::Answer {
            asked: asked.into(),
            answer: answer.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInstalled { what, package } => {
                write!(
                    f,
                    "{what} was not found: run ci/setup or `apt-get install {package}`"
                )
            }
            Self::Io { what, source } => write!(f, "{what}: {source}"),
            Self::Ended { server, tail } => {
                write!(
                    f,
                    "{server} ended before it was ready; the end of its log:\n{tail}"
                )
            }
            Self::PortTaken { server, tail } => {
                write!(
                    f,
                    "{server} could not bind its port; the end of its log:\n{tail}"
                )
            }
            Self::TimedOut { what, limit, last } => {
                write!(f, "{what}: not so after {limit:?}; last answer: {last}")
            }
            Self::Answer { asked, answer } => write!(f, "{asked}: unexpected answer: {answer}"),
        }
    }
}

impl From<io::Error> for Error {
    fn from(source: io::Error) -> Self {
        Self::Io {
            what: "the system".to_owned(),
            source,
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Says what was being done when the system refused.
pub(crate) trait Doing<T> {
    /// Turns the error into an [`Error::Io`] that names the deed.
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::Io {
            what: what.into(),
            source: source.into(),
        })
    }
}
