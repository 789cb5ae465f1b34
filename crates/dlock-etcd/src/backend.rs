use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::{
    Attempt, Backend, Capabilities, ErrorKind, Fairness, Lease, Liveness, LockInfo, Name, Reach,
    Released, Renewal, Request, Result, WakeUp,
};

use crate::attempts::Attempts;
use crate::config::Config;
use crate::connect::Link;
use crate::key::Keys;
use crate::session::Sessions;

/// One client of an etcd cluster. Made by [`Config::connect`].
#[derive(Debug)]
pub struct EtcdBackend {
    pub(crate) link: Arc<Link>,
    pub(crate) sessions: Sessions,
    pub(crate) attempts: Attempts,
    pub(crate) keys: Keys,
    capabilities: Capabilities,
    identity: String,
}

impl EtcdBackend {
    pub(crate) async fn connect(config: Config) -> Result<Self> {
        let link = Arc::new(Link::new(&config)?);
        // Several servers are tried in turn; together they keep the limit.
        let tries = match link.servers() {
            1 => 1,
            several => u32::try_from(several + 1).unwrap_or(u32::MAX),
        };
        let limit = config.connect_timeout / tries;
        let sessions = Sessions::start(link.clone(), config.session, limit)
            .await
            .map_err(|trouble| {
                // A server that expects TLS, or knows HTTP/1 alone, hangs up on the first bytes, and so does one that expects none; its
                // word about them, or about a client's certificate, can come too late to be seen.
                let hung_up = trouble.kind == ErrorKind::Unreachable && !trouble.refused;
                match config.tls {
                    _ if !hung_up => trouble,
                    true => trouble.hint(
                        "if the server does without TLS, write etcd://; if it asks for a client certificate, give one that it trusts",
                    ),
                    false => trouble
                        .hint("is it the right port? if the server wants TLS, write etcds://"),
                }
            })?;
        Ok(Self {
            capabilities: capabilities(sessions.ttl()),
            identity: config.identity(),
            keys: Keys::new(&config.prefix),
            attempts: Attempts::default(),
            link,
            sessions,
        })
    }
}

fn capabilities(ttl: Duration) -> Capabilities {
    let mut capabilities = Capabilities::new("etcd");
    capabilities.fencing = true;
    capabilities.fairness = Fairness::Fifo;
    capabilities.wake_up = WakeUp::Push {
        bound: Duration::from_millis(50),
    };
    capabilities.liveness = Liveness::Session { ttl };
    capabilities.reach = Reach::Network;
    capabilities.shared = true;
    capabilities.downgrade = true;
    capabilities.permits = true;
    capabilities.inspect = true;
    capabilities.break_lock = true;
    capabilities.shortest_lease = Duration::from_secs(1);
    capabilities.durability = "a hold is on the disks of a majority before it is granted: it survives the loss of a minority, \
        and a restart of all";
    capabilities
}

#[async_trait]
impl Backend for EtcdBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Attempt> {
        Ok(self.try_enter(request).await?)
    }

    async fn acquire(&self, request: &Request) -> Result<Attempt> {
        Ok(self.enter(request).await?)
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.extend(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        self.free(lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.give_up(request).await
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        self.share(lease).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        Ok(self.look(name).await?)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        Ok(self.look_at_all(prefix).await?)
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        Ok(self.break_open(name).await?)
    }

    async fn close(&self) -> Result<()> {
        Ok(self.sessions.close().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<'a, A: 'a, B: 'a, F>(_: impl Fn(&'a A, &'a B) -> F) -> usize {
        size_of::<F>()
    }

    /// The future of a call is made and moved for every call, with room for whatever it may come to. With everything in it, it was 14 kB, and
    /// copying took a fifth of the instructions of a cycle in the calling thread. What is rare belongs in a box.
    #[test]
    fn the_way_of_an_uncontended_cycle_is_short() {
        assert!(size(EtcdBackend::enter) < 5000);
        assert!(size(EtcdBackend::try_enter) < 5000);
        assert!(size(EtcdBackend::free) < 5000);
    }
}
