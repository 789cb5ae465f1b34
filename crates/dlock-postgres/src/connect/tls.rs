//! TLS by rustls, for the client, which leaves it open.
#![cfg(feature = "tls")]

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use dlock_core::ErrorKind;
use dlock_core::kit::{Pem, Tls, Trust};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use crate::error::Trouble;

/// Reads the files anew for each connection, so that new certificates need no restart.
pub(super) fn connector(tls: &Tls) -> Result<Connector, Trouble> {
    // Named, so that no other crate of the program has a say.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(error.to_string()))?;
    let builder = match tls.trust() {
        Trust::Anybody => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider))),
        Trust::Authority(ca) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates("ca", ca)? {
                roots
                    .add(certificate)
                    .map_err(|error| bad("ca", ca, &error))?;
            }
            builder.with_root_certificates(roots)
        }
        _ => builder.with_root_certificates(system_roots()?),
    };
    let config = match tls.identity() {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates("cert", cert)?;
            let private = PrivateKeyDer::from_pem_slice(&read("key", key)?)
                .map_err(|error| bad("key", key, &error))?;
            builder
                .with_client_auth_cert(chain, private)
                .map_err(|error| bad("cert", cert, &error))?
        }
    };
    Ok(Connector {
        tls: TlsConnector::from(Arc::new(config)),
        name: tls.name().map(str::to_owned),
    })
}

fn system_roots() -> Result<RootCertStore, Trouble> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let none =
            "this system has no certificates of its own to trust: give a file as the setting ca";
        return Err(unusable(none.to_owned()));
    }
    Ok(roots)
}

fn certificates(what: &str, pem: &Pem) -> Result<Vec<CertificateDer<'static>>, Trouble> {
    let text = read(what, pem)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| bad(what, pem, &error))?;
    if all.is_empty() {
        return Err(bad(what, pem, &"it holds no certificate"));
    }
    Ok(all)
}

fn read(what: &str, pem: &Pem) -> Result<Vec<u8>, Trouble> {
    pem.read(what)
        .map_err(|error| Trouble::from(error).unsent())
}

fn bad(what: &str, pem: &Pem, why: &dyn std::fmt::Display) -> Trouble {
    unusable(format!("{what} ({pem:?}) cannot be used: {why}"))
}

fn unusable(text: String) -> Trouble {
    Trouble::new(ErrorKind::Invalid, text).unsent()
}

/// Takes every certificate, and checks only that the server has its key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[derive(Clone)]
pub(super) struct Connector {
    tls: TlsConnector,
    /// The name to check, if it is not the host's.
    name: Option<String>,
}

pub(crate) struct Named {
    connector: TlsConnector,
    server: ServerName<'static>,
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Stream;
    type TlsConnect = Named;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Named, Self::Error> {
        let name = self.name.as_deref().unwrap_or(domain);
        Ok(Named {
            connector: self.tls.clone(),
            server: ServerName::try_from(name.to_owned())?,
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
