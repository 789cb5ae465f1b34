//! The client below, for questions and data that are not locks (feature `client`).
//!
//! Its types are those of the crate `etcd-client` and no part of our promises: any version of this crate may change them.

use std::time::Duration;

use dlock_core::{Operation, Result};
pub use etcd_client;
use etcd_client::Client;

use crate::Config;
use crate::connect;
use crate::error::Trouble;

impl Config {
    /// The session's time that these settings ask for; [`Capabilities::liveness`](dlock_core::Capabilities::liveness) tells the one
    /// that was granted.
    pub fn asked_session(&self) -> Duration {
        self.session
    }

    /// The servers that are named, or were [`discovered`](Config::discovered), as [`client`](Config::client) takes them: `https://host:2379`.
    pub fn endpoints(&self) -> Vec<String> {
        connect::endpoints(self)
    }

    /// A client of one server, with the login and the certificates of these settings. It connects with its first request, or
    /// with the login if there is one; each request is given [`answer_timeout`](Config::answer_timeout).
    ///
    /// ```no_run
    /// # async fn ask() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = dlock_etcd::Config::from_url("etcd://etcd-1,etcd-2")?;
    /// for endpoint in config.endpoints() {
    ///     let status = config.client(&endpoint).await?.status().await?;
    ///     println!("{endpoint} runs {}", status.version());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A setting that is wrong, or a login that fails.
    pub async fn client(&self, endpoint: &str) -> Result<Client> {
        self.client_of(endpoint).await.map_err(|trouble| {
            dlock_core::Error::from(trouble)
                .with_backend("etcd")
                .with_operation(Operation::Connect)
        })
    }

    async fn client_of(&self, endpoint: &str) -> std::result::Result<Client, Trouble> {
        let limit = self.connect_timeout;
        let connecting = async {
            let options = connect::options(self).await?;
            let options = options.with_timeout(self.answer_timeout);
            Ok(Client::connect([endpoint], Some(options)).await?)
        };
        let client = tokio::time::timeout(limit, connecting).await;
        client.unwrap_or_else(|_| Err(Trouble::silence(limit)))
    }
}
