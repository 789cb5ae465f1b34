//! Client error -> [`dlock_core::Error`].

use std::error::Error as StdError;

use dlock_core::{ErrorKind, kit};
use etcd_client::Error as EtcdError;

kit::trouble! {
    /// What befell one trip.
    pub(crate) struct Trouble {
        pub(crate) cause: Cause,
    }
}

/// What the next step depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Cause {
    /// No connection could be made. Another server may be there; to ask the same one again at once is in vain.
    NoConnection,
    /// The connection broke, or its log-in has expired. The same server may do better over a new one.
    Broken,
    /// The server was silent for too long. Another may answer; the same one gets a new connection the next time.
    Silent,
    /// The server is there, and cannot do it now: its cluster has no leader. Another may.
    NotNow,
    /// The two sides do not accept each other. No other server would, but a later connection may.
    NotTrusted,
    /// The store says that the lease has ended.
    LeaseGone,
    /// The store says that the lease was granted before.
    LeaseExists,
    /// A refusal, or a mistake of ours: every server would say the same.
    #[default]
    Refused,
}

impl Cause {
    /// Whether another server, or the same over a new connection, may do better.
    pub(crate) fn is_worth_another(self) -> bool {
        matches!(
            self,
            Self::NoConnection | Self::Broken | Self::Silent | Self::NotNow
        )
    }

    /// Whether the connection can no longer be used.
    pub(crate) fn ends_connection(self) -> bool {
        matches!(
            self,
            Self::NoConnection | Self::Broken | Self::Silent | Self::NotTrusted
        )
    }
}

impl Trouble {
    fn because(mut self, cause: Cause) -> Self {
        self.cause = cause;
        self
    }

    /// The server did not answer within our own limit.
    pub(crate) fn silence(limit: std::time::Duration) -> Self {
        Self::from(kit::no_answer(limit)).because(Cause::Silent)
    }

    /// The lease that carries holds and places in queues is over. Nothing of the attempt is left.
    pub(crate) fn session_ended() -> Self {
        Self::new(
            ErrorKind::Store,
            "the client's lease ended, and its entries with it: was it revoked, or the store out of reach for too long?",
        )
        .because(Cause::LeaseGone)
        .unsent()
    }

    /// The lease must have ended by the clock: the store could not be asked for too long.
    pub(crate) fn session_lapsed() -> Self {
        Self::new(
            ErrorKind::Unreachable,
            "the store was out of reach for longer than the client's lease lasts",
        )
    }

    /// Whether the store says that the lease has ended.
    pub(crate) fn is_lease_gone(&self) -> bool {
        self.cause == Cause::LeaseGone
    }

    /// Adds what may help.
    #[must_use]
    pub(crate) fn hint(self, hint: &str) -> Self {
        let (kind, message) = (self.kind(), format!("{}; {hint}", self.message()));
        self.retold(kind, message)
    }
}

impl From<EtcdError> for Trouble {
    fn from(error: EtcdError) -> Self {
        let trouble = match &error {
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
        trouble.because_of(error)
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
        return told(
            ErrorKind::Denied,
            "the certificate of one side was not accepted: check the CA and the client certificate",
        )
        .because(Cause::NotTrusted)
        .unsent();
    }
    if says("InvalidContentType") {
        return told(
            ErrorKind::Invalid,
            "what answers there does not speak TLS: use etcd:// in place of etcds://",
        )
        .unsent();
    }
    if says("tcp connect error") || says("Connection refused") || says("dns error") {
        return told(
            ErrorKind::Unreachable,
            "no connection: is the server running?",
        )
        .because(Cause::NoConnection)
        .unsent();
    }
    // The server's own words: "mvcc: ..." and others that do not start with its name.
    match code {
        5 | 12 => return told(ErrorKind::Invalid, NOT_ETCD).unsent(),
        4 => {
            return told(ErrorKind::TimedOut, "the server did not answer in time")
                .because(Cause::Silent);
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
    Trouble::new(
        ErrorKind::Unreachable,
        format!("the connection broke ({causes})"),
    )
    .because(Cause::Broken)
}

/// What the server itself says, after `etcdserver: `.
fn by_server(code: i32, said: &str) -> Trouble {
    let says = |part: &str| said.contains(part);
    let plain = |kind, advice: &str| Trouble::new(kind, format!("{advice} (etcd: {said})"));
    if says("requested lease not found") {
        return Trouble::session_ended();
    }
    if says("lease already exists") {
        return plain(ErrorKind::Store, "the lease was granted before").because(Cause::LeaseExists);
    }
    if says("revision of auth store is old") || code == 16 {
        // A new log-in helps.
        return plain(ErrorKind::Unreachable, "the log-in has expired")
            .because(Cause::Broken)
            .unsent();
    }
    if says("authentication failed") || says("user name is empty") || says("user name not found") {
        // It may have been changed since the connection was made: the next one reads it again.
        return plain(ErrorKind::Denied, WRONG_LOGIN)
            .because(Cause::Broken)
            .unsent();
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
        return plain(ErrorKind::Unreachable, "the cluster is not ready").because(Cause::NotNow);
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
    use dlock_core::{Error, HeldNow};

    use super::*;
    use Cause::{
        Broken, LeaseExists, LeaseGone, NoConnection, NotNow, NotTrusted, Refused, Silent,
    };
    use ErrorKind::{Denied, Invalid, Store, TimedOut, Unreachable};

    /// Code, the server's message, the causes; then kind, whether it may have been carried out, and what the next step depends on.
    type TableRow = (i32, &'static str, &'static str, ErrorKind, bool, Cause);

    #[rustfmt::skip]
    const TABLE: &[TableRow] = &[
        (14, "", "transport error: tcp connect error: Connection refused (os error 111)", Unreachable, false, NoConnection),
        (14, "", "dns error: failed to lookup address information", Unreachable, false, NoConnection),
        (13, "", "h2 protocol error: error reading a body from connection: Connection reset by peer", Unreachable, true, Broken),
        (2, "", "Service was not ready: buffered service failed", Unreachable, true, Broken),
        (4, "", "Timeout expired", TimedOut, true, Silent),
        (14, "", "invalid peer certificate: UnknownIssuer", Denied, false, NotTrusted),
        (2, "transport error", "connection error: received fatal alert: BadCertificate", Denied, false, NotTrusted),
        (14, "", "received corrupt message of type InvalidContentType", Invalid, false, Refused),
        (14, "", "http2 error: connection error detected: frame with invalid size", Invalid, false, Refused),
        (12, "", "grpc-status header missing, mapped from HTTP status code 404", Invalid, false, Refused),
        (14, "etcdserver: leader changed", "", Unreachable, true, NotNow),
        (14, "etcdserver: no leader", "", Unreachable, true, NotNow),
        (14, "etcdserver: request timed out", "", Unreachable, true, NotNow),
        (5, "etcdserver: requested lease not found", "", Store, false, LeaseGone),
        (9, "etcdserver: lease already exists", "", Store, true, LeaseExists),
        (3, "etcdserver: authentication failed, invalid user ID or password", "", Denied, false, Broken),
        (3, "etcdserver: user name is empty", "", Denied, false, Broken),
        (7, "etcdserver: permission denied", "", Denied, false, Refused),
        (9, "etcdserver: authentication is not enabled", "", Denied, false, Refused),
        (16, "etcdserver: invalid auth token", "", Unreachable, false, Broken),
        (3, "etcdserver: revision of auth store is old", "", Unreachable, false, Broken),
        (8, "etcdserver: mvcc: database space exceeded", "", Store, false, Refused),
        (8, "etcdserver: too many requests", "", Store, true, Refused),
    ];

    #[test]
    fn every_error_has_its_kind() {
        for (code, message, causes, kind, sent, cause) in TABLE.iter().copied() {
            let trouble = classify(code, message, causes);
            let what = format!("{message}{causes}");
            assert_eq!(trouble.kind(), kind, "{what}");
            assert_eq!(trouble.cause, cause, "{what}");
            let held = if sent { HeldNow::Unknown } else { HeldNow::No };
            assert_eq!(Error::from(trouble.clone()).held_now(), held, "{what}");
            // A refusal that comes with a second try says nothing about the first.
            let again = Error::from(trouble.in_doubt());
            assert_eq!(again.held_now(), HeldNow::Unknown, "{what}");
            assert_eq!(again.is_retryable(), kind.is_retryable(), "{what}");
        }
    }

    #[test]
    fn a_lease_that_ended_is_recognised() {
        assert!(classify(5, "etcdserver: requested lease not found", "").is_lease_gone());
        let ended = EtcdError::LeaseKeepAliveError("lease not found".to_owned());
        assert!(Trouble::from(ended).is_lease_gone());
        let exists = classify(9, "etcdserver: lease already exists", "");
        assert_eq!(exists.cause, LeaseExists);
    }
}
