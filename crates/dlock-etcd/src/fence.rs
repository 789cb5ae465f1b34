//! The token is the create revision of the hold's own key: etcd counts one revision for all keys, so it increases strictly (C11).

use dlock_core::Guard;
use dlock_core::backend::AttemptId;
use uuid::Uuid;

use crate::EtcdBackend;

/// The comparison that makes a transaction of your own commit only while the lock is held.
///
/// Data in etcd needs no fencing token: add this to your transaction, and etcd itself refuses it once the hold is gone, be it
/// released, expired or broken.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use dlock_core::Locks;
/// use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
///
/// let backend = Arc::new(dlock_etcd::Config::from_url("etcd://localhost")?.connect().await?);
/// let locks = Locks::new(backend.clone())?;
/// let guard = locks.mutex("stock:42")?.lock().await?;
///
/// let fence = backend.fence(&guard).ok_or("not a lock of this backend")?;
/// let held = Compare::create_revision(fence.key, CompareOp::Equal, fence.create_revision);
/// let mut etcd = Client::connect(["localhost:2379"], None).await?;
/// let sold = etcd.txn(Txn::new().when([held]).and_then([TxnOp::put("stock/42", "4999", None)])).await?;
/// assert!(sold.succeeded(), "the lock was lost");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fence {
    /// The key of the hold.
    pub key: Vec<u8>,
    /// The revision at which it was created: also the fencing token. Another revision, or 0 for no such key, means that the hold is gone.
    pub create_revision: i64,
}

impl EtcdBackend {
    /// The comparison for a hold that this backend made; `None` for a guard of several locks.
    pub fn fence(&self, guard: &Guard) -> Option<Fence> {
        let create_revision = i64::try_from(guard.token()?.get()).ok()?;
        let attempt = AttemptId::from(Uuid::parse_str(&guard.owner_id()).ok()?);
        let key = self.store.attempts.key(attempt);
        Some(Fence {
            // Of a hold that is over, the comparison must fail for ever.
            key: key.unwrap_or_else(|| self.store.keys.lock(&guard.name()).nobody()),
            create_revision,
        })
    }
}
