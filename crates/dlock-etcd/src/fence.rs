//! Where tokens come from: etcd counts one revision for all keys, so the create revision of the hold's own key increases strictly
//! ([C11](dlock_core::contract#c11)).
//!
//! A hold has [`TURNS`] tokens in a row, one for each task of the client to which it is passed on ([C21](dlock_core::contract#c21)): from
//! `revision * TURNS` to just below those of the next revision. Tokens stay below 2^53 up to revision 2^47, and fit a signed 64-bit column up to 2^57,
//! which is a million writes a second for four and for 4,500 years. A hold at a later revision is refused: a token that does not increase would be worse.

use dlock_core::backend::AttemptId;
use dlock_core::{ErrorKind, FencingToken, Guard};
use uuid::Uuid;

use crate::EtcdBackend;
use crate::error::Trouble;

/// How many tokens a hold has.
pub(crate) const TURNS: u32 = 64;

/// The first token of the hold whose key was created at this revision.
pub(crate) fn token(created: i64) -> Option<FencingToken> {
    let first = created.checked_mul(i64::from(TURNS))?;
    // The last one must fit too.
    first.checked_add(i64::from(TURNS) - 1)?;
    u64::try_from(first).ok().map(FencingToken::new)
}

/// The revision at which the hold of this token was created.
fn revision(token: FencingToken) -> Option<i64> {
    i64::try_from(token.get() / u64::from(TURNS)).ok()
}

pub(crate) fn no_token(created: i64) -> Trouble {
    let text = format!(
        "the store is at revision {created}, for which there are no tokens any more: move to a new cluster"
    );
    Trouble::new(ErrorKind::Store, text).in_doubt()
}

/// The comparison that makes a transaction of your own commit only while the lock is held.
///
/// Data in etcd needs no fencing token: add this to your transaction, and etcd itself refuses it once the hold is gone, be it
/// released, expired or broken. A hold that was asked for its comparison is not passed on to another task of the client: its release goes to etcd.
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
    /// The revision at which it was created; the fencing token is 64 times that, and counts on from there when the hold is passed on. Another
    /// revision, or 0 for no such key, means that the hold is gone.
    pub create_revision: i64,
}

impl EtcdBackend {
    /// The comparison for a hold that this backend made; `None` for a guard of several locks.
    pub fn fence(&self, guard: &Guard) -> Option<Fence> {
        let create_revision = revision(guard.token()?)?;
        // The key does not tell whose turn it is.
        guard.not_passed_on();
        let attempt = AttemptId::from(Uuid::parse_str(&guard.owner_id()).ok()?);
        let key = self.store.attempts.key(attempt);
        Some(Fence {
            // Of a hold that is over, the comparison must fail for ever.
            key: key.unwrap_or_else(|| self.store.keys.lock(&guard.name()).nobody()),
            create_revision,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_hold_lie_below_those_of_the_next() {
        let first = |created| token(created).expect("a token").get();
        for created in [1, 2, 1000, (1 << 47) - 1] {
            let last = first(created) + u64::from(TURNS) - 1;
            assert!(last < first(created + 1));
            for turn in [first(created), last] {
                assert_eq!(revision(FencingToken::new(turn)), Some(created));
            }
            assert!(last < 1 << 53, "what JSON and JavaScript keep");
            // Those of the versions before were the revision itself.
            assert!(first(created) > created.cast_unsigned());
        }
    }

    #[test]
    fn tokens_that_would_not_fit_are_refused() {
        let last = (1_i64 << 57) - 1;
        let first = token(last).expect("the last that fits").get();
        assert_eq!(first + u64::from(TURNS) - 1, i64::MAX.cast_unsigned());
        assert_eq!(token(last + 1), None);
        assert_eq!(token(i64::MAX), None);
        assert_eq!(token(-1), None);
        assert!(no_token(last + 1).is_sent(), "what it has put is removed");
    }
}
