//! One connection to one server, with TLS or without.

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
        })
    }

    pub(super) async fn dial(
        &self,
        host: &Host,
        limit: Duration,
    ) -> Result<Box<dyn Stream>, Cause> {
        match timeout(limit, self.connect(host)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(Cause::Broken(error.to_string())),
            Err(_) => Err(Cause::Silent(limit)),
        }
    }

    async fn connect(&self, host: &Host) -> std::io::Result<Box<dyn Stream>> {
        let port = host.port.unwrap_or(crate::config::DEFAULT_PORT);
        let stream = TcpStream::connect((host.name.as_str(), port)).await?;
        // A request and the one behind it leave at once, each in its own time.
        stream.set_nodelay(true)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let name = rustls::pki_types::ServerName::try_from(host.name.clone())
                .map_err(std::io::Error::other)?;
            return Ok(Box::new(tls.connect(name, stream).await?));
        }
        Ok(Box::new(stream))
    }
}

/// The authority that is trusted, and the certificate that is shown. With ring, whatever the process has chosen for others.
#[cfg(feature = "tls")]
pub(super) fn tls_config(tls: &crate::config::Tls) -> Result<rustls::ClientConfig, Error> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};

    let bad = |what: &str, cause: &dyn std::fmt::Display| {
        Error::invalid(format!("the {what} is not good PEM: {cause}"))
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(tls.ca.as_bytes()) {
        let certificate = certificate.map_err(|cause| bad("certificate authority", &cause))?;
        roots
            .add(certificate)
            .map_err(|cause| bad("certificate authority", &cause))?;
    }
    if roots.is_empty() {
        return Err(bad("certificate authority", &"there is none in it"));
    }
    let ring = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .map_err(|cause| Error::invalid(format!("TLS cannot be set up: {cause}")))?
        .with_root_certificates(roots);
    let Some((certificates, key)) = &tls.identity else {
        return Ok(builder.with_no_client_auth());
    };
    let what = "certificate or its key";
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(certificates.as_bytes()).collect();
    let chain = chain.map_err(|cause| bad(what, &cause))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|cause| bad(what, &cause))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|cause| bad(what, &cause))
}
