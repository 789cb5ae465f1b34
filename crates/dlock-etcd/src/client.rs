//! The client below, for questions and data that are not locks (feature `client`).
//!
//! Its types are those of the crate `etcd-client` and no part of our promises: any version of this crate may change them.

use std::time::{Duration, Instant};

use dlock_core::{Error, Operation, Result};
pub use etcd_client;
use etcd_client::Client;

use crate::connect::{self, Cluster};
use crate::error::Trouble;
use crate::{Config, EtcdBackend};

impl Config {
    /// Keeps locks over a client that the application has already. Requests, signs of life and watches go through it, so that they cost the server no
    /// connection more.
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use dlock_etcd::client::etcd_client::{Client, ConnectOptions};
    ///
    /// let options = ConnectOptions::new()
    ///     .with_keep_alive(Duration::from_secs(10), Duration::from_secs(2))
    ///     .with_require_leader(true);
    /// let client = Client::connect(["etcd-1:2379"], Some(options)).await?; // as the application has it
    /// let backend = dlock_etcd::Config::from_url("etcd://etcd-1")?.connect_over(client.clone()).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// These settings must name the members of the same cluster: by them two of our clients know that they share their locks
    /// ([`identity`](dlock_core::backend::Backend::identity)). Prefix, session and time-outs are those of the settings; login, TLS and
    /// how a connection is made are the client's. What cannot be promised then:
    ///
    /// - **No second server in time.** Which member is asked is the client's choice, and it may ask one that is silent again: of a client of our own each
    ///   request goes to another member after [`answer_timeout`](Config::answer_timeout). A silent member can cost holds and places.
    /// - **A silent connection is replaced by the client's pings alone**: without `with_keep_alive` a connection that is open on our side only is used
    ///   until the system gives it up, and the holds are lost.
    /// - **A member without a leader** goes on to serve watches unless the client asks for one (`with_require_leader`). Waiters then wake by their slow look, every third of
    ///   the session.
    /// - The client lives in the runtime that made it. When that ends, so do the locks.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Config::connect).
    pub async fn connect_over(self, client: Client) -> Result<EtcdBackend> {
        dlock_core::backend::need_runtime("etcd")?;
        let connected = async {
            self.check()?;
            let start = Instant::now();
            let config = self.discovered().await?;
            let left = config.connect_timeout.saturating_sub(start.elapsed());
            let cluster = Cluster::new(&config, Some(client))?;
            EtcdBackend::connect(&config, cluster, left).await
        };
        connected.await.map_err(with_context)
    }

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
        let client = self.client_of(endpoint).await;
        client.map_err(|trouble| with_context(trouble.into()))
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

fn with_context(error: Error) -> Error {
    error
        .with_backend("etcd")
        .with_operation(Operation::Connect)
}
