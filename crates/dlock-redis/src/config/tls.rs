//! What TLS needs: whom to trust, and what to show.

use std::path::{Path, PathBuf};

use dlock_core::{Error, Result};

use super::Config;

/// Whom to trust.
#[derive(Debug, Clone)]
pub(crate) enum Roots {
    /// The list that Mozilla keeps, as it was when this was built.
    Mozilla,
    /// What the operating system trusts.
    System,
    Pem(Pem),
}

/// Something in PEM form.
#[derive(Clone)]
pub(crate) enum Pem {
    Text(Vec<u8>),
    /// Read again for each connection, so that a new one counts.
    File(PathBuf),
}

/// Without keys.
impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(_) => f.write_str("given"),
            Self::File(path) => path.fmt(f),
        }
    }
}

impl Pem {
    pub(crate) fn read(&self, what: &str) -> Result<Vec<u8>> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => read(what, path),
        }
    }
}

impl Config {
    /// Whether to use TLS (needs the feature `tls`). Default: no, except with `rediss://`. For Sentinel it is used for both.
    pub fn tls(mut self, on: bool) -> Self {
        self.tls = on;
        self
    }

    /// The certificate authority to trust, in PEM form, instead of Mozilla's. Implies TLS.
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots = Roots::Pem(Pem::Text(pem.into()));
        self.tls = true;
        self
    }

    /// The same in a file, which is read again for each connection: after a change of authority there is no need to start anew.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.roots = Roots::Pem(Pem::File(path.into()));
        self.tls = true;
        self
    }

    /// Trusts whom the operating system trusts, instead of Mozilla's list, read again for each connection. Implies TLS. The variables
    /// `SSL_CERT_FILE` and `SSL_CERT_DIR` name other places, as for other programs.
    pub fn system_ca(mut self) -> Self {
        self.roots = Roots::System;
        self.tls = true;
        self
    }

    /// The certificate and private key to show to the server, in PEM form. Implies TLS.
    pub fn client_certificate(mut self, cert: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.identity = Some((Pem::Text(cert.into()), Pem::Text(key.into())));
        self.tls = true;
        self
    }

    /// The same in files, which are read again for each connection: renew them in place.
    pub fn client_certificate_files(
        mut self,
        cert: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.identity = Some((Pem::File(cert.into()), Pem::File(key.into())));
        self.tls = true;
        self
    }

    pub(super) fn check_tls(&self) -> Result<()> {
        // What cannot be read shows now, and not with the next connection.
        if let Roots::Pem(ca) = &self.roots {
            ca.read("ca")?;
        }
        if let Some((cert, key)) = &self.identity {
            cert.read("cert")?;
            key.read("key")?;
        }
        if !self.tls && (!matches!(self.roots, Roots::Mozilla) || self.identity.is_some()) {
            return Err(Error::invalid(
                "certificates are given but TLS is off: write rediss:// (or tls=true), or leave them out",
            ));
        }
        if self.tls && cfg!(not(feature = "tls")) {
            return Err(Error::invalid(
                "TLS is asked for, but dlock-redis was built without the feature \"tls\": enable it",
            ));
        }
        Ok(())
    }
}

fn read(what: &str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        Error::invalid(format!(
            "the file {path:?} of the parameter {what} cannot be read: {error}"
        ))
    })
}
