//! One connection to one server, with TLS or without.

use std::net::SocketAddr;
use std::time::Duration;

use dlock_core::backend::Host;
use dlock_core::{Error, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Cause;
use crate::config::Config;

/// Bytes both ways.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// How connections are made.
pub(super) struct Dialer {
    #[cfg(feature = "tls")]
    tls: Option<tokio_rustls::TlsConnector>,
    /// Instead of the host's own.
    #[cfg(feature = "tls")]
    server_name: Option<String>,
}

impl Dialer {
    #[cfg(not(feature = "tls"))]
    pub(super) fn new(_: &Config) -> Result<Self, Error> {
        Ok(Self {})
    }

    #[cfg(feature = "tls")]
    pub(super) fn new(config: &Config) -> Result<Self, Error> {
        let tls = config.tls_settings().map(tls_config).transpose()?;
        Ok(Self {
            tls: tls.map(|tls| std::sync::Arc::new(tls).into()),
            server_name: config
                .tls_settings()
                .and_then(|tls| tls.name().map(str::to_owned)),
        })
    }

    pub(super) async fn dial(
        &self,
        host: &Host,
        limit: Duration,
    ) -> Result<Box<dyn Stream>, Cause> {
        match timeout(limit, self.connect(host, limit)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(Cause::Broken(error.to_string())),
            Err(_) => Err(Cause::Silent(limit)),
        }
    }

    async fn connect(&self, host: &Host, limit: Duration) -> std::io::Result<Box<dyn Stream>> {
        let port = host.port.unwrap_or(crate::config::DEFAULT_PORT);
        let addresses = tokio::net::lookup_host((host.name.as_str(), port)).await?;
        let stream = first(addresses.collect(), limit, TcpStream::connect).await?;
        // Without it the system would hold a second small request back until the first one is answered.
        stream.set_nodelay(true)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let name = self.server_name.as_ref().unwrap_or(&host.name);
            let name = rustls::pki_types::ServerName::try_from(name.clone())
                .map_err(std::io::Error::other)?;
            return Ok(Box::new(tls.connect(name, stream).await?));
        }
        Ok(Box::new(stream))
    }
}

/// The first of a name's addresses that takes a connection, in any order: behind one name there may be several servers, and one that is silent must
/// not use up the time of the others.
async fn first<T>(
    mut addresses: Vec<SocketAddr>,
    limit: Duration,
    connect: impl AsyncFn(SocketAddr) -> std::io::Result<T>,
) -> std::io::Result<T> {
    fastrand::shuffle(&mut addresses);
    let share = limit / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let mut last = std::io::Error::other("the name has no address");
    for address in addresses {
        match timeout(share, connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = std::io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

/// The authority that is trusted, and the certificate that is shown. With ring, whatever the process has chosen for others.
#[cfg(feature = "tls")]
pub(super) fn tls_config(tls: &dlock_core::kit::Tls) -> Result<rustls::ClientConfig, Error> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};

    let bad = |what: &str, cause: &dyn std::fmt::Display| {
        Error::invalid(format!("the {what} is not good PEM: {cause}"))
    };
    let mut roots = rustls::RootCertStore::empty();
    match tls.trust() {
        dlock_core::kit::Trust::Authority(ca) => {
            for certificate in CertificateDer::pem_slice_iter(&ca.read("ca")?) {
                let certificate =
                    certificate.map_err(|cause| bad("certificate authority", &cause))?;
                roots
                    .add(certificate)
                    .map_err(|cause| bad("certificate authority", &cause))?;
            }
            if roots.is_empty() {
                return Err(bad("certificate authority", &"there is none in it"));
            }
        }
        _ => {
            // Some machines have old ones that cannot be read; the others do.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(Error::invalid(
                    "this machine has no certificate authorities: give the one that signed the servers' certificates with ca=FILE",
                ));
            }
        }
    }
    let ring = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .map_err(|cause| Error::invalid(format!("TLS cannot be set up: {cause}")))?
        .with_root_certificates(roots);
    let Some((certificates, key)) = tls.identity() else {
        return Ok(builder.with_no_client_auth());
    };
    let what = "certificate or its key";
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&certificates.read("cert")?).collect();
    let chain = chain.map_err(|cause| bad(what, &cause))?;
    let key =
        PrivateKeyDer::from_pem_slice(&key.read("key")?).map_err(|cause| bad(what, &cause))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|cause| bad(what, &cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silent_address_leaves_time_for_the_others() {
        let address = |number: u8| SocketAddr::from(([127, 0, 0, number], 1));
        let limit = Duration::from_millis(900);
        for _ in 0..4 {
            let connect = async |to: SocketAddr| {
                if to == address(3) {
                    return Ok(to);
                }
                std::future::pending().await
            };
            let all = vec![address(1), address(2), address(3)];
            let taken = timeout(limit * 9 / 10, first(all, limit, connect)).await;
            assert_eq!(taken.expect("in time").expect("one is there"), address(3));
        }
        let none = first(Vec::new(), limit, async |to| Ok(to)).await;
        assert!(none.expect_err("none").to_string().contains("no address"));
    }
}
