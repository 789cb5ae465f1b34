//! How a connection is encrypted.

use std::fmt;
use std::path::PathBuf;

use super::UrlKey;
use crate::backend::BackendUrl;
use crate::{Error, ErrorKind, Result};

/// TLS for the connections to a store: whom to trust, and what to show. The same type for every store, given to its `Config::tls`.
///
/// Without further settings the server must have a certificate for its host name, signed by an authority that this program trusts by default. In a URL it is
/// the scheme that turns TLS on (`rediss://`, `etcds://`, `zks://`), or `tls=true`; certificates alone never do.
///
/// ```
/// use dlock_core::kit::Tls;
///
/// let tls = Tls::new().ca_file("/etc/shop/ca.pem").client_certificate_files("/etc/shop/app.pem", "/etc/shop/app.key");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use = "nothing happens until it is given to a `Config`"]
pub struct Tls {
    trust: Trust,
    identity: Option<(Pem, Pem)>,
    server_name: Option<String>,
}

/// Whom a client trusts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Trust {
    /// The authorities that the backend's client trusts by itself.
    #[default]
    Usual,
    /// Those that the operating system trusts.
    System,
    /// This one alone.
    Authority(Pem),
    /// Whoever answers.
    Anybody,
}

/// Certificates or a key in PEM form.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// The text itself.
    Text(Vec<u8>),
    /// A file, read for each connection where the client allows it, so that it can be renewed in place.
    File(PathBuf),
}

/// What of [`Tls`] a backend's client can do beyond an authority and a client certificate.
#[derive(Debug, Clone, Copy, Default)]
pub struct TlsOffer {
    /// The crate, whose feature `tls` must be enabled.
    pub crate_name: &'static str,
    /// Whether it is: `cfg!(feature = "tls")`.
    pub enabled: bool,
    /// [`Tls::system_ca`].
    pub system_ca: bool,
    /// [`Tls::unverified`].
    pub unverified: bool,
    /// [`Tls::server_name`].
    pub server_name: bool,
}

impl Tls {
    /// The keys that [`take`](Tls::take) takes.
    pub const KEYS: &'static [UrlKey] = &[
        UrlKey::new(
            "tls",
            "`true`, `false`, `unverified`",
            "as the scheme says",
            "whether the connection is encrypted; `unverified`: with whoever answers, where the store's client can do that",
        ),
        UrlKey::new(
            "ca",
            "a PEM file, or `system`",
            "",
            "the authority to trust, or those that the operating system trusts",
        ),
        UrlKey::new("cert", "a PEM file", "", "the client's own certificate"),
        UrlKey::new("key", "a PEM file", "", "its private key"),
        UrlKey::new(
            "server_name",
            "a name",
            "the host's own",
            "the name in the server's certificate, where the store's client can check another than the host's",
        ),
    ];

    /// TLS with the usual authorities and no certificate of our own.
    pub fn new() -> Self {
        Self::default()
    }

    /// The authority to trust, in PEM form, instead of the usual ones.
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.trust = Trust::Authority(Pem::Text(pem.into()));
        self
    }

    /// The same in a file.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.trust = Trust::Authority(Pem::File(path.into()));
        self
    }

    /// Trusts whom the operating system trusts. The variables `SSL_CERT_FILE` and `SSL_CERT_DIR` name other places, as for other programs.
    pub fn system_ca(mut self) -> Self {
        self.trust = Trust::System;
        self
    }

    /// Encrypts **without checking who the server is**: whoever can put themselves between this program and the server reads and changes everything, locks
    /// and password included. It keeps out those who only listen. For a server whose certificate nobody has signed,
    /// [`ca_file`](Self::ca_file) with that certificate is the right way.
    pub fn unverified(mut self) -> Self {
        self.trust = Trust::Anybody;
        self
    }

    /// The certificate and private key to show to the server, in PEM form.
    pub fn client_certificate(mut self, cert: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.identity = Some((Pem::Text(cert.into()), Pem::Text(key.into())));
        self
    }

    /// The same in files.
    pub fn client_certificate_files(
        mut self,
        cert: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.identity = Some((Pem::File(cert.into()), Pem::File(key.into())));
        self
    }

    /// The name in the servers' certificates, where it is not the host's own: for servers that are reached by an address, or through a tunnel.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// The same with this server name, unless one is set.
    pub fn or_server_name(mut self, name: &str) -> Self {
        self.server_name.get_or_insert_with(|| name.to_owned());
        self
    }

    /// The settings of a URL; `by_scheme` says whether its scheme asks for TLS. `None` without TLS.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a value that is wrong, half of a client certificate, and certificates without TLS.
    pub fn take(url: &mut BackendUrl, by_scheme: bool) -> Result<Option<Self>> {
        let asked: Option<String> = url.take("tls")?;
        let (is_on, is_unverified) = match asked.as_deref() {
            None => (by_scheme, false),
            Some("true") => (true, false),
            Some("unverified") => (true, true),
            Some("false") if by_scheme => {
                return Err(Error::invalid(format!(
                    "the URL's scheme {:?} asks for TLS, and tls=false for none: leave one of them out",
                    url.scheme()
                )));
            }
            Some("false") => (false, false),
            Some(other) => {
                return Err(Error::invalid(format!(
                    "the URL's parameter tls={other:?} is wrong: it is true, false, or unverified (encrypted, but with whoever answers)"
                )));
            }
        };
        let ca: Option<String> = url.take("ca")?;
        if is_unverified && ca.is_some() {
            return Err(Error::invalid(
                "tls=unverified trusts every server, and ca says which ones to trust: leave one of them out",
            ));
        }
        let mut tls = Self {
            trust: match ca.as_deref() {
                None if is_unverified => Trust::Anybody,
                None => Trust::Usual,
                Some("system") => Trust::System,
                Some(path) => Trust::Authority(Pem::File(path.into())),
            },
            identity: None,
            server_name: url.take("server_name")?,
        };
        let cert: Option<String> = url.take("cert")?;
        let key: Option<String> = url.take("key")?;
        match (cert, key) {
            (Some(cert), Some(key)) => tls = tls.client_certificate_files(cert, key),
            (None, None) => {}
            _ => {
                return Err(Error::invalid(
                    "the URL's parameters cert and key belong together: give both or none",
                ));
            }
        }
        if !is_on && tls != Self::default() {
            return Err(Error::invalid(
                "ca, cert, key and server_name are for TLS, which is off: set tls=true, or leave them out",
            ));
        }
        Ok(is_on.then_some(tls))
    }

    /// Whether the backend can do what is asked, and its files can be read: that would be told as an outage later.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for what the backend cannot do, or was built without; [`ErrorKind::Invalid`] for a file that cannot be read.
    pub fn check(&self, offer: TlsOffer) -> Result<()> {
        let lacks = |what: &str| {
            Err(Error::new(
                ErrorKind::Unsupported,
                format!("{what}, which the client of this store cannot do: leave it out"),
            ))
        };
        if !offer.enabled {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "TLS is asked for, but this program was built without it: enable the feature \"tls\" of the crate {}",
                    offer.crate_name
                ),
            ));
        }
        match &self.trust {
            Trust::System if !offer.system_ca => {
                return lacks("ca=system trusts whom the operating system trusts");
            }
            Trust::Anybody if !offer.unverified => {
                return lacks("tls=unverified trusts whoever answers");
            }
            Trust::Authority(ca) => drop(ca.read("ca")?),
            _ => {}
        }
        if self.server_name.is_some() && !offer.server_name {
            return lacks("server_name asks for a certificate with another name than the host's");
        }
        if let Some((cert, key)) = &self.identity {
            cert.read("cert")?;
            key.read("key")?;
        }
        Ok(())
    }

    /// Whom to trust.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// The client's certificate and key.
    pub fn identity(&self) -> Option<(&Pem, &Pem)> {
        self.identity.as_ref().map(|(cert, key)| (cert, key))
    }

    /// The name to check, if it is not the host's.
    pub fn name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }
}

impl Pem {
    /// The text; `what` is the setting, for the error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when the file cannot be read.
    pub fn read(&self, what: &str) -> Result<Vec<u8>> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => std::fs::read(path).map_err(|error| {
                Error::invalid(format!(
                    "{what} is {}, which cannot be read: {error}",
                    path.display()
                ))
            }),
        }
    }
}

/// Without keys.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("given"),
            Self::File(path) => path.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;
