//! Client error -> [`dlock_core::Error`].

use dlock_core::ErrorKind;
use dlock_core::kit::{self, NOBODY_LISTENS, with_advice};
use mysql_async::{DriverError, Error as MySqlError, IoError};

/// "DOUBLE value is out of range": how our statements fail on a server that was demoted, and never otherwise. See `{takes_writes}`.
pub(crate) const DEMOTED: u16 = 1690;

kit::trouble! {
    /// What befell one call.
    pub(crate) struct Trouble {
        /// Whether the connection can no longer be used.
        pub(crate) broken: bool,
        /// A deadlock or a lock wait: the server undid the statement, and it can be tried again at once.
        pub(crate) contended: bool,
        /// The server's number for it, if it is the server's.
        pub(crate) code: Option<u16>,
        /// What answers there does not speak like a server, as far as the client can tell.
        is_strange_talk: bool,
    }
}

impl Trouble {
    /// The connection has ended before.
    pub(crate) fn gone() -> Self {
        let mut gone = Self::new(ErrorKind::Unreachable, "the connection has ended");
        gone.broken = true;
        gone
    }

    /// It takes no writes any more, so its locks exclude nobody.
    pub(crate) fn demoted() -> Self {
        let mut demoted = Self::new(
            ErrorKind::Unreachable,
            "the server takes no writes (read_only is on): was it demoted?",
        );
        demoted.broken = true;
        demoted
    }

    /// An answer that none of our statements gives.
    pub(crate) fn unexpected_reply(what: &str) -> Self {
        Self::new(
            ErrorKind::Store,
            format!("the server answered {what}: does another program change the tables?"),
        )
    }

    /// It happened before anything was asked.
    #[must_use]
    pub(crate) fn while_connecting(self) -> Self {
        if !self.is_strange_talk {
            return self.unsent();
        }
        let advice = "what listens there does not speak like MySQL: check host and port";
        let message = with_advice(advice, self.message());
        self.retold(ErrorKind::Invalid, message).unsent()
    }
}

impl From<MySqlError> for Trouble {
    fn from(error: MySqlError) -> Self {
        let text = error.to_string();
        let mut trouble = match &error {
            MySqlError::Server(server) if server.code == DEMOTED => {
                let mut demoted = Self::demoted().unsent();
                demoted.code = Some(DEMOTED);
                demoted
            }
            MySqlError::Server(server) => {
                let (kind, advice) = classify(server.code);
                let mut trouble = Self::new(kind, with_advice(advice, &text));
                trouble.code = Some(server.code);
                trouble.broken = is_broken(server.code);
                trouble.contended = is_contended(server.code);
                // A server that answers with an error has rolled the statement back, unless the error is about the connection.
                if trouble.broken {
                    trouble
                } else {
                    trouble.unsent()
                }
            }
            #[cfg(feature = "tls")]
            MySqlError::Io(IoError::Io(io)) if tls_error(io).is_some() => match tls_error(io) {
                Some(rustls::Error::AlertReceived(_)) => refused_by_them(&text),
                _ => untrusted(&text),
            },
            MySqlError::Io(IoError::Io(io)) => {
                let advice = match io.kind() {
                    std::io::ErrorKind::ConnectionRefused => NOBODY_LISTENS,
                    _ => "the connection failed",
                };
                Self::new(ErrorKind::Unreachable, with_advice(advice, &text))
            }
            #[cfg(feature = "tls")]
            MySqlError::Io(IoError::Tls(_)) => untrusted(&text),
            MySqlError::Driver(DriverError::ConnectionClosed) => {
                Self::new(ErrorKind::Unreachable, "the server closed the connection")
            }
            MySqlError::Driver(DriverError::NoClientSslFlagFromServer) => Self::new(
                ErrorKind::Denied,
                "the server does not offer TLS: configure it there, or leave the setting tls out",
            ),
            _ => Self::new(ErrorKind::Unreachable, text),
        };
        if !matches!(error, MySqlError::Server(_)) {
            trouble.broken = true;
        }
        trouble.is_strange_talk = match &error {
            MySqlError::Driver(DriverError::ConnectionClosed) => false,
            MySqlError::Driver(_) => trouble.kind() == ErrorKind::Unreachable,
            MySqlError::Other(_) => true,
            // The client's way to say that it does not understand a packet.
            MySqlError::Io(IoError::Io(io)) => {
                use std::io::ErrorKind::{InvalidData, Other};
                trouble.kind() == ErrorKind::Unreachable && matches!(io.kind(), Other | InvalidData)
            }
            _ => false,
        };
        trouble.because_of(error)
    }
}

/// A failed handshake comes as an error of the stream, with its own error inside.
#[cfg(feature = "tls")]
fn tls_error(io: &std::io::Error) -> Option<&rustls::Error> {
    io.get_ref().and_then(|inner| inner.downcast_ref())
}

/// It is the server that ended the handshake.
#[cfg(feature = "tls")]
fn refused_by_them(text: &str) -> Trouble {
    Trouble::new(
        ErrorKind::Denied,
        with_advice(
            "the server refused our certificate, or our kind of TLS: has somebody it trusts signed what the settings cert and key give?",
            text,
        ),
    )
}

#[cfg(feature = "tls")]
fn untrusted(text: &str) -> Trouble {
    Trouble::new(
        ErrorKind::Denied,
        with_advice(
            "no TLS with this server: nobody we trust has signed its certificate, or it is for another name. One that the server made \
             for itself must be given as the setting ca; tls=unverified takes any, and whoever offers it",
            text,
        ),
    )
}

/// The kind, and what to tell a person.
fn classify(code: u16) -> (ErrorKind, &'static str) {
    match code {
        1044 | 1045 | 1698 | 3118 | 4151 => (
            ErrorKind::Denied,
            "the server refused the login: check user, password and the rights on the database",
        ),
        1095 => (
            ErrorKind::Denied,
            "the connection belongs to another user, whom this one may not disconnect",
        ),
        1142 | 1143 | 1227 | 1370 => (
            ErrorKind::Denied,
            "the user lacks a permission: see dlock_mysql::migration for the tables",
        ),
        1251 | 1862 | 1820 => (ErrorKind::Denied, "the server wants another kind of login"),
        1046 | 1049 => (
            ErrorKind::Invalid,
            "the database does not exist: create it, or correct the URL",
        ),
        1040 | 1203 | 1226 => (
            ErrorKind::Store,
            "the server has no connection left: raise its max_connections, or lower the setting connections",
        ),
        1129 => (
            ErrorKind::Denied,
            "the server has locked this host out: FLUSH HOSTS there",
        ),
        1146 => (
            ErrorKind::Store,
            "a table is missing: connect once with the right to create tables, or run dlock_mysql::migration",
        ),
        1205 | 1213 | 3058 | 3572 => (ErrorKind::Store, "others held the rows for too long"),
        1290 | 1792 | 1836 | 3100 => (
            ErrorKind::Unreachable,
            "the server takes no writes: was it demoted?",
        ),
        1047 => (
            ErrorKind::Unreachable,
            "the node is not part of its cluster now",
        ),
        1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1184 | 1927 | 2006 | 2013 | 4031 => {
            (ErrorKind::Unreachable, "the server ended the connection")
        }
        _ => (ErrorKind::Store, ""),
    }
}

fn is_broken(code: u16) -> bool {
    classify(code).0 == ErrorKind::Unreachable
}

fn is_contended(code: u16) -> bool {
    matches!(code, 1205 | 1213 | 3058)
}

#[cfg(test)]
mod tests {
    use dlock_core::{Error, HeldNow};
    use mysql_async::ServerError;

    use super::*;

    fn server(code: u16) -> Trouble {
        Trouble::from(MySqlError::Server(ServerError {
            code,
            message: "said the server".to_owned(),
            state: "HY000".to_owned(),
        }))
    }

    #[test]
    fn every_code_has_its_kind() {
        use ErrorKind::{Denied, Invalid, Store, Unreachable};
        for (code, kind, retryable, broken, contended) in [
            (1045, Denied, false, false, false),
            (1044, Denied, false, false, false),
            (1142, Denied, false, false, false),
            (1049, Invalid, false, false, false),
            (1040, Store, true, false, false),
            (1146, Store, true, false, false),
            (1205, Store, true, false, true),
            (1213, Store, true, false, true),
            (3058, Store, true, false, true),
            (3572, Store, true, false, false),
            (1290, Unreachable, true, true, false),
            (1927, Unreachable, true, true, false),
            (4031, Unreachable, true, true, false),
            (1064, Store, true, false, false),
        ] {
            let trouble = server(code);
            assert_eq!(trouble.kind(), kind, "{code}");
            assert_eq!(trouble.broken, broken, "{code}");
            assert_eq!(trouble.contended, contended, "{code}");
            let error = Error::from(trouble);
            assert_eq!(error.is_retryable(), retryable, "{code}");
            let held = if broken {
                HeldNow::Unknown
            } else {
                HeldNow::No
            };
            assert_eq!(error.held_now(), held, "{code}");
            assert!(error.message().contains("said the server"), "{error}");
        }
    }

    #[test]
    fn whatever_comes_after_a_request_was_sent_is_in_doubt() {
        for code in [1045, 1049, 1040, 1290, 1064] {
            // The refusal of a reconnect, after a first try that was sent, says nothing about that try.
            let later = Error::from(server(code).while_connecting().in_doubt());
            assert_eq!(later.held_now(), HeldNow::Unknown, "{code}");
            let first = Error::from(server(code).while_connecting());
            assert_eq!(first.held_now(), HeldNow::No, "{code}");
        }
    }

    #[test]
    fn broken_connections_are_unreachable_and_in_doubt() {
        let io = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let trouble = Trouble::from(MySqlError::Io(IoError::Io(io)));
        assert!(trouble.broken);
        let error = Error::from(trouble);
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert_eq!(error.held_now(), HeldNow::Unknown);
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let trouble = Trouble::from(MySqlError::Io(IoError::Io(refused))).while_connecting();
        let error = Error::from(trouble);
        assert!(
            error.message().contains("is the server running?"),
            "{error}"
        );
        assert_eq!(error.held_now(), HeldNow::No);
    }

    #[test]
    fn a_stranger_on_the_port_is_a_mistake_in_the_settings() {
        let trouble =
            Trouble::from(MySqlError::Driver(DriverError::PacketOutOfOrder)).while_connecting();
        let error = Error::from(trouble);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("check host and port"), "{error}");
    }
}
