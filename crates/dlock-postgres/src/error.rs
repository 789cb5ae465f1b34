//! Client error -> [`dlock_core::Error`].

use dlock_core::ErrorKind;
use dlock_core::kit::{self, NOBODY_LISTENS, with_advice};
use tokio_postgres::error::Severity;

kit::trouble! {
    /// What befell one call.
    pub(crate) struct Trouble {
        /// Whether the connection can no longer be used.
        pub(crate) broken: bool,
        /// A deadlock or a serialization failure: the server undid the statement, and it can be tried again at once.
        pub(crate) contended: bool,
        /// The server's code for it, if it is the server's.
        pub(crate) code: Option<Box<str>>,
    }
}

impl Trouble {
    /// The server takes no writes, so a lock there excludes nobody.
    pub(crate) fn read_only(where_: &str) -> Self {
        Self::new(
            ErrorKind::Unreachable,
            format!(
                "{where_} takes no writes, as a standby does: connect to the primary, which all clients must use, or name several hosts"
            ),
        )
        .unsent()
    }

    /// The connection of a hold or a waiter is not at the server any more.
    pub(crate) fn gone() -> Self {
        let mut gone = Self::new(
            ErrorKind::Unreachable,
            "the server has ended the connection of this lock",
        );
        gone.broken = true;
        gone
    }

    /// An answer that none of our statements gives.
    pub(crate) fn unexpected_reply(what: &str) -> Self {
        Self::new(
            ErrorKind::Store,
            format!(
                "the server answered {what}: does another program change the tables or functions?"
            ),
        )
    }

    pub(crate) fn has_code(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }

    /// The server does not know a statement that this connection has told it, or knows another one by that name, or one with other results: the
    /// connection is not ours alone, or somebody has said `DISCARD`. Nothing was done.
    pub(crate) fn is_foreign(&self) -> bool {
        ["26000", "42P05", "0A000"]
            .iter()
            .any(|code| self.has_code(code))
    }
}

impl From<tokio_postgres::Error> for Trouble {
    fn from(error: tokio_postgres::Error) -> Self {
        let trouble = match error.as_db_error() {
            Some(db) => {
                let fatal = matches!(
                    db.parsed_severity(),
                    Some(Severity::Fatal | Severity::Panic)
                );
                said(db.code().code(), db.message(), fatal)
            }
            None => client_side(&error),
        };
        trouble.because_of(error)
    }
}

#[cfg(feature = "sqlx")]
impl From<sqlx::Error> for Trouble {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::postgres::{PgDatabaseError, PgSeverity};
        let text = error.to_string();
        let trouble = match &error {
            sqlx::Error::Database(told) => match told.try_downcast_ref::<PgDatabaseError>() {
                Some(db) => {
                    let fatal = matches!(db.severity(), PgSeverity::Fatal | PgSeverity::Panic);
                    said(db.code(), db.message(), fatal)
                }
                None => Self::new(ErrorKind::Store, text),
            },
            sqlx::Error::PoolClosed => Self::new(ErrorKind::Closed, "the pool was closed").unsent(),
            sqlx::Error::PoolTimedOut => {
                let advice = "the pool gives no connection in time: is it large enough?";
                Self::new(ErrorKind::Unreachable, with_advice(advice, &text)).unsent()
            }
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed => {
                let mut trouble = Self::new(
                    ErrorKind::Unreachable,
                    with_advice("the connection failed", &text),
                );
                trouble.broken = true;
                trouble
            }
            _ => Self::new(ErrorKind::Store, text),
        };
        trouble.because_of(error)
    }
}

/// An error that the server has told.
fn said(code: &str, message: &str, fatal: bool) -> Trouble {
    let (kind, advice) = classify(code);
    let mut trouble = Trouble::new(kind, with_advice(advice, format_args!("{message}, {code}")));
    trouble.code = Some(code.into());
    trouble.contended = matches!(code, "40001" | "40P01");
    trouble.broken = fatal || kind == ErrorKind::Unreachable;
    // What fails with an ERROR was undone by the server. With a FATAL it ends the connection, perhaps after the commit: it may have been told to
    // end while it waited for a synchronous standby.
    if fatal || code.starts_with("57P") || code.starts_with("08") {
        return trouble;
    }
    trouble.unsent()
}

fn client_side(error: &tokio_postgres::Error) -> Trouble {
    // The client's words are general; what happened is in the causes.
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    let mut kind = ErrorKind::Unreachable;
    let mut advice = "the connection failed";
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            match io.kind() {
                std::io::ErrorKind::ConnectionRefused => {
                    advice = NOBODY_LISTENS;
                }
                std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied => {
                    advice = "there is no socket that we may use: is the server running, and is it the right folder and port?";
                }
                _ => {}
            }
            #[cfg(feature = "tls")]
            if io
                .get_ref()
                .is_some_and(|inner| inner.downcast_ref::<rustls::Error>().is_some())
            {
                kind = ErrorKind::Denied;
                advice = "no TLS with this server: nobody we trust has signed its certificate, or it is for another name. One that the \
                    server made for itself must be given as the setting ca; tls=unverified takes any, and whoever offers it";
            }
        }
        cause = inner.source();
    }
    if text.contains("server does not support TLS") {
        kind = ErrorKind::Denied;
        advice = "the server does not offer TLS: configure it there, or leave the setting tls out";
    }
    if text.starts_with("authentication error") || text.contains("password missing") {
        kind = ErrorKind::Denied;
        advice = "the login failed: check user and password";
    }
    if error.is_closed() {
        advice = "the server closed the connection";
    }
    let mut trouble = Trouble::new(kind, with_advice(advice, &text));
    trouble.broken = true;
    trouble
}

/// The kind, and what to tell a person.
fn classify(code: &str) -> (ErrorKind, &'static str) {
    match code {
        "28000" | "28P01" => (
            ErrorKind::Denied,
            "the server refused the login: check user, password, TLS and the server's pg_hba.conf",
        ),
        "42501" => (
            ErrorKind::Denied,
            "the user lacks a permission: see dlock_postgres::migration and the README for what it needs",
        ),
        "3D000" => (
            ErrorKind::Invalid,
            "the database does not exist: create it, or correct the URL",
        ),
        "3F000" => (
            ErrorKind::Invalid,
            "the schema does not exist: create it, or correct the setting schema",
        ),
        "53300" => (
            ErrorKind::Store,
            "the server has no connection left: raise its max_connections, or lower the setting connections",
        ),
        "53100" | "53200" | "53400" => (ErrorKind::Store, "the server is out of resources"),
        "42P01" | "42883" => (
            ErrorKind::Store,
            "a table or function of ours is missing: connect once with the right to create them, or run dlock_postgres::migration",
        ),
        "25006" => (
            ErrorKind::Unreachable,
            "the server takes no writes: is it a standby, was it demoted, or is default_transaction_read_only on?",
        ),
        "40001" | "40P01" => (ErrorKind::Store, "others changed the same rows"),
        "55P03" => (
            ErrorKind::Store,
            "the server's lock_timeout passed before the lock's row was free: raise it for this user",
        ),
        "57014" => (
            ErrorKind::Store,
            "the server ended the statement: its statement_timeout is too short for this user, or somebody cancelled it",
        ),
        "25P03" | "25P04" | "57P05" => (
            ErrorKind::Unreachable,
            "the server ended the connection, as it is told to do with idle ones",
        ),
        "57P01" | "57P02" | "57P03" | "57P04" => (
            ErrorKind::Unreachable,
            "the server ended the connection: it stops, starts or recovers, or somebody ended the connection",
        ),
        _ if code.starts_with("08") => (ErrorKind::Unreachable, "the connection failed"),
        _ => (ErrorKind::Store, ""),
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::{Error, HeldNow};

    use super::*;

    #[test]
    fn every_code_has_its_kind() {
        use ErrorKind::{Denied, Invalid, Store, Unreachable};
        for (code, fatal, kind, broken, contended, held) in [
            ("28P01", true, Denied, true, false, HeldNow::Unknown),
            ("42501", false, Denied, false, false, HeldNow::No),
            ("3D000", false, Invalid, false, false, HeldNow::No),
            ("53300", false, Store, false, false, HeldNow::No),
            ("42P01", false, Store, false, false, HeldNow::No),
            ("25006", false, Unreachable, true, false, HeldNow::No),
            ("40001", false, Store, false, true, HeldNow::No),
            ("40P01", false, Store, false, true, HeldNow::No),
            ("55P03", false, Store, false, false, HeldNow::No),
            ("57014", false, Store, false, false, HeldNow::No),
            ("57P01", true, Unreachable, true, false, HeldNow::Unknown),
            ("57P05", true, Unreachable, true, false, HeldNow::Unknown),
            ("08P01", true, Unreachable, true, false, HeldNow::Unknown),
            ("XX000", false, Store, false, false, HeldNow::No),
        ] {
            let trouble = said(code, "said the server", fatal);
            assert_eq!(trouble.kind(), kind, "{code}");
            assert_eq!(trouble.broken, broken, "{code}");
            assert_eq!(trouble.contended, contended, "{code}");
            let error = Error::from(trouble);
            assert_eq!(error.held_now(), held, "{code}");
            assert_eq!(error.is_retryable(), kind.is_retryable(), "{code}");
            assert!(error.message().contains("said the server"), "{error}");
        }
    }

    #[test]
    fn whatever_comes_after_a_request_was_sent_is_in_doubt() {
        for code in ["28P01", "53300", "25006", "42501"] {
            let later = said(code, "said later", false).unsent().in_doubt();
            assert_eq!(Error::from(later).held_now(), HeldNow::Unknown, "{code}");
            assert!(!said(code, "said at once", false).unsent().is_sent());
        }
    }
}
