//! Another client, for questions and data that are not locks (feature `client`).
//!
//! Its types are those of the crate `zookeeper-client` and no part of our promises: any version of this crate may change them.

use std::time::Duration;

#[cfg(feature = "tls")]
use dlock_core::kit::{Pem, Trust};
use dlock_core::{Error, ErrorKind, Operation, Result};
pub use zookeeper_client;

use crate::Config;
use crate::config::Auth;
use crate::connect::Session;

impl Config {
    /// The session's time that these settings ask for; [`Capabilities::liveness`](dlock_core::Capabilities::liveness) tells the one
    /// that was granted.
    pub fn asked_session(&self) -> Duration {
        self.session_time()
    }

    /// A session of its own, with the chroot and the credentials of these settings. It ends when the last clone is dropped.
    ///
    /// ```no_run
    /// # async fn ask() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = dlock_zk::Config::from_url("zk://zk-1,zk-2/shop")?.client().await?;
    /// let (stock, _) = client.get_data("/stock").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`connect`](Config::connect).
    pub async fn client(&self) -> Result<zookeeper_client::Client> {
        self.check()?;
        let opened = async {
            // The other client does not tell why there is no connection; ours does.
            Session::open(self).await?;
            self.connect_client().await
        };
        opened
            .await
            .map_err(|error| error.with_backend("zk").with_operation(Operation::Connect))
    }

    async fn connect_client(&self) -> Result<zookeeper_client::Client> {
        let failed = |cause: zookeeper_client::Error| {
            Error::new(ErrorKind::Unreachable, format!("no connection: {cause}")).with_source(cause)
        };
        let mut connector =
            zookeeper_client::Client::connector().with_session_timeout(self.session_time());
        match self.shown_login() {
            None => {}
            Some(login) if login.auth == Auth::Digest => {
                let (user, password) = login.now().await?;
                let auth = format!("{user}:{password}");
                connector = connector.with_auth("digest", auth.as_bytes());
            }
            Some(_) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "the client for other questions was built without SASL: locks work, these questions do not",
                ));
            }
        }
        let servers = self.servers();
        #[cfg(feature = "tls")]
        if let Some(tls) = self.tls_settings() {
            // It takes the cryptography that the process has chosen, and panics if there are two to choose from and none is. It brings a
            // second one itself, so we choose; what the program has chosen stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let mut options = zookeeper_client::TlsOptions::new();
            let text = |pem: &Pem, what| -> Result<String> {
                Ok(String::from_utf8_lossy(&pem.read(what)?).into_owned())
            };
            if let Trust::Authority(ca) = tls.trust() {
                options = options.with_pem_ca(&text(ca, "ca")?).map_err(failed)?;
            }
            if let Some((cert, key)) = tls.identity() {
                let (cert, key) = (text(cert, "cert")?, text(key, "key")?);
                options = options.with_pem_identity(&cert, &key).map_err(failed)?;
            }
            let connector = connector.with_tls(options);
            return connector.secure_connect(&servers).await.map_err(failed);
        }
        connector.connect(&servers).await.map_err(failed)
    }
}
