//! Where the token comes from, and changes at ZooKeeper that only the holder can make.

use dlock_core::backend::Lease;
use dlock_core::{Error, ErrorKind, FencingToken, Guard, HeldNow, Result};

use crate::ZkBackend;

/// The number of the transaction that created the hold's node. It grows with every change of the whole ensemble, across restarts
/// and leaders, and the order of the nodes of a lock is the order of their creation (C11).
pub(crate) fn token(czxid: i64) -> FencingToken {
    FencingToken::new(czxid.unsigned_abs())
}

pub(crate) fn with_token(lease: Lease, czxid: i64) -> Lease {
    lease.with_token(token(czxid).get())
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
    /// The node exists exactly as long as the hold does, and its name is never used again; so check it with version -1.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the node is gone, and what befalls the trip.
    pub async fn lock_node(&self, guard: &Guard) -> Result<String> {
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
        let session = self.backend.link.session().await?;
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
