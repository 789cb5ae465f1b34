//! Leases.

use std::time::Duration;

use etcd_client::{LeaseGrantOptions, LeaseTimeToLiveOptions, ResponseHeader};

use super::Cluster;
use super::member::MemberChannel;
use crate::error::{Cause, Trouble};

impl Cluster {
    /// Grants a lease with this id, and tells how long it lasts.
    pub(crate) async fn grant(
        &self,
        id: i64,
        ttl: Duration,
        limit: Option<Duration>,
    ) -> Result<Duration, Trouble> {
        let seconds = whole_seconds(ttl);
        let granted = self
            .call(
                limit,
                MemberChannel::lease_client,
                |mut leases| async move {
                    let options = LeaseGrantOptions::new().with_id(id);
                    leases.grant(seconds, Some(options)).await
                },
            )
            .await;
        match granted {
            Ok(told) => Ok(Duration::from_secs(
                u64::try_from(told.value.ttl()).unwrap_or_default(),
            )),
            // An earlier try was carried out: the lease has our id.
            Err(trouble) if trouble.cause == Cause::LeaseExists => self.lasts(id).await,
            Err(trouble) => Err(trouble),
        }
    }

    async fn lasts(&self, id: i64) -> Result<Duration, Trouble> {
        let told = self
            .call(None, MemberChannel::lease_client, |mut leases| async move {
                leases.time_to_live(id, None).await
            })
            .await?;
        match u64::try_from(told.value.granted_ttl()) {
            Ok(seconds) if told.value.ttl() > 0 => Ok(Duration::from_secs(seconds)),
            _ => Err(Trouble::session_ended()),
        }
    }

    /// One sign of life for a lease.
    pub(crate) async fn keep_alive(&self, id: i64, limit: Duration) -> Result<(), Trouble> {
        let limit = limit.min(self.answer_timeout);
        self.call(
            Some(limit),
            MemberChannel::lease_client,
            |mut leases| async move {
                // The stream's first answer belongs to this request; the stream ends with this block.
                leases.keep_alive(id).await.map(drop)
            },
        )
        .await
        .map(drop)
    }

    /// The keys that hang on a lease; `None` when it has ended.
    pub(crate) async fn keys_of(
        &self,
        id: i64,
        limit: Duration,
    ) -> Result<Option<Vec<Vec<u8>>>, Trouble> {
        let limit = limit.min(self.answer_timeout);
        let known = self.newest_revision();
        let told = self
            .call(
                Some(limit),
                MemberChannel::lease_client,
                |mut leases| async move {
                    let options = LeaseTimeToLiveOptions::new().with_keys();
                    leases.time_to_live(id, Some(options)).await
                },
            )
            .await?;
        // The server's own revision: it may lag behind, or the store is an old copy.
        let revision = told.value.header().map_or(0, ResponseHeader::revision);
        if revision < known {
            self.suspect();
        }
        let lives = told.value.ttl() > 0;
        Ok(lives.then(|| told.value.keys().to_vec()))
    }

    /// How long the store would keep a lease from now on.
    pub(crate) async fn remaining(&self, id: i64) -> Result<Option<Duration>, Trouble> {
        let told = self
            .call(None, MemberChannel::lease_client, |mut leases| async move {
                leases.time_to_live(id, None).await
            })
            .await?;
        Ok(u64::try_from(told.value.ttl())
            .ok()
            .map(Duration::from_secs))
    }

    pub(crate) async fn revoke(&self, id: i64) -> Result<(), Trouble> {
        self.call(None, MemberChannel::lease_client, |mut leases| async move {
            leases.revoke(id).await
        })
        .await
        .map(drop)
    }
}

/// A lease lasts whole seconds.
pub(crate) fn whole_seconds(time: Duration) -> i64 {
    let more = u64::from(time.subsec_nanos() > 0);
    i64::try_from(time.as_secs().saturating_add(more)).unwrap_or(i64::MAX)
}
