//! TLS by rustls, for the client, which leaves it open.
#![cfg(feature = "tls")]

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use dlock_core::ErrorKind;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use crate::config::Config;
use crate::error::Trouble;

/// Reads the files anew for each connection, so that new certificates need no restart.
pub(super) fn connector(config: &Config) -> Result<Connector, Trouble> {
    let mut roots = RootCertStore::empty();
    match &config.ca {
        Some(file) => {
            for certificate in certificates("ca", file)? {
                roots
                    .add(certificate)
                    .map_err(|error| bad_file("ca", file, &error))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err(Trouble::new(
                    ErrorKind::Invalid,
                    "this system has no certificates of its own to trust: give a file as the setting ca",
                )
                .unsent());
            }
        }
    }
    // Named, so that no other crate of the program has a say.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Trouble::new(ErrorKind::Invalid, error.to_string()).unsent())?
        .with_root_certificates(roots);
    let tls = match &config.identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates("cert", cert)?;
            let private =
                PrivateKeyDer::from_pem_file(key).map_err(|error| bad_file("key", key, &error))?;
            builder
                .with_client_auth_cert(chain, private)
                .map_err(|error| bad_file("cert", cert, &error))?
        }
    };
    Ok(Connector(TlsConnector::from(Arc::new(tls))))
}

fn certificates(what: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, Trouble> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file)
        .map_err(|error| bad_file(what, file, &error))?
        .collect();
    let all = all.map_err(|error| bad_file(what, file, &error))?;
    if all.is_empty() {
        return Err(bad_file(what, file, &"it holds no certificate"));
    }
    Ok(all)
}

fn bad_file(what: &str, file: &Path, why: &dyn std::fmt::Display) -> Trouble {
    let file = file.display();
    Trouble::new(
        ErrorKind::Invalid,
        format!("{what} is {file}, which cannot be used: {why}"),
    )
    .unsent()
}

#[derive(Clone)]
pub(super) struct Connector(TlsConnector);

pub(crate) struct Named {
    connector: TlsConnector,
    server: ServerName<'static>,
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Stream;
    type TlsConnect = Named;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Named, Self::Error> {
        Ok(Named {
            connector: self.0.clone(),
            server: ServerName::try_from(domain.to_owned())?,
        })
    }
}

impl TlsConnect<Socket> for Named {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move {
            let stream = self.connector.connect(self.server, stream).await?;
            Ok(Stream(stream))
        })
    }
}

/// An encrypted stream.
pub(crate) struct Stream(tokio_rustls::client::TlsStream<Socket>);

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
