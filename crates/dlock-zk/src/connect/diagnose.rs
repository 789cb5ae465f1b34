//! Why no server answers. A session tries and tries, whatever the reasons are, so we knock once beside it, and look.

use std::time::Duration;

use dlock_core::Error;
use dlock_core::backend::Host;
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::config::Config;

/// A connection that takes longer than this may be worth a look.
const PATIENCE: Duration = Duration::from_millis(500);

/// What was found out.
pub(super) struct Reason {
    pub(super) error: Error,
    /// It is true of every server, and no waiting changes it.
    pub(super) is_final: bool,
}

/// Looks after a while, as long as nobody drops it; `None` when there is nothing to say beyond the silence.
pub(super) async fn diagnose(config: &Config) -> Option<Reason> {
    sleep(PATIENCE.min(config.connect_limit() / 4)).await;
    let found = join_all(config.hosts().iter().map(|host| look(config, host))).await;
    let is_final = found
        .iter()
        .all(|reason| reason.as_ref().is_some_and(|reason| reason.is_final));
    let error = found.into_iter().flatten().next()?.error;
    Some(Reason { error, is_final })
}

async fn look(config: &Config, host: &Host) -> Option<Reason> {
    let port = host.port?;
    let at = host.with_port(port);
    // Nobody listens there: the error of the connect said so already.
    let mut stream = TcpStream::connect((host.name.as_str(), port)).await.ok()?;
    #[cfg(feature = "tls")]
    if let Some(tls) = config.tls_settings() {
        return tls::look(&mut stream, tls, host, &at).await;
    }
    let _ = config;
    wants_tls(&mut stream).await.then(|| Reason {
        error: Error::invalid(format!(
            "{at} speaks TLS: write zks:// instead of zk://, or give the port without TLS"
        )),
        is_final: true,
    })
}

/// The start of a TLS connection with nothing in it. Who speaks TLS complains in TLS; ZooKeeper takes it for a length, and hangs up.
const EMPTY_HELLO: [u8; 9] = [0x16, 3, 1, 0, 4, 1, 0, 0, 0];
const TLS_ALERT: u8 = 0x15;

async fn wants_tls(stream: &mut TcpStream) -> bool {
    let mut first = [0];
    stream.write_all(&EMPTY_HELLO).await.is_ok()
        && matches!(stream.read(&mut first).await, Ok(1))
        && first == [TLS_ALERT]
}

#[cfg(feature = "tls")]
mod tls {
    use std::io::Write;
    use std::sync::Arc;

    use dlock_core::ErrorKind;
    use rustls::ClientConnection;
    use rustls::pki_types::ServerName;

    use super::*;
    use crate::connect::dial::tls_config;
    use dlock_core::kit::Tls;

    /// What became of a handshake that did not succeed.
    enum Failed {
        /// The other side hung up.
        Cut,
        Tls(rustls::Error),
    }

    pub(super) async fn look(
        stream: &mut TcpStream,
        tls: &Tls,
        host: &Host,
        at: &str,
    ) -> Option<Reason> {
        let mut connection = connection(tls, host)?;
        let failed = greet(stream, &mut connection).await.err()?;
        let denied = |text| Error::new(ErrorKind::Denied, text);
        let (error, is_final) = match failed {
            Failed::Tls(cause @ rustls::Error::InvalidCertificate(_)) => {
                let text = format!(
                    "the certificate of {at} is not to be trusted: {cause}: is its authority the one of ca=FILE (without it, one that this machine trusts), and the name its own?"
                );
                (denied(text), true)
            }
            Failed::Tls(cause @ rustls::Error::AlertReceived(_)) => {
                let text = match tls.identity() {
                    None => "it may want a client certificate: give cert=FILE and key=FILE",
                    Some(_) => "does it trust the authority of our client certificate?",
                };
                (denied(format!("{at} refuses us: {cause}: {text}")), true)
            }
            Failed::Tls(cause) => (
                Error::invalid(format!("{at} does not speak TLS as we do: {cause}")),
                true,
            ),
            // A server that is just going down does the same.
            Failed::Cut => (
                Error::new(
                    ErrorKind::Unreachable,
                    format!("{at} hung up when TLS began: is that its secure client port?"),
                ),
                false,
            ),
        };
        Some(Reason { error, is_final })
    }

    /// Shakes hands, and asks something: with TLS 1.3, a server says only then that it does not like our certificate.
    async fn greet(
        stream: &mut TcpStream,
        connection: &mut ClientConnection,
    ) -> Result<(), Failed> {
        let mut asked = false;
        let mut buffer = [0; 4096];
        loop {
            if !connection.is_handshaking() && !asked {
                asked = connection.writer().write_all(b"ruok").is_ok();
            }
            let mut out = Vec::new();
            while connection.wants_write() {
                connection.write_tls(&mut out).map_err(|_| Failed::Cut)?;
            }
            stream.write_all(&out).await.map_err(|_| Failed::Cut)?;
            let count = stream.read(&mut buffer).await.map_err(|_| Failed::Cut)?;
            let mut read = buffer.get(..count).unwrap_or_default();
            if read.is_empty() {
                return if asked { Ok(()) } else { Err(Failed::Cut) };
            }
            while !read.is_empty() {
                connection.read_tls(&mut read).map_err(|_| Failed::Cut)?;
                let state = connection.process_new_packets().map_err(Failed::Tls)?;
                if state.plaintext_bytes_to_read() > 0 {
                    return Ok(());
                }
            }
        }
    }

    fn connection(tls: &Tls, host: &Host) -> Option<ClientConnection> {
        let name = tls.name().unwrap_or(&host.name).to_owned();
        let name = ServerName::try_from(name).ok()?;
        ClientConnection::new(Arc::new(tls_config(tls).ok()?), name).ok()
    }
}
