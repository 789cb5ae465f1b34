//! The client below, for questions and data that are not locks (feature `client`).
//!
//! Its types are those of the crate `zookeeper-client` and no part of our promises: any version of this crate may change them.

use std::time::Duration;

use dlock_core::{Operation, Result};
pub use zookeeper_client;

use crate::{Config, connect};

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
        connect::connect(self, None)
            .await
            .map_err(|error| error.with_backend("zk").with_operation(Operation::Connect))
    }
}
