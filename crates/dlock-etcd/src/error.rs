//! Client error -> [`dlock_core::Error`].

use std::error::Error as StdError;

use dlock_core::{Error, ErrorKind, HeldNow};
use etcd_client::Error as EtcdError;

/// What befell one trip, with what the next step depends on.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) kind: ErrorKind,
    message: String,
    pub(crate) retryable: bool,
    /// Whether a request may have reached the store.
    pub(crate) sent: bool,
    /// Whether another server, or the same over a new connection, may do better.
    pub(crate) elsewhere: bool,
    /// Whether the connection can no longer be used.
    pub(crate) broken: bool,
    /// Whether no connection could be made: to ask the same server again at once is in vain.
    pub(crate) refused: bool,
    /// Whether the store says that the lease has ended.
    pub(crate) lease_gone: bool,
    /// Whether the store says that the lease was granted before.
    pub(crate) lease_exists: bool,
    source: Option<EtcdError>,
}

impl Trouble {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retryable: kind.is_retryable(),
            sent: true,
            elsewhere: false,
            broken: false,
            refused: false,
            lease_gone: false,
            lease_exists: false,
            source: None,
        }
    }

    /// The server did not answer within our own limit.
    pub(crate) fn silence(limit: std::time::Duration) -> Self {
        Self {
            elsewhere: true,
            broken: true,
            ..Self::new(
                ErrorKind::TimedOut,
                format!("no answer within {limit:?}: is the server alive and reachable?"),
            )
        }
    }

    /// The lease that carries holds and places in queues is over. Nothing of the attempt is left.
    pub(crate) fn session_ended() -> Self {
        Self {
            sent: false,
            lease_gone: true,
            ..Self::new(
                ErrorKind::Store,
                "the client's lease ended, and its entries with it: was it revoked, or the store out of reach for too long?",
            )
        }
    }

    /// The lease must have ended by the clock: the store could not be asked for too long.
    pub(crate) fn session_lapsed() -> Self {
        Self::new(
            ErrorKind::Unreachable,
            "the store was out of reach for longer than the client's lease lasts",
        )
    }

    /// It is certain that nothing is left in the store.
    #[must_use]
    pub(crate) fn unsent(mut self) -> Self {
        self.sent = false;
        self
    }

    /// Some request before may have reached the store.
    #[must_use]
    pub(crate) fn in_doubt(mut self) -> Self {
        self.sent = true;
        self
    }

    /// Says where.
    #[must_use]
    pub(crate) fn at(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// Adds what may help.
    #[must_use]
    pub(crate) fn hint(mut self, hint: &str) -> Self {
        self.message = format!("{}; {hint}", self.message);
        self
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The same for one more who waits for it.
    pub(crate) fn tell(&self) -> Error {
        let held = if self.sent {
            HeldNow::Unknown
        } else {
            HeldNow::No
        };
        Error::new(self.kind, self.message.clone())
            .with_retryable(self.retryable)
            .with_held(held)
    }
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Self {
        let error = trouble.tell();
        match trouble.source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}

impl From<EtcdError> for Trouble {
    fn from(error: EtcdError) -> Self {
        let mut trouble = match &error {
            // Only the numbers of gRPC's codes are used: 14 is "unavailable".
            EtcdError::GRpcStatus(status) => {
                let causes = match status.source() {
                    Some(source) => chain(source),
                    None => status.message().to_owned(),
                };
                classify(i32::from(status.code()), status.message(), &causes)
            }
            EtcdError::TransportError(transport) => classify(14, "", &chain(transport)),
            EtcdError::LeaseKeepAliveError(text) if text.contains("not found") => {
                Self::session_ended()
            }
            EtcdError::InvalidArgs(_)
            | EtcdError::InvalidUri(_)
            | EtcdError::InvalidMetadataValue(_) => {
                Self::new(ErrorKind::Invalid, error.to_string()).unsent()
            }
            // A stream ended, or the client's own channel.
            other => classify(14, "", &other.to_string()),
        };
        trouble.source = Some(error);
        trouble
    }
}

/// An error with everything that caused it, on one line.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let part = error.to_string();
        if !text.contains(&part) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&part);
        }
        next = error.source();
    }
    text
}

const WRONG_LOGIN: &str = "the server did not accept user and password";
const NOT_ETCD: &str =
    "what answers there does not speak etcd's v3 protocol: is it the right port?";

/// By gRPC's code, the server's message, and the causes that the client names.
fn classify(code: i32, message: &str, causes: &str) -> Trouble {
    let said = message.strip_prefix("etcdserver: ");
    if let Some(said) = said {
        return by_server(code, said);
    }
    let says = |part: &str| causes.contains(part) || message.contains(part);
    let told = |kind, advice: &str| Trouble::new(kind, format!("{advice} ({causes})"));
    if says("certificate") || says("Certificate") || says("UnknownCA") {
        return Trouble {
            broken: true,
            ..told(
                ErrorKind::Denied,
                "the certificate of one side was not accepted: check the CA and the client certificate",
            )
            .unsent()
        };
    }
    if says("InvalidContentType") {
        return told(
            ErrorKind::Invalid,
            "what answers there does not speak TLS: use etcd:// in place of etcds://",
        )
        .unsent();
    }
    if says("tcp connect error") || says("Connection refused") || says("dns error") {
        return Trouble {
            elsewhere: true,
            broken: true,
            refused: true,
            ..told(
                ErrorKind::Unreachable,
                "no connection: is the server running?",
            )
            .unsent()
        };
    }
    // The server's own words: "mvcc: ..." and others that do not start with its name.
    match code {
        5 | 12 => return told(ErrorKind::Invalid, NOT_ETCD).unsent(),
        4 => {
            return Trouble {
                elsewhere: true,
                broken: true,
                ..told(ErrorKind::TimedOut, "the server did not answer in time")
            };
        }
        7 | 16 => return told(ErrorKind::Denied, WRONG_LOGIN).unsent(),
        _ => {}
    }
    let foreign = [
        "frame with invalid size",
        "invalid compression flag",
        "FRAME_SIZE_ERROR",
        "invalid content-type",
        "HTTP/1.1",
    ];
    if foreign.iter().any(|sign| says(sign)) {
        return told(ErrorKind::Invalid, NOT_ETCD).unsent();
    }
    Trouble {
        elsewhere: true,
        broken: true,
        ..Trouble::new(
            ErrorKind::Unreachable,
            format!("the connection broke ({causes})"),
        )
    }
}

/// What the server itself says, after `etcdserver: `.
fn by_server(code: i32, said: &str) -> Trouble {
    let says = |part: &str| said.contains(part);
    let plain = |kind, advice: &str| Trouble::new(kind, format!("{advice} (etcd: {said})"));
    if says("requested lease not found") {
        return Trouble::session_ended();
    }
    if says("lease already exists") {
        return Trouble {
            lease_exists: true,
            ..plain(ErrorKind::Store, "the lease was granted before")
        };
    }
    if says("revision of auth store is old") || code == 16 {
        // A new log-in helps.
        return Trouble {
            elsewhere: true,
            broken: true,
            ..plain(ErrorKind::Unreachable, "the log-in has expired").unsent()
        };
    }
    if says("authentication failed") || says("user name is empty") || says("user name not found") {
        return plain(ErrorKind::Denied, WRONG_LOGIN).unsent();
    }
    if says("authentication is not enabled") {
        return plain(
            ErrorKind::Denied,
            "the server does without log-in: leave user and password out",
        )
        .unsent();
    }
    if says("permission denied") {
        return plain(
            ErrorKind::Denied,
            "the user may not read and write the keys of locks: see \"Access control\" in the documentation",
        )
        .unsent();
    }
    if code == 14 {
        // No leader, leader changed, request timed out: it may have been done.
        return Trouble {
            elsewhere: true,
            ..plain(ErrorKind::Unreachable, "the cluster is not ready")
        };
    }
    if says("database space exceeded") {
        return plain(
            ErrorKind::Store,
            "the server has no space left: compact and defragment it, then disarm its alarm",
        )
        .unsent();
    }
    if says("too large lease TTL") {
        return plain(ErrorKind::Invalid, "the session is too long").unsent();
    }
    plain(ErrorKind::Store, "the server refused it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ErrorKind::{Denied, Invalid, Store, TimedOut, Unreachable};

    /// Code, the server's message, the causes; then kind, retryable, sent, elsewhere.
    type Line = (i32, &'static str, &'static str, ErrorKind, bool, bool, bool);

    #[rustfmt::skip]
    const TABLE: &[Line] = &[
        (14, "", "transport error: tcp connect error: Connection refused (os error 111)", Unreachable, true, false, true),
        (14, "", "dns error: failed to lookup address information", Unreachable, true, false, true),
        (13, "", "h2 protocol error: error reading a body from connection: Connection reset by peer", Unreachable, true, true, true),
        (2, "", "Service was not ready: buffered service failed", Unreachable, true, true, true),
        (4, "", "Timeout expired", TimedOut, true, true, true),
        (14, "", "invalid peer certificate: UnknownIssuer", Denied, false, false, false),
        (2, "transport error", "connection error: received fatal alert: BadCertificate", Denied, false, false, false),
        (14, "", "received corrupt message of type InvalidContentType", Invalid, false, false, false),
        (14, "", "http2 error: connection error detected: frame with invalid size", Invalid, false, false, false),
        (12, "", "grpc-status header missing, mapped from HTTP status code 404", Invalid, false, false, false),
        (14, "etcdserver: leader changed", "", Unreachable, true, true, true),
        (14, "etcdserver: no leader", "", Unreachable, true, true, true),
        (14, "etcdserver: request timed out", "", Unreachable, true, true, true),
        (5, "etcdserver: requested lease not found", "", Store, true, false, false),
        (9, "etcdserver: lease already exists", "", Store, true, true, false),
        (3, "etcdserver: authentication failed, invalid user ID or password", "", Denied, false, false, false),
        (3, "etcdserver: user name is empty", "", Denied, false, false, false),
        (7, "etcdserver: permission denied", "", Denied, false, false, false),
        (9, "etcdserver: authentication is not enabled", "", Denied, false, false, false),
        (16, "etcdserver: invalid auth token", "", Unreachable, true, false, true),
        (3, "etcdserver: revision of auth store is old", "", Unreachable, true, false, true),
        (8, "etcdserver: mvcc: database space exceeded", "", Store, true, false, false),
        (8, "etcdserver: too many requests", "", Store, true, true, false),
    ];

    #[test]
    fn every_error_has_its_kind() {
        for (code, message, causes, kind, retryable, sent, elsewhere) in TABLE.iter().copied() {
            let trouble = classify(code, message, causes);
            let what = format!("{message}{causes}");
            assert_eq!(trouble.kind, kind, "{what}");
            assert_eq!(trouble.retryable, retryable, "{what}");
            assert_eq!(trouble.sent, sent, "{what}");
            assert_eq!(trouble.elsewhere, elsewhere, "{what}");
            let held = if sent { HeldNow::Unknown } else { HeldNow::No };
            assert_eq!(Error::from(trouble).held_now(), held, "{what}");
        }
    }

    #[test]
    fn a_lease_that_ended_is_recognised() {
        assert!(classify(5, "etcdserver: requested lease not found", "").lease_gone);
        let ended = EtcdError::LeaseKeepAliveError("lease not found".to_owned());
        assert!(Trouble::from(ended).lease_gone);
        assert!(classify(9, "etcdserver: lease already exists", "").lease_exists);
    }
}
