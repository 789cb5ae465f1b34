//! What is asked of the server. Each call sends at once; its future only waits for the answer.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::FutureExt;
use zookeeper_client::{Acls, CreateMode, EventType, OneshotWatcher};

use super::Session;
use crate::error::Fault;
use crate::fence::Change;

type Answer<T> = std::result::Result<T, Fault>;

/// What we need of a node's statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) czxid: i64,
    pub(crate) owner: i64,
    /// When it was created, by the server's clock.
    pub(crate) created: Option<SystemTime>,
    /// How often a child came or went.
    pub(crate) child_changes: i32,
}

impl From<zookeeper_client::Stat> for Stat {
    fn from(stat: zookeeper_client::Stat) -> Self {
        Self {
            czxid: stat.czxid,
            owner: stat.ephemeral_owner,
            created: u64::try_from(stat.ctime)
                .ok()
                .and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms))),
            child_changes: stat.cversion,
        }
    }
}

/// What a watch has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Deleted,
    Changed,
    SessionEnded,
}

/// A watch that the server has set. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Watch(OneshotWatcher);

impl Watch {
    pub(crate) async fn seen(self) -> Seen {
        // The client unwraps the end of its own task, which comes when the runtime of the session is dropped while a task of another
        // runtime waits.
        let event = AssertUnwindSafe(self.0.changed()).catch_unwind().await;
        match event.map(|event| event.event_type) {
            Ok(EventType::NodeDeleted) => Seen::Deleted,
            Ok(EventType::Session) | Err(_) => Seen::SessionEnded,
            Ok(_) => Seen::Changed,
        }
    }
}

impl Session {
    /// Creates an ephemeral node; ZooKeeper adds a number to its name. Tells the number and the statistics.
    ///
    /// As with every request here, the call sends it; the future only waits for the answer.
    pub(crate) fn create_place<'a>(
        &'a self,
        prefix: &'a str,
        data: &[u8],
    ) -> impl Future<Output = Answer<(String, Stat)>> + Send + 'a {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::new(&self.acls));
        let created = self.client.create(prefix, data, &options);
        async move {
            let (stat, sequence) = created.await?;
            Ok((sequence.to_string(), stat.into()))
        }
    }

    /// Creates a node that the server removes some time after its last child has gone.
    pub(crate) fn create_container<'a>(
        &'a self,
        path: &'a str,
    ) -> impl Future<Output = Answer<()>> + Send + 'a {
        let options = CreateMode::Container.with_acls(Acls::new(&self.acls));
        let created = self.client.create(path, b"", &options);
        async move {
            created.await?;
            Ok(())
        }
    }

    pub(crate) fn delete(&self, path: &str) -> impl Future<Output = Answer<()>> + Send + use<> {
        let deleted = self.client.delete(path, None);
        deleted.map(|answer| answer.map_err(Fault::from))
    }

    pub(crate) fn children(
        &self,
        path: &str,
    ) -> impl Future<Output = Answer<(Vec<String>, Stat)>> + Send + use<> {
        let listed = self.client.get_children(path);
        listed.map(|answer| {
            let (children, stat) = answer?;
            Ok((children, stat.into()))
        })
    }

    pub(crate) async fn watch_children(&self, path: &str) -> Answer<(Vec<String>, Watch)> {
        let (children, watcher) = self.client.list_and_watch_children(path).await?;
        Ok((children, Watch(watcher)))
    }

    pub(crate) fn data(
        &self,
        path: &str,
    ) -> impl Future<Output = Answer<(Vec<u8>, Stat)>> + Send + use<> {
        let read = self.client.get_data(path);
        read.map(|answer| {
            let (data, stat) = answer?;
            Ok((data, stat.into()))
        })
    }

    /// Reads a node and watches it. A node that is not there is not watched.
    pub(crate) fn watch_data(
        &self,
        path: &str,
    ) -> impl Future<Output = Answer<(Vec<u8>, Watch)>> + Send + use<'_> {
        let read = self.client.get_and_watch_data(path);
        read.map(|answer| {
            let (data, _, watcher) = answer?;
            Ok((data, Watch(watcher)))
        })
    }

    pub(crate) fn stat(
        &self,
        path: &str,
    ) -> impl Future<Output = Answer<Option<Stat>>> + Send + use<> {
        let checked = self.client.check_stat(path);
        checked.map(|answer| Ok(answer?.map(Stat::from)))
    }

    pub(crate) fn set_data(
        &self,
        path: &str,
        data: &[u8],
    ) -> impl Future<Output = Answer<()>> + Send + use<> {
        let set = self.client.set_data(path, data, None);
        set.map(|answer| {
            answer?;
            Ok(())
        })
    }

    /// A trip to the leader: what is read afterwards is as new as this call.
    pub(crate) fn sync(&self) -> impl Future<Output = Answer<()>> + Send + '_ {
        self.client
            .sync("/")
            .map(|answer| answer.map_err(Fault::from))
    }

    /// All changes or none, and none unless `node` exists. `Ok(false)`: it does not.
    pub(crate) async fn commit_if(&self, node: &str, changes: &[Change]) -> Answer<bool> {
        use zookeeper_client::CheckWriteError as Failed;
        // Absolute paths of the user's own: the folder and the chroot are ours.
        let client = self
            .client
            .clone()
            .chroot("/")
            .unwrap_or_else(|client| client);
        let acls = Acls::new(&self.acls);
        let mut writer = client.new_check_writer(node, None)?;
        for change in changes {
            match change {
                Change::Create { path, data } => {
                    writer.add_create(path, data, &CreateMode::Persistent.with_acls(acls))?;
                }
                Change::Set {
                    path,
                    data,
                    version,
                } => writer.add_set_data(path, data, *version)?,
                Change::Delete { path, version } => writer.add_delete(path, *version)?,
                Change::Check { path, version } => writer.add_check_version(path, *version)?,
            }
        }
        match writer.commit().await {
            Ok(_) => Ok(true),
            Err(Failed::CheckFailed { .. }) => Ok(false),
            Err(other) => Err(zookeeper_client::Error::from(other).into()),
        }
    }
}
