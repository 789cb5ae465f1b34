//! Where the token comes from, and changes at ZooKeeper that only the holder can make.

use dlock_core::backend::Lease;
use dlock_core::{Error, ErrorKind, FencingToken, Guard, HeldNow, Result};

use crate::ZkBackend;

/// How many tokens a hold has.
pub(crate) const TURNS: u32 = 64;

/// The first token of the hold whose node was created by this transaction. Transactions are numbered for the whole ensemble, across
/// restarts and leaders, and the order of the nodes of a lock is the order of their creation ([C11](dlock_core::contract#c11)). A hold has [`TURNS`]
/// tokens in a row, one for each task of the client to which it is passed on ([C21](dlock_core::contract#c21)): from `czxid * TURNS` to just below
/// those of the next transaction.
///
/// The number is the leader's epoch in the upper half, and a counter in the lower half. So tokens stay below 2^53 for 32,767 elections, and
/// fit a signed 64-bit column for 33 million. Beyond that there is none, and the hold is refused: a token that does not increase would be worse.
pub(crate) fn token(czxid: i64) -> Option<FencingToken> {
    let first = czxid.checked_mul(i64::from(TURNS))?;
    // The last one must fit too.
    first.checked_add(i64::from(TURNS) - 1)?;
    u64::try_from(first).ok().map(FencingToken::new)
}

pub(crate) fn with_token(lease: Lease, czxid: i64) -> Result<Lease> {
    match token(czxid) {
        Some(token) => Ok(lease.with_token(token.get())),
        // Its node is there, so that whoever asked has to undo it.
        None => Err(Error::new(
            ErrorKind::Store,
            format!("the ensemble is at transaction {czxid:#x}, for which there are no tokens any more: move to a new one"),
        )
        .with_held(HeldNow::Unknown)),
    }
}

/// One change of a [`Fenced`] transaction. Paths are absolute at the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Create {
        path: String,
        data: Vec<u8>,
    },
    Set {
        path: String,
        data: Vec<u8>,
        version: Option<i32>,
    },
    Delete {
        path: String,
        version: Option<i32>,
    },
    Check {
        path: String,
        version: i32,
    },
}

/// Changes to nodes of your own that are made in one transaction, together with the check that the lock is still held.
///
/// Where the protected resource lives at the same ZooKeeper, this is better than a token: a holder that was paused past its
/// session changes nothing, because the lock's node is gone. Made by [`ZkBackend::fenced`].
///
/// Paths are absolute at the server, whatever the chroot. New nodes get the ACL of the lock's nodes.
#[derive(Debug)]
#[must_use = "nothing happens until `commit`"]
pub struct Fenced<'a> {
    backend: &'a ZkBackend,
    guard: &'a Guard,
    changes: Vec<Change>,
}

impl ZkBackend {
    /// Begins a transaction that is carried out only if `guard`'s hold is still there.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), dlock_core::Error> {
    /// use std::sync::Arc;
    /// use dlock_core::Locks;
    ///
    /// let zk = Arc::new(dlock_zk::Config::from_url("zk://localhost")?.connect().await?);
    /// let locks = Locks::builder(zk.clone()).build()?;
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// zk.fenced(&guard).set("/stock/42", "99", None).commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn fenced<'a>(&'a self, guard: &'a Guard) -> Fenced<'a> {
        Fenced {
            backend: self,
            guard,
            changes: Vec::new(),
        }
    }

    /// The absolute path of the node with which `guard` holds its lock, for a `check` in a `multi` of a client of your own.
    ///
    /// The node exists exactly as long as the hold does, and its name is never used again; so check it with version -1. A hold that was asked
    /// for its node is not passed on to another task of the client: its release goes to ZooKeeper.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the node is gone, and what befalls the trip.
    pub async fn lock_node(&self, guard: &Guard) -> Result<String> {
        // The node does not tell whose turn it is.
        guard.not_passed_on();
        let node = self.node_of(&guard.name(), &guard.owner_id()).await?;
        let node = node.ok_or_else(|| lost().with_name(&guard.name()))?;
        Ok(format!("{}{node}", self.chroot))
    }
}

impl Fenced<'_> {
    /// Creates a node.
    pub fn create(mut self, path: impl Into<String>, data: impl Into<Vec<u8>>) -> Self {
        let (path, data) = (path.into(), data.into());
        self.changes.push(Change::Create { path, data });
        self
    }

    /// Writes a node, if it has this version; `None`: whatever its version.
    pub fn set(
        mut self,
        path: impl Into<String>,
        data: impl Into<Vec<u8>>,
        version: Option<i32>,
    ) -> Self {
        let (path, data) = (path.into(), data.into());
        self.changes.push(Change::Set {
            path,
            data,
            version,
        });
        self
    }

    /// Deletes a node, if it has this version; `None`: whatever its version.
    pub fn delete(mut self, path: impl Into<String>, version: Option<i32>) -> Self {
        let path = path.into();
        self.changes.push(Change::Delete { path, version });
        self
    }

    /// Requires that a node has this version.
    pub fn check(mut self, path: impl Into<String>, version: i32) -> Self {
        let path = path.into();
        self.changes.push(Change::Check { path, version });
        self
    }

    /// Makes all changes, or none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the lock is not held any more, [`ErrorKind::Conflict`] when a node or a version is not as
    /// required: nothing was changed. [`ErrorKind::Unreachable`] when the connection broke: it may have been changed.
    pub async fn commit(self) -> Result<()> {
        let name = self.guard.name();
        let node = self.backend.lock_node(self.guard).await?;
        let session = self.backend.sessions.session().await?;
        session.up().await?;
        match session.commit_if(&node, &self.changes).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(lost()),
            Err(fault) if fault.is_condition() => Err(conflict()),
            Err(fault) => Err(Error::from(fault)),
        }
        .map_err(|error| error.with_name(&name))
    }
}

fn lost() -> Error {
    let text = "the lock's node is gone: nothing was changed";
    Error::new(ErrorKind::Lost, text).with_held(HeldNow::No)
}

fn conflict() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "a node of the transaction is not as required (missing, there already, another version, not empty): nothing was changed",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_hold_lie_below_those_of_the_next_transaction() {
        let first = |czxid| token(czxid).expect("a token").get();
        // Within an epoch, to the next one, and in the last that JSON and JavaScript can bear.
        for (czxid, next) in [
            (1, 2),
            (0x1_0000_0005, 0x1_0000_0006),
            (0x1_ffff_ffff, 0x2_0000_0001),
            (0x7ffe_ffff_ffff, 0x7fff_0000_0001),
        ] {
            let last = first(czxid) + u64::from(TURNS) - 1;
            assert!(last < first(next));
            assert!(last < 1 << 53);
            // Those of the versions before were the number itself.
            assert!(first(czxid) > czxid.cast_unsigned());
        }
    }

    #[test]
    fn tokens_that_would_not_fit_are_refused() {
        let last = (1_i64 << 57) - 1;
        let first = token(last).expect("the last that fits").get();
        assert_eq!(first + u64::from(TURNS) - 1, i64::MAX.cast_unsigned());
        // The epoch is in the upper half: 2^25 elections.
        assert_eq!(last >> 32, (1 << 25) - 1);
        assert_eq!(token(last + 1), None);
        assert_eq!(token(-1), None);
    }
}
