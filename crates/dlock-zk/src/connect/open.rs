//! How a session is opened.

use std::pin::pin;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result};
use futures::FutureExt;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use zookeeper_client::{Client, Error as Cause, SessionInfo};

use super::why::{Reason, why};
use crate::config::Config;
use crate::error::Fault;

/// A server that says nothing for this long is left for another one, also in a long session. Otherwise the client waits for two
/// fifths of the session, in which nothing could be acquired.
const SILENCE: Duration = Duration::from_secs(4);

/// A session of the client, within the connect time-out.
pub(crate) async fn connect(config: &Config, old: Option<SessionInfo>) -> Result<Client> {
    let mut connecting = pin!(timeout(config.connect_limit(), connector(config, old)?));
    let reason = tokio::select! {
        biased;
        answer = &mut connecting => return outcome(config, answer, None),
        reason = why(config) => reason,
    };
    match reason {
        Some(reason) if reason.is_final => Err(reason.error),
        reason => outcome(config, connecting.await, reason),
    }
}

fn outcome(
    config: &Config,
    answer: Result<Result<Client, Cause>, Elapsed>,
    reason: Option<Reason>,
) -> Result<Client> {
    let error = match answer {
        Ok(Ok(client)) => return Ok(client),
        // So the client says that it has tried for as long as a session lasts.
        Ok(Err(cause)) if cause != Cause::Timeout => return Err(Fault::from(cause).into()),
        Ok(Err(_)) | Err(_) => Error::new(
            ErrorKind::Unreachable,
            format!(
                "no server of {} answered within {:?}: are they running and reachable?",
                config.identity_text(),
                config.connect_limit().min(config.session_time())
            ),
        ),
    };
    Err(reason.map_or(error, |reason| reason.error))
}

/// The client's call that opens a session.
fn connector(
    config: &Config,
    old: Option<SessionInfo>,
) -> Result<impl Future<Output = Result<Client, Cause>> + Send> {
    let session = config.session_time();
    let mut connector = Client::connector()
        .with_session_timeout(session)
        .with_connection_timeout(SILENCE.min(session * 2 / 5));
    if let Some(auth) = config.auth() {
        connector = connector.with_auth("digest", auth.as_bytes());
    }
    if let Some(old) = old {
        connector = connector.with_session(old);
    }
    let servers = config.servers();
    #[cfg(feature = "tls")]
    if let Some(tls) = config.tls_settings() {
        let connector = connector.with_tls(tls_options(tls)?);
        return Ok(async move { connector.secure_connect(&servers).await }.boxed());
    }
    Ok(async move { connector.connect(&servers).await }.boxed())
}

#[cfg(feature = "tls")]
fn tls_options(tls: &crate::config::Tls) -> Result<zookeeper_client::TlsOptions> {
    use zookeeper_client::TlsOptions;
    use_ring();
    let bad =
        |what: &str, cause: Cause| Error::invalid(format!("the {what} is not good PEM: {cause}"));
    let options = TlsOptions::new().with_pem_ca(&tls.ca);
    let options = options.map_err(|cause| bad("certificate authority", cause))?;
    match &tls.identity {
        None => Ok(options),
        Some((cert, key)) => options
            .with_pem_identity(cert, key)
            .map_err(|cause| bad("certificate or its key", cause)),
    }
}

/// The client takes the cryptography that the process has chosen, and panics if there are two to choose from and none is. It brings
/// a second one itself, so we choose; what the program has chosen stays.
#[cfg(feature = "tls")]
pub(super) fn use_ring() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
