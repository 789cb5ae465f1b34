//! Servers that elect a leader among themselves.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::try_join_all;

use super::{Server, Site, Store, with_other_ports};
use crate::{Error, Result, until};

/// How long an election may take.
const ELECTION_LIMIT: Duration = Duration::from_secs(60);

/// A store whose servers form a group with a leader.
pub trait Elects: Store {
    /// The settings that suit a member of a group.
    fn for_group() -> Self;

    /// These settings for the member at `index` of a group that lives at `sites`.
    #[must_use]
    fn member(self, index: usize, sites: &[Site]) -> Self;

    /// Whether the server at `addr` says that it leads.
    fn leads(&self, addr: SocketAddr) -> impl Future<Output = Result<bool>> + Send;
}

/// A running group: an etcd cluster or a ZooKeeper ensemble.
#[derive(Debug)]
pub struct Group<S> {
    members: Vec<Server<S>>,
}

impl<S: Elects> Group<S> {
    /// Starts a group of three, and waits until it has a leader and every member serves.
    ///
    /// # Errors
    /// When a program is missing, or the group does not form.
    pub async fn start() -> Result<Self> {
        Self::start_with(S::for_group(), 3).await
    }

    /// Starts a group of `size` members, each with these settings.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(settings: S, size: usize) -> Result<Self> {
        let group = with_other_ports(|| async {
            let sites = (0..size)
                .map(|_| Site::claim(&settings))
                .collect::<Result<Vec<_>>>()?;
            let stores: Vec<_> = (0..size)
                .map(|index| settings.clone().member(index, &sites))
                .collect();
            // Together, because none is ready before most are there.
            let starts = stores
                .into_iter()
                .zip(sites)
                .map(|(store, site)| Server::start_at(store, site));
            Ok(Self {
                members: try_join_all(starts).await?,
            })
        })
        .await?;
        group.leader().await?;
        Ok(group)
    }

    /// All members, in the order of their start, running or not.
    #[must_use]
    pub fn members(&self) -> &[Server<S>] {
        &self.members
    }

    /// The addresses of all members.
    #[must_use]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.members.iter().map(Server::addr).collect()
    }

    /// The URL for `dlocks::connect`, with all members.
    #[must_use]
    pub fn url(&self) -> String {
        let rest: Vec<_> = self
            .addrs()
            .iter()
            .skip(1)
            .map(|addr| format!(",{addr}"))
            .collect();
        self.members[0].url() + &rest.concat()
    }

    /// The member that leads now. Waits while there is none.
    ///
    /// # Errors
    /// When none is elected within a minute.
    pub async fn leader(&self) -> Result<&Server<S>> {
        self.leader_among(|_| true).await
    }

    /// The member that leads after `lost` was killed or frozen. Waits until the others have elected it.
    ///
    /// # Errors
    /// As [`leader`](Self::leader).
    pub async fn leader_after(&self, lost: &Server<S>) -> Result<&Server<S>> {
        self.leader_among(|member| member.port() != lost.port())
            .await
    }

    async fn leader_among(&self, may: impl Fn(&Server<S>) -> bool) -> Result<&Server<S>> {
        until(
            &format!("a leader among {} servers", S::NAME),
            ELECTION_LIMIT,
            || async {
                for member in self.members.iter().filter(|member| may(member)) {
                    // A member that is down, frozen or not yet part of the group does not lead.
                    let asked = tokio::time::timeout(
                        Duration::from_millis(500),
                        member.settings().leads(member.addr()),
                    );
                    if let Ok(Ok(true)) = asked.await {
                        return Ok(member);
                    }
                }
                Err(Error::answer("who leads?", "nobody"))
            },
        )
        .await
    }
}
