//! Client error -> what it means for a lock -> [`dlock_core::Error`].

use dlock_core::{Error, ErrorKind};

use crate::connect::{Cause, code};

/// What became of one request.
///
/// Not the kit's [`trouble!`](dlock_core::kit::trouble), an error with facts beside it: that a node is there or not is an ordinary answer here, by which the next step is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// There is no such node, or no parent for it.
    NoNode,
    /// There is such a node already.
    NodeExists,
    /// The session has ended, and its nodes with it: nothing it asked for can take effect any more.
    Ended(Cause),
    /// The connection broke. The server may have done it; the session may live on.
    Broken(Cause),
    /// The server, or the client before it sent anything, refused. Nothing was done.
    Refused(Cause),
}

impl From<Cause> for Fault {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Server(code::NO_NODE) => Self::NoNode,
            Cause::Server(code::NODE_EXISTS) => Self::NodeExists,
            Cause::Expired
            | Cause::GivenUp
            | Cause::Closed
            | Cause::AuthFailed
            | Cause::Shortened(_) => Self::Ended(cause),
            Cause::Server(
                code::NO_AUTH
                | code::BAD_ARGUMENTS
                | code::BAD_VERSION
                | code::NO_CHILDREN_FOR_EPHEMERALS
                | code::NOT_EMPTY
                | code::INVALID_ACL
                | code::NOT_READ_ONLY
                | code::QUOTA_EXCEEDED
                | code::THROTTLED
                | code::UNIMPLEMENTED
                | code::MARSHALLING,
            ) => Self::Refused(cause),
            // Whatever is not known is in doubt.
            _ => Self::Broken(cause),
        }
    }
}

impl Fault {
    /// Whether a node was not as a transaction requires it.
    pub(crate) fn is_condition(&self) -> bool {
        match self {
            Self::NoNode | Self::NodeExists => true,
            Self::Refused(cause) => {
                matches!(cause, Cause::Server(code::BAD_VERSION | code::NOT_EMPTY))
            }
            _ => false,
        }
    }

    /// Whether the request may have been carried out. A refusal is the server's own answer to it. What ends a session or a connection says
    /// nothing of the requests before it, also if it is a refusal: credentials that are wrong at a reconnect, for example.
    fn is_in_doubt(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Broken(_))
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        let in_doubt = fault.is_in_doubt();
        let cause = match fault {
            Fault::NoNode => Cause::Server(code::NO_NODE),
            Fault::NodeExists => Cause::Server(code::NODE_EXISTS),
            Fault::Ended(cause) | Fault::Broken(cause) | Fault::Refused(cause) => cause,
        };
        Self::new(kind(&cause), message(&cause))
            .after_sending(in_doubt)
            .with_source(cause)
    }
}

fn kind(cause: &Cause) -> ErrorKind {
    match cause {
        Cause::Server(code::NO_AUTH) | Cause::AuthFailed => ErrorKind::Denied,
        Cause::Server(code::INVALID_ACL | code::BAD_ARGUMENTS) => ErrorKind::Invalid,
        Cause::Server(code::UNIMPLEMENTED) => ErrorKind::Unsupported,
        Cause::Server(code::SESSION_MOVED | code::NOT_READ_ONLY)
        | Cause::Expired
        | Cause::GivenUp
        | Cause::Closed
        | Cause::Broken(_)
        | Cause::Silent(_) => ErrorKind::Unreachable,
        Cause::Server(_) | Cause::Shortened(_) | Cause::Garbled => ErrorKind::Store,
    }
}

fn message(cause: &Cause) -> String {
    let text = match cause {
        Cause::Server(code::NO_AUTH) => {
            "no permission on the lock's nodes: check the user and password, the nodes' ACL, and that all \
             who share the lock have the same user or the setting access=open"
        }
        Cause::AuthFailed => {
            "authentication failed: the server does not accept these credentials, or asks for some"
        }
        Cause::Server(code::INVALID_ACL) => {
            "the server refuses the ACL: access=creator needs a user and password"
        }
        Cause::Server(code::BAD_ARGUMENTS) => "the server does not take the node's path or data",
        Cause::Server(code::UNIMPLEMENTED) => {
            "the server does not know container nodes: ZooKeeper 3.5.3 or later is needed"
        }
        Cause::Expired | Cause::GivenUp | Cause::Closed => {
            "the session has ended; the next call opens a new one"
        }
        Cause::Server(code::SESSION_MOVED) => "the session moved to another connection: try again",
        Cause::Server(code::NOT_READ_ONLY) => {
            "this server has lost its ensemble and is read-only: try again when it has found it"
        }
        Cause::Server(code::QUOTA_EXCEEDED) => {
            "the quota of the lock's folder is used up: raise it"
        }
        Cause::Server(code::THROTTLED) => "the server is throttled: it has too much to do",
        Cause::Server(code::NO_NODE) => {
            "the lock's node vanished again and again: does something delete it?"
        }
        Cause::Shortened(_) => {
            return format!("{cause} than it was made with: its servers must have the same limits");
        }
        Cause::Broken(_) | Cause::Silent(_) | Cause::Garbled => {
            return format!("the connection broke: {cause}");
        }
        Cause::Server(_) => return cause.to_string(),
    };
    text.to_owned()
}

/// Nothing connects us to the store at the moment.
pub(crate) fn disconnected() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "not connected to ZooKeeper at the moment: are its servers running and reachable?",
    )
}

/// The hold was not made by this backend.
pub(crate) fn not_ours() -> Error {
    Error::invalid("this hold was not made by the ZooKeeper backend")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::HeldNow;
    use std::time::Duration;

    #[test]
    fn every_error_has_its_meaning() {
        use ErrorKind::{Denied, Invalid, Store, Unreachable, Unsupported};
        use HeldNow::{No, Unknown};
        let server = Cause::Server;
        let second = Duration::from_secs(1);
        let broken = || Cause::Broken("reset".to_owned());
        // A refusal is the answer to the very request; whatever ends a session or a connection leaves it in doubt.
        for (cause, fault, kind, held, words) in [
            (server(-102), "refused", Denied, No, "no permission"),
            (server(-114), "refused", Invalid, No, "refuses the ACL"),
            (server(-8), "refused", Invalid, No, "path"),
            (server(-6), "refused", Unsupported, No, "3.5.3"),
            (server(-103), "refused", Store, No, "-103"),
            (server(-111), "refused", Store, No, "-111"),
            (server(-119), "refused", Unreachable, No, "read-only"),
            (server(-125), "refused", Store, No, "quota"),
            (server(-127), "refused", Store, No, "throttled"),
            (Cause::AuthFailed, "ended", Denied, Unknown, "credentials"),
            (Cause::Expired, "ended", Unreachable, Unknown, "a new one"),
            (Cause::Closed, "ended", Unreachable, Unknown, "a new one"),
            (Cause::GivenUp, "ended", Unreachable, Unknown, "a new one"),
            (Cause::Shortened(second), "ended", Store, Unknown, "only 1s"),
            (server(-118), "broken", Unreachable, Unknown, "moved"),
            (broken(), "broken", Unreachable, Unknown, "reset"),
            (
                Cause::Silent(second),
                "broken",
                Unreachable,
                Unknown,
                "nothing for 1s",
            ),
            (
                Cause::Garbled,
                "broken",
                Store,
                Unknown,
                "cannot be understood",
            ),
            (server(-7), "broken", Store, Unknown, "-7"),
        ] {
            let found = Fault::from(cause.clone());
            let name = match &found {
                Fault::Ended(_) => "ended",
                Fault::Broken(_) => "broken",
                Fault::Refused(_) => "refused",
                _ => "other",
            };
            assert_eq!(name, fault, "{cause:?}");
            let error = Error::from(found);
            assert_eq!(error.kind(), kind, "{cause:?}");
            assert_eq!(error.held_now(), held, "{cause:?}");
            assert!(error.to_string().contains(words), "{cause:?}: {error}");
        }
        assert_eq!(Fault::from(server(-101)), Fault::NoNode);
        assert_eq!(Fault::from(server(-110)), Fault::NodeExists);
    }
}
