//! The certificates for a connection that is made now.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dlock_core::ErrorKind;
use dlock_core::kit::{Tls, Trust};
use redis::{ClientTlsConfig, TlsCertificates};

use crate::error::Trouble;

pub(super) fn certificates(tls: &Tls) -> Result<TlsCertificates, Trouble> {
    // The client takes the process's cryptography, and panics if none is chosen and a further crate of the program has brought a
    // second one. What the program has chosen stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let unreadable =
        |error: dlock_core::Error| Trouble::new(ErrorKind::Denied, error.message()).unsent();
    let client_tls = match tls.identity() {
        None => None,
        Some((cert, key)) => Some(ClientTlsConfig {
            client_cert: cert.read("cert").map_err(unreadable)?,
            client_key: key.read("key").map_err(unreadable)?,
        }),
    };
    let root_cert = match tls.trust() {
        Trust::System => Some(of_the_system()?),
        Trust::Authority(ca) => Some(ca.read("ca").map_err(unreadable)?),
        _ => None,
    };
    Ok(TlsCertificates {
        client_tls,
        root_cert,
    })
}

/// Whom the system trusts, in PEM form: the client takes no other.
fn of_the_system() -> Result<Vec<u8>, Trouble> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})"));
        return Err(Trouble::new(
            ErrorKind::Denied,
            format!(
                "the system trusts no certificate authority{}: install its list (package ca-certificates), or give a file as ca",
                why.unwrap_or_default()
            ),
        )
        .unsent());
    }
    let mut pem = String::new();
    for certificate in found.certs {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let text = STANDARD.encode(&certificate);
        for (place, letter) in text.char_indices() {
            if place > 0 && place % 64 == 0 {
                pem.push('\n');
            }
            pem.push(letter);
        }
        pem.push_str("\n-----END CERTIFICATE-----\n");
    }
    Ok(pem.into_bytes())
}
