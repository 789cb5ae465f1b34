//! The proxies in front of a whole store, disturbed as one: the [`Fault`] of most harnesses.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{Direction, FaultProxy};
use crate::Fault;

/// What disturbs the way of one client to its store: a [`FaultProxy`] for each server, all of them disturbed at once.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use dlock_core::{Result, backend::Backend};
/// # async fn connect(url: &str) -> Result<Arc<dyn Backend>> { unimplemented!() }
/// use dlock_conformance::{Faulty, proxy::ProxyFault};
///
/// // The body of `Harness::faulty`.
/// async fn faulty(server: std::net::SocketAddr) -> Result<Faulty> {
///     let fault = ProxyFault::start(&[server]).await?;
///     Ok(Faulty {
///         backend: connect(&format!("mystore://{}", fault.addrs()[0])).await?,
///         fault: Arc::new(fault),
///     })
/// }
/// ```
///
/// The proxies live until the runtime ends in which they were started, also when this handle is dropped before, as
/// [`Harness::faulty`](crate::Harness::faulty) asks.
#[derive(Debug, Clone)]
pub struct ProxyFault {
    proxies: Arc<[FaultProxy]>,
    /// The requests whose replies count for [`Fault::lose_reply`], and how long their server may take; `None`: any.
    requests: Option<(Vec<u8>, Duration)>,
}

impl ProxyFault {
    /// Starts a proxy in front of each of these servers.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`](dlock_core::ErrorKind::Store) when no port can be bound.
    pub async fn start(servers: &[SocketAddr]) -> dlock_core::Result<Self> {
        let mut proxies = Vec::new();
        for server in servers {
            let failed = |error: io::Error| {
                let text = format!("no proxy for {server}: {error}");
                dlock_core::Error::new(dlock_core::ErrorKind::Store, text)
            };
            proxies.push(FaultProxy::start(*server).await.map_err(failed)?);
        }
        let proxies: Arc<[FaultProxy]> = proxies.into();
        // A case may drop the fault and go on with the client: its way to the store must stay.
        let kept = proxies.clone();
        tokio::spawn(async move {
            let _kept = kept;
            pending::<()>().await;
        });
        Ok(Self {
            proxies,
            requests: None,
        })
    }

    /// Where the client connects, in the order of the servers.
    #[must_use]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.proxies.iter().map(FaultProxy::addr).collect()
    }

    /// The proxies, in the order of the servers.
    #[must_use]
    pub fn proxies(&self) -> &[FaultProxy] {
        &self.proxies
    }

    /// For stores that send other things than answers, such as heartbeats and frames of HTTP/2: the reply to lose is that to a request
    /// which contains `pattern`, and the server answers it within `settle`. See [`FaultProxy::drop_reply_to`].
    #[must_use]
    pub fn losing_replies_to(mut self, pattern: impl Into<Vec<u8>>, settle: Duration) -> Self {
        self.requests = Some((pattern.into(), settle));
        self
    }
}

#[async_trait]
impl Fault for ProxyFault {
    async fn cut(&self) {
        for proxy in &*self.proxies {
            proxy.refuse();
            proxy.reset_all().await;
        }
    }

    async fn hang(&self) {
        for proxy in &*self.proxies {
            proxy.black_hole(Direction::Both);
        }
    }

    async fn half_open(&self) {
        for proxy in &*self.proxies {
            proxy.half_open();
        }
    }

    async fn heal(&self) {
        for proxy in &*self.proxies {
            proxy.heal().await;
            proxy.accept();
        }
    }

    async fn lose_reply(&self) {
        for proxy in &*self.proxies {
            match &self.requests {
                Some((pattern, settle)) => proxy.drop_reply_to(pattern.clone(), *settle),
                None => proxy.drop_reply(1),
            }
        }
    }

    async fn delay_replies(&self, delay: Duration) {
        for proxy in &*self.proxies {
            proxy.delay(Direction::ToClient, delay);
        }
    }
}
