//! Who holds and who waits, and breaking a lock by force.

use std::time::SystemTime;

use dlock_core::{Error, HolderInfo, LockInfo, Mode, Name, Operation, Result, WaiterInfo};
use futures::{StreamExt, TryStreamExt, stream};
use uuid::Uuid;

use crate::ZkBackend;
use crate::acquire::gone;
use crate::connect::Session;
use crate::error::Fault;
use crate::queue::{NodeState, QueuePlace, Verdict, holding, places, read_data};

/// How many locks are read at the same time by `list`.
const AT_ONCE: usize = 16;

/// One place with what its node says.
struct Entry {
    place: QueuePlace,
    mode: Mode,
    label: String,
    czxid: i64,
    created: Option<SystemTime>,
}

impl Entry {
    fn owner(&self) -> String {
        match self.place.attempt {
            Some(id) => id.simple().to_string(),
            None => self.place.node.clone(),
        }
    }
}

impl ZkBackend {
    pub(crate) async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        let session = self.sessions.session().await?;
        session.up().await?;
        session.sync().await?;
        let entries = self.entries(&session, name).await?;
        Ok(info(name, entries))
    }

    /// How many hold a lock or wait for it, by one small answer however long the queue is; [`inspect`](dlock_core::Locks::inspect) reads all of it.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), dlock_core::Error> {
    /// let backend = dlock_zk::Config::from_url("zk://localhost")?.connect().await?;
    /// let waiting = backend.queue_length(&dlock_core::Name::new("stock:42")?).await?;
    /// println!("{waiting} hold or want it");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What befalls the trip.
    pub async fn queue_length(&self, name: &Name) -> Result<u64> {
        let asked = async {
            let session = self.sessions.session().await?;
            session.up().await?;
            let (synced, stat) = (session.sync(), session.stat(&self.lock_path(name)));
            synced.await?;
            Ok::<_, Error>(stat.await?)
        };
        let stat = asked.await.map_err(|error| about(name, error))?;
        Ok(stat.map_or(0, |stat| u64::try_from(stat.children).unwrap_or_default()))
    }

    /// How many hold a lock or wait for it before the first task of this client that waits in its queue; `None` when none does.
    ///
    /// It reads the names of all who stand there, also of those behind: ZooKeeper tells the children of a node all or none. That is some 60 bytes for each, in one
    /// answer, which several who ask at once share; in a queue of thousands ask rarely. [`queue_length`](Self::queue_length) reads a number, whatever the length.
    ///
    /// With [`Order::ByClient`](dlock_core::Order::ByClient) a client has one place in the queue, whatever the number of its tasks.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), dlock_core::Error> {
    /// use std::sync::Arc;
    ///
    /// let backend = Arc::new(dlock_zk::Config::from_url("zk://localhost")?.connect().await?);
    /// let locks = dlock_core::Locks::builder(backend.clone()).build()?;
    /// let mutex = locks.mutex("stock:42")?;
    /// let waits = tokio::spawn(async move { mutex.lock().await });
    /// if let Some(before) = backend.queue_position(&dlock_core::Name::new("stock:42")?).await? {
    ///     println!("{before} are before us");
    /// }
    /// # waits.await.ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What befalls the trip.
    pub async fn queue_position(&self, name: &Name) -> Result<Option<u64>> {
        let asked = async {
            let session = self.sessions.connected().await?;
            let all = match session.queue(&self.lock_path(name)).await {
                Ok(all) => all,
                Err(Fault::NoNode) => return Ok(None),
                Err(fault) => return Err(fault.into()),
            };
            let is_ours =
                |place: &QueuePlace| place.attempt.is_some_and(|id| session.has_claim(id));
            let waits = |place: &QueuePlace| all.verdict(place) != Some(Verdict::Held);
            let mut places = all.places.iter();
            let before = places.position(|place| is_ours(place) && waits(place));
            Ok(before.map(|before| u64::try_from(before).unwrap_or(u64::MAX)))
        };
        asked.await.map_err(|error| about(name, error))
    }

    /// Nothing limits the whole. Each answer is awaited until the connection breaks, as it does when the server is silent (see [`Pace`](crate::pace::Pace)).
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let session = self.sessions.connected().await?;
        let synced = session.sync();
        let listed = session.children(&self.folder);
        synced.await?;
        let nodes = match listed.await {
            Ok((nodes, _)) => nodes,
            Err(Fault::NoNode) => return Ok(Vec::new()),
            Err(fault) => return Err(fault.into()),
        };
        let mut names: Vec<Name> = nodes
            .iter()
            .filter_map(|node| crate::key::decode(node))
            .filter(|name| name.starts_with(prefix))
            .collect();
        names.sort();
        let looks = names.into_iter().map(|name| {
            let session = &session;
            async move {
                let entries = self.entries(session, &name).await?;
                Ok::<_, dlock_core::Error>(info(&name, entries))
            }
        });
        let found: Vec<LockInfo> = stream::iter(looks).buffered(AT_ONCE).try_collect().await?;
        Ok(found.into_iter().filter(LockInfo::is_locked).collect())
    }

    /// Resolves when the exclusive holder is another than `seen`, or may be. A lock whose node is not there yet cannot be watched.
    pub(crate) async fn changed(&self, name: &Name, seen: Option<&str>) -> Result<()> {
        let session = self.sessions.session().await?;
        session.up().await?;
        session.sync().await?;
        let parent = self.lock_path(name);
        let entries = self.entries(&session, name).await?;
        let holder = entries
            .first()
            .filter(|first| first.mode == Mode::Exclusive);
        if holder.map(Entry::owner).as_deref() != seen {
            return Ok(());
        }
        let Some(holder) = holder else {
            let (children, watch) = session.watch_children(&parent).await?;
            if children.is_empty() {
                watch.seen().await;
            }
            return Ok(());
        };
        // Who comes behind it changes nothing, so only its own node counts.
        match session
            .watch_data(&format!("{parent}/{}", holder.place.node))
            .await
        {
            Ok((_, watch)) => {
                watch.seen().await;
                Ok(())
            }
            Err(Fault::NoNode) => Ok(()),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Deletes the nodes of those who hold now.
    pub(crate) async fn break_lock(&self, name: &Name) -> Result<bool> {
        let session = self.sessions.session().await?;
        session.up().await?;
        session.sync().await?;
        let entries = self.entries(&session, name).await?;
        let parent = self.lock_path(name);
        let count = holding(&modes(&entries));
        let deleted: Vec<_> = entries
            .iter()
            .take(count)
            .map(|entry| session.delete(&format!("{parent}/{}", entry.place.node)))
            .collect();
        for deleted in deleted {
            gone(deleted.await)?;
        }
        Ok(count > 0)
    }

    /// The queue of a lock in order of creation.
    async fn entries(&self, session: &Session, name: &Name) -> Result<Vec<Entry>> {
        let parent = self.lock_path(name);
        let children = match session.children(&parent).await {
            Ok((children, _)) => children,
            Err(Fault::NoNode) => return Ok(Vec::new()),
            Err(fault) => return Err(fault.into()),
        };
        let reads: Vec<_> = places(&children)
            .into_iter()
            .map(|place| {
                let data = session.data(&format!("{parent}/{}", place.node));
                (place, data)
            })
            .collect();
        let mut entries = Vec::with_capacity(reads.len());
        for (place, data) in reads {
            let (data, stat) = match data.await {
                Ok(read) => read,
                Err(Fault::NoNode) => continue,
                Err(fault) => return Err(fault.into()),
            };
            let (state, label) = read_data(&data);
            entries.push(Entry {
                mode: match (place.mode, state) {
                    (Mode::Exclusive, NodeState::Downgraded) => Mode::Shared,
                    (mode, _) => mode,
                },
                place,
                label,
                czxid: stat.czxid,
                created: stat.created,
            });
        }
        entries.sort_by_key(|entry| entry.czxid);
        Ok(entries)
    }

    /// The attempts of those who wait; `None` for a program that is not ours.
    pub(crate) async fn waiters(
        &self,
        session: &Session,
        name: &Name,
    ) -> Result<Vec<Option<Uuid>>> {
        let entries = self.entries(session, name).await?;
        let count = holding(&modes(&entries));
        let attempts = entries.iter().map(|entry| entry.place.attempt);
        Ok(attempts.skip(count).collect())
    }

    /// The path of the node with which an owner holds, below the chroot.
    pub(crate) async fn node_of(&self, name: &Name, owner: &str) -> Result<Option<String>> {
        let session = self.sessions.session().await?;
        session.up().await?;
        let parent = self.lock_path(name);
        let children = match session.children(&parent).await {
            Ok((children, _)) => children,
            Err(Fault::NoNode) => return Ok(None),
            Err(fault) => return Err(fault.into()),
        };
        let mine = places(&children).into_iter().find(|place| {
            place
                .attempt
                .is_some_and(|id| id.simple().to_string() == owner)
        });
        Ok(mine.map(|place| format!("{parent}/{}", place.node)))
    }
}

fn about(name: &Name, error: Error) -> Error {
    error
        .with_backend("zk")
        .with_operation(Operation::Inspect)
        .with_name(name)
}

fn modes(entries: &[Entry]) -> Vec<Mode> {
    entries.iter().map(|entry| entry.mode).collect()
}

fn info(name: &Name, entries: Vec<Entry>) -> LockInfo {
    let mut info = LockInfo::new(name.clone());
    let count = holding(&modes(&entries));
    for (index, entry) in entries.into_iter().enumerate() {
        let owner = entry.owner();
        if index < count {
            let mut holder = HolderInfo::new(owner, entry.mode);
            holder.label = entry.label;
            // It has stood in the queue since then; the server does not note when it came to the front.
            holder.since = entry.created;
            holder.token = crate::fence::token(entry.czxid);
            info.holders.push(holder);
        } else {
            let mut waiter = WaiterInfo::new(owner, entry.mode);
            waiter.label = entry.label;
            info.waiters.push(waiter);
        }
    }
    info
}
