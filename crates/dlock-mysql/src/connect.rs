//! The client: connections, their time-outs, and which of them may be used again.
//!
//! `mysql_async` has no time-outs, and a connection one of whose futures was dropped answers the next question with the rows of the one
//! before. Both are dealt with here, once: a [`Connection`] gives its connection away for the time of a call and gets it back with the answer. When
//! the call fails or its future is dropped, the connection is closed.

mod connection;
mod shared;
mod value;

#[cfg(feature = "tls")]
use std::path::PathBuf;
use std::time::Duration;

use dlock_core::Result;
use mysql_async::{Opts, OptsBuilder};

#[cfg(feature = "tls")]
use dlock_core::kit::{Pem, Tls, Trust};
#[cfg(feature = "tls")]
use mysql_async::{ClientIdentity, SslOpts};

pub(crate) use self::connection::Connection;
pub(crate) use self::shared::{Job, SharedConnections, Told};
pub(crate) use self::value::{Answer, AnswerRow, Arg};
use crate::config::Config;

/// The named lock of a connection that carries a hold.
pub(crate) fn call_sign_text(number: u64) -> String {
    format!("dlock:conn:{number:016X}")
}

/// How to connect, with the password as it is now.
pub(crate) async fn opts(config: &Config, setup: &str) -> Result<Opts> {
    let (user, password) = config.login.now().await?;
    let builder = OptsBuilder::default()
        .ip_or_hostname(config.host.name.clone())
        .tcp_port(config.port())
        .user(user)
        .pass(password)
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
    let builder = builder.ssl_opts(config.tls.as_ref().map(tls_opts));
    Ok(Opts::from(builder))
}

#[cfg(feature = "tls")]
fn tls_opts(tls: &Tls) -> SslOpts {
    // The client takes the process's cryptography, and panics if none is chosen and a further crate of the program has brought a
    // second one. What the program has chosen stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let is_unverified = *tls.trust() == Trust::Anybody;
    let mut opts = SslOpts::default()
        .with_danger_accept_invalid_certs(is_unverified)
        .with_danger_skip_domain_validation(is_unverified)
        .with_danger_tls_hostname_override(tls.name().map(str::to_owned));
    if let Trust::Authority(ca) = tls.trust() {
        opts = opts
            .with_root_certs(vec![path_or_text(ca)])
            .with_disable_built_in_roots(true);
    }
    if let Some((cert, key)) = tls.identity() {
        let identity = ClientIdentity::new(path_or_text(cert), path_or_text(key));
        opts = opts.with_client_identity(Some(identity));
    }
    opts
}

/// As the client takes it, by a type that it does not name.
#[cfg(feature = "tls")]
fn path_or_text<P: From<PathBuf> + From<Vec<u8>>>(pem: &Pem) -> P {
    match pem {
        Pem::Text(text) => text.clone().into(),
        Pem::File(path) => path.clone().into(),
    }
}
