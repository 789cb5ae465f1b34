//! What is asked of the server. Each call sends at once; its future only waits for the answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;

use super::jute::{Reader, Writer};
use super::serve::{Call, TaskMessage};
use super::talk::Reply;
use super::watches::Kind;
use super::{Acl, Cause, NodeWatch, Session, code, op};
use crate::error::Fault;
use crate::fence::Change;

type Replied<T> = std::result::Result<T, Fault>;

/// Whatever its version.
const ANY: i32 = -1;
const PERSISTENT: i32 = 0;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const CONTAINER: i32 = 4;

/// What we need of a node's statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) czxid: i64,
    pub(crate) owner: i64,
    /// When it was created, by the server's clock.
    pub(crate) created: Option<SystemTime>,
    /// How often a child came or went.
    pub(crate) child_changes: i32,
    /// How many children it has.
    pub(crate) children: i32,
}

impl Stat {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Cause> {
        let (czxid, _mzxid, created, _changed) = (
            reader.long()?,
            reader.long()?,
            reader.long()?,
            reader.long()?,
        );
        let (_version, child_changes, _acl_version) = (reader.int()?, reader.int()?, reader.int()?);
        let owner = reader.long()?;
        let (_length, children, _pzxid) = (reader.int()?, reader.int()?, reader.long()?);
        Ok(Self {
            czxid,
            owner,
            created: u64::try_from(created)
                .ok()
                .and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms))),
            child_changes,
            children,
        })
    }
}

impl Session {
    /// Sends a request at once; the future waits for the answer.
    fn call(
        &self,
        op: i32,
        body: Writer,
        watch: Option<(Kind, String)>,
    ) -> impl Future<Output = Replied<Reply>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        let call = Call {
            op,
            body: body.0,
            watch,
            reply,
        };
        // If the task has ended, it drops the call, and the answer is that.
        let _ = self.asks.send(TaskMessage::Request(call));
        async move { Ok(answer.await.unwrap_or(Err(Cause::Closed))?) }
    }

    /// The path at the server.
    fn full(&self, path: &str) -> String {
        match path {
            "/" if !self.chroot.is_empty() => self.chroot.clone(),
            path => format!("{}{path}", self.chroot),
        }
    }

    fn create(
        &self,
        op: i32,
        path: &str,
        data: &[u8],
        flags: i32,
    ) -> impl Future<Output = Replied<Reply>> + Send + use<> {
        let body = create_body(path, data, &self.acls, flags);
        self.call(op, body, None)
    }

    /// Creates an ephemeral node; ZooKeeper adds a number to its name. Tells the number and the statistics.
    ///
    /// As with every request here, the call sends it; the future only waits for the answer.
    pub(crate) fn create_place(
        &self,
        prefix: &str,
        data: &[u8],
    ) -> impl Future<Output = Replied<(String, Stat)>> + Send + use<> {
        let prefix = self.full(prefix);
        let created = self.create(op::CREATE, &prefix, data, EPHEMERAL_SEQUENTIAL);
        async move {
            let reply = created.await?;
            let mut reader = Reader(&reply.body);
            let node = reader.text()?;
            let sequence = node.strip_prefix(&prefix).ok_or(Cause::Garbled)?;
            Ok((sequence.to_owned(), Stat::read(&mut reader)?))
        }
    }

    /// Creates a node that the server removes some time after its last child has gone.
    pub(crate) fn create_container(
        &self,
        path: &str,
    ) -> impl Future<Output = Replied<()>> + Send + use<> {
        let created = self.create(op::CREATE_CONTAINER, &self.full(path), b"", CONTAINER);
        async move { created.await.map(drop) }
    }

    pub(crate) fn delete(&self, path: &str) -> impl Future<Output = Replied<()>> + Send + use<> {
        let body = Writer::default().text(&self.full(path)).int(ANY);
        let deleted = self.call(op::DELETE, body, None);
        async move { deleted.await.map(drop) }
    }

    pub(crate) fn children(
        &self,
        path: &str,
    ) -> impl Future<Output = Replied<(Vec<String>, Stat)>> + Send + use<> {
        let body = Writer::default().text(&self.full(path)).bool(false);
        let listed = self.call(op::GET_CHILDREN, body, None);
        async move {
            let reply = listed.await?;
            let mut reader = Reader(&reply.body);
            Ok((reader.texts()?, Stat::read(&mut reader)?))
        }
    }

    pub(crate) fn watch_children(
        &self,
        path: &str,
    ) -> impl Future<Output = Replied<(Vec<String>, NodeWatch)>> + Send + use<> {
        let path = self.full(path);
        let body = Writer::default().text(&path).bool(true);
        let listed = self.call(op::GET_CHILDREN, body, Some((Kind::Children, path)));
        async move {
            let reply = listed.await?;
            let children = Reader(&reply.body).texts()?;
            Ok((children, reply.watch.ok_or(Cause::Garbled)?))
        }
    }

    pub(crate) fn data(
        &self,
        path: &str,
    ) -> impl Future<Output = Replied<(Vec<u8>, Stat)>> + Send + use<> {
        let body = Writer::default().text(&self.full(path)).bool(false);
        let read = self.call(op::GET_DATA, body, None);
        async move {
            let reply = read.await?;
            let mut reader = Reader(&reply.body);
            Ok((reader.bytes()?.to_vec(), Stat::read(&mut reader)?))
        }
    }

    /// Reads a node and watches it. A node that is not there is not watched.
    pub(crate) fn watch_data(
        &self,
        path: &str,
    ) -> impl Future<Output = Replied<(Vec<u8>, NodeWatch)>> + Send + use<> {
        let path = self.full(path);
        let body = Writer::default().text(&path).bool(true);
        let read = self.call(op::GET_DATA, body, Some((Kind::Data, path)));
        async move {
            let reply = read.await?;
            let data = Reader(&reply.body).bytes()?.to_vec();
            Ok((data, reply.watch.ok_or(Cause::Garbled)?))
        }
    }

    pub(crate) fn stat(
        &self,
        path: &str,
    ) -> impl Future<Output = Replied<Option<Stat>>> + Send + use<> {
        let body = Writer::default().text(&self.full(path)).bool(false);
        let checked = self.call(op::EXISTS, body, None);
        async move {
            match checked.await {
                Ok(reply) => Ok(Some(Stat::read(&mut Reader(&reply.body))?)),
                Err(Fault::NoNode) => Ok(None),
                Err(fault) => Err(fault),
            }
        }
    }

    pub(crate) fn set_data(
        &self,
        path: &str,
        data: &[u8],
    ) -> impl Future<Output = Replied<()>> + Send + use<> {
        let body = set_body(&self.full(path), data, ANY);
        let set = self.call(op::SET_DATA, body, None);
        async move { set.await.map(drop) }
    }

    /// A trip to the leader: what is read afterwards is as new as this call, as far as the leader knows. It is no proof of life, see [`Session::prove`].
    pub(crate) fn sync(&self) -> impl Future<Output = Replied<()>> + Send + use<> {
        let synced = self.call(op::SYNC, Writer::default().text("/"), None);
        async move { synced.await.map(drop) }
    }

    /// Changes nothing, in a transaction: it is answered when a majority has taken it, and so proves that the session lived when it was sent. A leader
    /// that the others have given up, and whose sessions they may have ended, cannot answer it. What is read afterwards is as new as this call.
    pub(crate) fn prove(&self) -> impl Future<Output = Replied<()>> + Send + use<> {
        let committed = self.call(op::MULTI, multi_end(Writer::default()), None);
        async move { committed.await.map(drop) }
    }

    /// All changes or none, and none unless `node` exists. `Ok(false)`: it does not.
    ///
    /// Absolute paths at the server: those of the changes are the user's own.
    pub(crate) async fn commit_if(&self, node: &str, changes: &[Change]) -> Replied<bool> {
        let begin = |body: Writer, op| body.int(op).bool(false).int(ANY);
        let mut body = begin(Writer::default(), op::CHECK).text(node).int(ANY);
        for change in changes {
            body = match change {
                Change::Create { path, data } => {
                    let part = create_body(path, data, &self.acls, PERSISTENT);
                    begin(body, op::CREATE).then(&part)
                }
                Change::Set {
                    path,
                    data,
                    version,
                } => begin(body, op::SET_DATA).then(&set_body(path, data, version.unwrap_or(ANY))),
                Change::Delete { path, version } => {
                    let body = begin(body, op::DELETE).text(path);
                    body.int(version.unwrap_or(ANY))
                }
                Change::Check { path, version } => begin(body, op::CHECK).text(path).int(*version),
            };
        }
        let reply = self.call(op::MULTI, multi_end(body), None).await?;
        committed(&mut Reader(&reply.body), changes.len() + 1)
    }
}

/// Reads the answer to a transaction: one result for each of its parts, of which the first is the check that the lock is held.
fn committed(reader: &mut Reader<'_>, parts: usize) -> Replied<bool> {
    const ERROR: i32 = -1;
    for part in 0..parts {
        let (op, _done, _error) = (reader.int()?, reader.bool()?, reader.int()?);
        match op {
            ERROR => match (part, reader.int()?) {
                // It would have been done, if it had not been for one that follows.
                (_, 0) => {}
                (0, code::NO_NODE) => return Ok(false),
                (_, error) => return Err(Cause::Server(error).into()),
            },
            op::CREATE => {
                reader.text()?;
                Stat::read(reader)?;
            }
            op::SET_DATA => {
                Stat::read(reader)?;
            }
            _ => {}
        }
    }
    Ok(true)
}

/// What closes the list of a transaction's parts.
fn multi_end(body: Writer) -> Writer {
    body.int(ANY).bool(true).int(ANY)
}

fn create_body(path: &str, data: &[u8], acls: &[Acl], flags: i32) -> Writer {
    let count = i32::try_from(acls.len()).unwrap_or(i32::MAX);
    let body = Writer::default().text(path).bytes(data).int(count);
    let body = acls.iter().fold(body, |body, acl| {
        body.int(acl.permissions).text(&acl.scheme).text(&acl.id)
    });
    body.int(flags)
}

fn set_body(path: &str, data: &[u8], version: i32) -> Writer {
    Writer::default().text(path).bytes(data).int(version)
}
