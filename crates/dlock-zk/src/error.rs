//! Client error -> what it means for a lock -> [`dlock_core::Error`].

use dlock_core::{Error, ErrorKind, HeldNow};
use zookeeper_client::Error as Cause;

/// What became of one request.
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
            Cause::NoNode => Self::NoNode,
            Cause::NodeExists => Self::NodeExists,
            Cause::SessionExpired | Cause::ClientClosed | Cause::AuthFailed => Self::Ended(cause),
            // The client's task was dropped with its runtime: these are its words for it.
            Cause::UnexpectedError(ref text)
                if text.starts_with("BUG: ") || text.starts_with("expect error state") =>
            {
                Self::Ended(Cause::ClientClosed)
            }
            Cause::NoAuth
            | Cause::BadArguments(_)
            | Cause::BadVersion
            | Cause::NoChildrenForEphemerals
            | Cause::NotEmpty
            | Cause::InvalidAcl
            | Cause::NotReadOnly
            | Cause::QuotaExceeded
            | Cause::Throttled
            | Cause::Unimplemented
            | Cause::MarshallingError => Self::Refused(cause),
            // A loss by time-out is a `Custom`, and so is every error of the socket. Whatever is not known is in doubt.
            _ => Self::Broken(cause),
        }
    }
}

impl Fault {
    /// Whether a node was not as a transaction requires it.
    pub(crate) fn is_condition(&self) -> bool {
        match self {
            Self::NoNode | Self::NodeExists => true,
            Self::Refused(cause) => matches!(cause, Cause::BadVersion | Cause::NotEmpty),
            _ => false,
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        let cause = match fault {
            Fault::NoNode => Cause::NoNode,
            Fault::NodeExists => Cause::NodeExists,
            Fault::Ended(cause) | Fault::Broken(cause) | Fault::Refused(cause) => cause,
        };
        let error = Self::new(kind(&cause), message(&cause));
        let error = match cause {
            // A full quota or a busy server refuses before it does anything.
            Cause::QuotaExceeded | Cause::Throttled => error.with_held(HeldNow::No),
            _ => error,
        };
        error.with_source(cause)
    }
}

fn kind(cause: &Cause) -> ErrorKind {
    match cause {
        Cause::NoAuth | Cause::AuthFailed => ErrorKind::Denied,
        Cause::InvalidAcl | Cause::BadArguments(_) => ErrorKind::Invalid,
        Cause::Unimplemented => ErrorKind::Unsupported,
        Cause::Timeout => ErrorKind::TimedOut,
        Cause::ConnectionLoss
        | Cause::NoHosts
        | Cause::SessionExpired
        | Cause::SessionMoved
        | Cause::ClientClosed
        | Cause::NotReadOnly
        | Cause::Custom(_) => ErrorKind::Unreachable,
        _ => ErrorKind::Store,
    }
}

fn message(cause: &Cause) -> String {
    match cause {
        Cause::NoAuth => "no permission on the lock's nodes: check the user and password, the nodes' ACL, and that all \
                          who share the lock have the same user or the setting access=open"
            .to_owned(),
        Cause::AuthFailed => {
            "authentication failed: the server does not accept these credentials, or asks for some".to_owned()
        }
        Cause::InvalidAcl => {
            "the server refuses the ACL: access=creator needs a user and password".to_owned()
        }
        Cause::Unimplemented => {
            "the server does not know container nodes: ZooKeeper 3.5.3 or later is needed".to_owned()
        }
        Cause::SessionExpired | Cause::ClientClosed => {
            "the session has ended; the next call opens a new one".to_owned()
        }
        Cause::NotReadOnly => {
            "this server has lost its ensemble and is read-only: try again when it has found it".to_owned()
        }
        Cause::QuotaExceeded => "the quota of the lock's folder is used up: raise it".to_owned(),
        Cause::NoNode => "the lock's node vanished again and again: does something delete it?".to_owned(),
        Cause::Timeout | Cause::NoHosts => "no server answered: are they running and reachable?".to_owned(),
        Cause::ConnectionLoss | Cause::Custom(_) => format!("the connection broke: {cause}"),
        other => format!("{other}"),
    }
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

    #[test]
    fn every_error_has_its_meaning() {
        use ErrorKind::{Denied, Invalid, Store, TimedOut, Unreachable, Unsupported};
        use HeldNow::{No, Unknown};
        let unexpected = |text: &str| Cause::UnexpectedError(text.to_owned());
        for (cause, fault, kind, held, words) in [
            (Cause::NoAuth, "refused", Denied, No, "no permission"),
            (
                Cause::AuthFailed,
                "ended",
                Denied,
                No,
                "authentication failed",
            ),
            (Cause::InvalidAcl, "refused", Invalid, No, "refuses the ACL"),
            (Cause::BadArguments(&"path"), "refused", Invalid, No, "path"),
            (Cause::Unimplemented, "refused", Unsupported, No, "3.5.3"),
            (
                Cause::SessionExpired,
                "ended",
                Unreachable,
                Unknown,
                "opens a new one",
            ),
            (
                Cause::ClientClosed,
                "ended",
                Unreachable,
                Unknown,
                "opens a new one",
            ),
            (
                unexpected("BUG: x"),
                "ended",
                Unreachable,
                Unknown,
                "opens a new one",
            ),
            (
                unexpected("expect error state, got x"),
                "ended",
                Unreachable,
                Unknown,
                "new one",
            ),
            (
                Cause::ConnectionLoss,
                "broken",
                Unreachable,
                Unknown,
                "connection broke",
            ),
            (
                Cause::SessionMoved,
                "broken",
                Unreachable,
                Unknown,
                "session moved",
            ),
            (
                Cause::NoHosts,
                "broken",
                Unreachable,
                Unknown,
                "no server answered",
            ),
            (
                Cause::Timeout,
                "broken",
                TimedOut,
                Unknown,
                "no server answered",
            ),
            (
                Cause::NotReadOnly,
                "refused",
                Unreachable,
                Unknown,
                "read-only",
            ),
            (Cause::QuotaExceeded, "refused", Store, No, "quota"),
            (Cause::Throttled, "refused", Store, No, "throttled"),
            (unexpected("x"), "broken", Store, Unknown, "unexpected"),
            (
                Cause::UnexpectedErrorCode(-7),
                "broken",
                Store,
                Unknown,
                "-7",
            ),
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
    }
}
