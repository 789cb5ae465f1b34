//! The client: connections, their time-outs, and which of them may be used again.
//!
//! `mysql_async` has no time-outs, and a connection one of whose futures was dropped answers the next question with the rows of the one
//! before. Both are dealt with here, once: a [`Connection`] gives its connection away for the time of a call and gets it back with the answer. When
//! the call fails or its future is dropped, the connection is closed.

mod connection;
mod shared;
mod value;

use std::time::Duration;

use mysql_async::{Opts, OptsBuilder};

pub(crate) use self::connection::Connection;
pub(crate) use self::shared::{Job, SharedConnections, Told};
pub(crate) use self::value::{Answer, AnswerRow, Arg};
use crate::config::Config;
#[cfg(feature = "tls")]
use crate::config::Tls;

/// The named lock of a connection that carries a hold.
pub(crate) fn call_sign_text(number: u64) -> String {
    format!("dlock:conn:{number:016X}")
}

pub(crate) fn opts(config: &Config, setup: &str) -> Opts {
    let builder = OptsBuilder::default()
        .ip_or_hostname(config.host.name.clone())
        .tcp_port(config.port())
        .user(config.user.clone())
        .pass(config.password.clone())
        .db_name(Some(config.database.clone()))
        .tcp_nodelay(true)
        .tcp_keepalive(Some(Duration::from_secs(30)))
        // It would go past any proxy.
        .prefer_socket(false)
        // Given, so that the client need not ask for them.
        .max_allowed_packet(Some(1 << 24))
        .wait_timeout(Some(28_800))
        // A connection keeps its own.
        .stmt_cache_size(0)
        .setup(vec![setup.to_owned()]);
    #[cfg(feature = "tls")]
    let builder = builder.ssl_opts((config.tls != Tls::Off).then(|| tls_opts(config)));
    Opts::from(builder)
}

#[cfg(feature = "tls")]
fn tls_opts(config: &Config) -> mysql_async::SslOpts {
    // The client takes the process's cryptography, and panics if none is chosen and a further crate of the program has brought a
    // second one. What the program has chosen stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let unverified = config.tls == Tls::Unverified;
    let mut tls = mysql_async::SslOpts::default()
        .with_danger_accept_invalid_certs(unverified)
        .with_danger_skip_domain_validation(unverified);
    if let Some(ca) = &config.ca {
        tls = tls
            .with_root_certs(vec![ca.clone().into()])
            .with_disable_built_in_roots(true);
    }
    if let Some((cert, key)) = &config.identity {
        tls = tls.with_client_identity(Some(mysql_async::ClientIdentity::new(
            cert.clone().into(),
            key.clone().into(),
        )));
    }
    tls
}
