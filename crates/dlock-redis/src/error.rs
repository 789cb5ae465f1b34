//! Client error -> [`dlock_core::Error`].

#[cfg(test)]
mod tests;

use dlock_core::ErrorKind;
use dlock_core::kit::{self, with_advice};
use redis::{ErrorKind as RedisKind, RedisError, ServerErrorKind};

kit::trouble! {
    /// What befell one trip.
    pub(crate) struct Trouble {
        /// Whether the server itself said so.
        pub(crate) answered: bool,
        /// A cluster that is being rearranged did nothing, and will take the same request in a moment.
        pub(crate) passing: bool,
        /// Whether the connection can no longer be used.
        pub(crate) broken: bool,
        /// A cluster's client has no connection to the node that is responsible, or none at all.
        pub(crate) lacks_connection: bool,
    }
}

impl Trouble {
    /// The way it went is of no more use.
    #[must_use]
    pub(crate) fn breaking(mut self) -> Self {
        self.broken = true;
        self
    }

    /// Whether the same can be tried once more on its own, on a new connection: this one broke, or the server refused what went with others.
    pub(crate) fn may_go_again(&self) -> bool {
        self.broken && (self.is_sent() || self.answered)
    }

    /// Whether the server has answered, with a word that may be about the request alone.
    pub(crate) fn is_of_the_server(&self) -> bool {
        (self.is_sent() || self.answered) && !self.broken && self.kind() != ErrorKind::TimedOut
    }

    /// The cluster has been rearranged for longer than we could wait.
    #[must_use]
    pub(crate) fn of_a_cluster(self) -> Self {
        if !self.passing {
            return self;
        }
        let message = match std::error::Error::source(&self.error) {
            Some(source) => format!("the cluster is being rearranged ({source})"),
            None => self.message().to_owned(),
        };
        self.retold(ErrorKind::Unreachable, message)
    }
}

impl From<RedisError> for Trouble {
    fn from(error: RedisError) -> Self {
        let (kind, advice, retryable) = classify(&error);
        let new = Self::new(kind, with_advice(advice, &error));
        let new = Self {
            answered: matches!(error.kind(), RedisKind::Server(_) | RedisKind::Extension),
            passing: is_passing(&error),
            broken: kind == ErrorKind::Unreachable && error.is_unrecoverable_error()
                || error.is_io_error() && !error.is_timeout()
                || error.kind() == RedisKind::Parse
                || is_read_only(&error),
            lacks_connection: error.kind() == RedisKind::ClusterConnectionNotFound,
            ..if retryable { new } else { new.for_good() }
        };
        let new = if is_refusal(&error) {
            new.unsent()
        } else {
            new
        };
        new.because_of(error)
    }
}

fn is_read_only(error: &RedisError) -> bool {
    error.kind() == RedisKind::Server(ServerErrorKind::ReadOnly)
        || error.code() == Some("ERR") && error.to_string().contains("-READONLY")
}

/// Whether a cluster that is being rearranged, or a node of it that is not ready, refused the request for now.
fn is_passing(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        RedisKind::ClusterConnectionNotFound
            | RedisKind::Server(
                ServerErrorKind::Moved
                    | ServerErrorKind::Ask
                    | ServerErrorKind::TryAgain
                    | ServerErrorKind::ClusterDown
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::BusyLoading
                    | ServerErrorKind::ReadOnly
            )
    )
}

/// Whether the server has said that it did nothing. It refuses a request before it looks at its script; and since each of our scripts begins
/// with a write, what it refuses to write it refuses before anything is changed. Any other error of a script may come from its middle.
fn is_refusal(error: &RedisError) -> bool {
    let refused = |word: &str| {
        error.code() == Some(word)
            // Before Redis 7 what stopped a script is inside another error.
            || error.code() == Some("ERR") && error.to_string().contains(&format!("-{word} "))
    };
    is_passing(error)
        || is_read_only(error)
        // From 7.2 on a command inside a script is refused by the same word.
        || refused("NOPERM") && !error.to_string().contains("in script")
        || ["NOAUTH", "WRONGPASS", "MISCONF", "NOREPLICAS", "OOM", "BUSY", "CROSSSLOT"]
            .into_iter()
            .any(refused)
}

/// The kind, what to tell a person, and whether to try again.
fn classify(error: &RedisError) -> (ErrorKind, &'static str, bool) {
    let text = error.to_string();
    let says = |part: &str| text.contains(part);
    match error.kind() {
        RedisKind::Io if error.is_timeout() => (
            ErrorKind::TimedOut,
            "the server did not answer in time",
            true,
        ),
        RedisKind::Io if error.is_connection_refusal() => (
            ErrorKind::Unreachable,
            "nobody listens there: is the server running?",
            true,
        ),
        RedisKind::Io if says("certificate") || says("fatal alert") => (
            ErrorKind::Denied,
            "the certificate of one side was not accepted: check the CA and the client certificate",
            false,
        ),
        RedisKind::Io if says("InvalidContentType") || says("corrupt message") => (
            ErrorKind::Store,
            "what answers there does not speak TLS: is it the right port?",
            false,
        ),
        RedisKind::Io => (ErrorKind::Unreachable, "", true),
        RedisKind::Parse => (
            ErrorKind::Store,
            "what answers there does not speak the Redis protocol: is it the right port, and without TLS?",
            false,
        ),
        RedisKind::RESP3NotSupported => (ErrorKind::Unsupported, TOO_OLD, false),
        RedisKind::AuthenticationFailed => (ErrorKind::Denied, WRONG_PASSWORD, false),
        RedisKind::InvalidClientConfig => (ErrorKind::Invalid, "", false),
        RedisKind::ClusterConnectionNotFound => (
            ErrorKind::Unreachable,
            "no node of the cluster can be reached",
            true,
        ),
        RedisKind::Server(ServerErrorKind::NoPerm) => (ErrorKind::Denied, NO_PERMISSION, false),
        RedisKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::TryAgain,
        ) => (ErrorKind::Unreachable, "the server is not ready", true),
        _ if is_read_only(error) => (
            ErrorKind::Unreachable,
            "the server is a replica, which takes no writes",
            true,
        ),
        RedisKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask) => (
            ErrorKind::Invalid,
            "the server is a node of a cluster: use redis+cluster://",
            false,
        ),
        _ if says("unknown command") && says("HELLO") => (ErrorKind::Unsupported, TOO_OLD, false),
        _ if says("WRONGPASS") || says("NOAUTH") || says("without any password configured") => {
            (ErrorKind::Denied, WRONG_PASSWORD, false)
        }
        _ if says("NOPERM") || says("executing the script can't") || says("no permissions") => {
            (ErrorKind::Denied, NO_PERMISSION, false)
        }
        _ if says("cluster support disabled") => (
            ErrorKind::Invalid,
            "the server is not part of a cluster: use redis://",
            false,
        ),
        _ if says("OOM") => (ErrorKind::Store, "the server has no memory left", true),
        _ => (ErrorKind::Store, "", true),
    }
}

const TOO_OLD: &str = "the server is too old: Redis 6.0 or newer is needed";
const WRONG_PASSWORD: &str = "the server did not accept user and password";
const NO_PERMISSION: &str =
    "the user lacks a permission that locks need: see \"Access control\" in the documentation";
