//! What the nodes know about a lock, as one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{AttemptId, Request};
use dlock_core::{Error, ErrorKind, HolderInfo, LockInfo, Name, Result, SystemClock, WaiterInfo};
use futures::StreamExt;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::connect::Nodes;
use crate::error::{Word, Words};
use crate::fence::with_first_tokens;
use crate::stake::Stake;

/// How long a break is tried at single nodes that do not answer.
const BREAK_LEASE: Duration = Duration::from_secs(30);
/// A node that lists its locks is asked whether it lives as often as `node_timeout`, and may be silent for so many of them: nobody
/// waits for a lock meanwhile.
const SILENCE: u32 = 5;

impl Nodes {
    pub(crate) async fn inspect(self: &Arc<Self>, name: &Name) -> Result<LockInfo> {
        let asked = name.clone();
        let limit = self.node_timeout();
        let found = self
            .inspect_everywhere(Some(limit), |nodes, node| {
                let name = asked.clone();
                async move {
                    let peer = nodes.peer(node)?;
                    let look = peer.call(limit, async {
                        let _ = nodes.meet(node).await;
                        peer.node.inspect(&name).await
                    });
                    Ok(vec![look.await?])
                }
            })
            .await?;
        Ok(found
            .into_iter()
            .next()
            .unwrap_or_else(|| LockInfo::new(name.clone())))
    }

    pub(crate) async fn list(self: &Arc<Self>, prefix: &str) -> Result<Vec<LockInfo>> {
        let prefix: Arc<str> = prefix.into();
        self.inspect_everywhere(None, |nodes, node| {
            let prefix = prefix.clone();
            async move { nodes.list_at(node, &prefix).await }
        })
        .await
    }

    /// All locks of one node: as many trips as it takes, for as long as the node goes on answering.
    ///
    /// They are not one call to the node: a call that takes so long would pass for a node that owes an answer, and nobody would ask
    /// it for a lock meanwhile.
    async fn list_at(&self, node: usize, prefix: &str) -> Result<Vec<LockInfo>> {
        let peer = self.peer(node)?;
        let _ = self.meet(node).await;
        let any = Name::new("list")?;
        let mut list = std::pin::pin!(peer.node.list(prefix));
        let every = self.node_timeout();
        loop {
            tokio::select! {
                biased;
                found = &mut list => return found,
                () = tokio::time::sleep(every) => {}
            }
            let sign = peer.call(every * SILENCE, peer.node.inspect(&any));
            tokio::select! {
                biased;
                found = &mut list => return found,
                sign = tokio::time::timeout(every * SILENCE, sign) => match sign {
                    Ok(sign) => sign.map(|_| ())?,
                    Err(_) => return Err(Error::new(
                        ErrorKind::TimedOut,
                        format!("no sign of life within {:?} while it listed its locks", every * SILENCE),
                    )),
                },
            }
        }
    }

    /// Frees the holds that a quorum has, whoever has them. What single nodes gave to attempts that are still asking is left alone:
    /// a part of such an attempt must not vanish under it.
    pub(crate) async fn break_lock(self: &Arc<Self>, name: &Name) -> Result<bool> {
        let info = self.inspect(name).await?;
        for holder in &info.holders {
            let owner = Uuid::try_parse(&holder.owner).map_err(|_| {
                Error::new(ErrorKind::Store, "the nodes name an owner that is none")
            })?;
            let request = Request::new(name.clone(), holder.mode, Arc::new(SystemClock))
                .with_lease(BREAK_LEASE);
            let stake = Arc::new(Stake::of(&request).for_attempt(AttemptId::from(owner)));
            stake.doubt(self.all());
            self.clear(stake, self.all()).await?;
        }
        Ok(info.is_locked())
    }

    /// Asks every node, and merges the answers of all that come in time, or at all; a quorum must answer.
    async fn inspect_everywhere<F>(
        self: &Arc<Self>,
        limit: Option<Duration>,
        ask: impl Fn(Arc<Self>, usize) -> F,
    ) -> Result<Vec<LockInfo>>
    where
        F: Future<Output = Result<Vec<LockInfo>>> + Send,
    {
        let mut words = Words::new(self.count());
        let mut asks = self.each(self.all(), |nodes, node| {
            let answer = ask(nodes, node);
            async move { (node, answer.await) }
        });
        let until = limit.map(|limit| Instant::now() + limit);
        let mut seen: Vec<Vec<LockInfo>> = Vec::new();
        loop {
            let answer = match until {
                Some(until) => timeout_at(until, asks.next()).await.unwrap_or(None),
                None => asks.next().await,
            };
            let Some((node, answer)) = answer else { break };
            match answer {
                Ok(infos) => match self.twin(node, words.answered()) {
                    None => {
                        words.note(node, Word::Agreed("answered"));
                        seen.push(infos);
                    }
                    Some(why) => words.note(node, Word::Uncounted(why)),
                },
                Err(error) => words.note(node, Word::Failed(error)),
            }
        }
        if seen.len() < self.quorum {
            if let Some(limit) = limit {
                words.time_up(limit);
            }
            return Err(self.quorum_error(words, self.quorum));
        }
        let merged = merge(seen, self.count(), self.quorum);
        Ok(merged.into_iter().map(with_first_tokens).collect())
    }
}

/// Each owner, as the nodes that have it see it.
type Holders = BTreeMap<String, Vec<HolderInfo>>;
/// The queue of each node.
type Queues = Vec<Vec<WaiterInfo>>;

/// One list from the lists of the nodes that answered.
///
/// A hold counts when a quorum has it, or could have it if those who did not answer have it too.
fn merge(seen: Vec<Vec<LockInfo>>, nodes: usize, quorum: usize) -> Vec<LockInfo> {
    let silent = nodes - seen.len();
    let mut locks: BTreeMap<Name, (Holders, Queues)> = BTreeMap::new();
    for info in seen.into_iter().flatten() {
        let (holders, waiters) = locks.entry(info.name).or_default();
        waiters.push(info.waiters);
        for holder in info.holders {
            holders
                .entry(holder.owner.clone())
                .or_default()
                .push(holder);
        }
    }
    let locks = locks.into_iter().map(|(name, (holders, waiters))| {
        let mut info = LockInfo::new(name);
        let held = holders
            .into_values()
            .filter(|seen| seen.len() + silent >= quorum);
        info.holders = held.filter_map(|seen| join(seen, quorum)).collect();
        info.holders.sort_by_key(|holder| holder.token);
        info.waiters = join_waiters(waiters, quorum.saturating_sub(silent));
        let holds = |waiter: &WaiterInfo| {
            let mut holders = info.holders.iter();
            holders.any(|holder| holder.owner == waiter.owner)
        };
        // A holder may stand in the queue of a node that has not given it the lock yet.
        let waiters = std::mem::take(&mut info.waiters).into_iter();
        info.waiters = waiters.filter(|waiter| !holds(waiter)).collect();
        info
    });
    let known = |info: &LockInfo| info.is_locked() || !info.waiters.is_empty();
    locks.filter(known).collect()
}

/// Those who stand in the queues of so many nodes, in their order: it is the same at all nodes, but one may lack somebody.
fn join_waiters(queues: Queues, needed: usize) -> Vec<WaiterInfo> {
    let mut ranks: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for queue in &queues {
        for (rank, waiter) in queue.iter().enumerate() {
            let (count, last) = ranks.entry(waiter.owner.clone()).or_default();
            *count += 1;
            *last = rank.max(*last);
        }
    }
    let mut joined: BTreeMap<(usize, String), WaiterInfo> = BTreeMap::new();
    for waiter in queues.into_iter().flatten() {
        if let Some((count, rank)) = ranks.get(&waiter.owner)
            && *count >= needed.max(1)
        {
            joined.insert((*rank, waiter.owner.clone()), waiter);
        }
    }
    joined.into_values().collect()
}

/// One holder, as several nodes see it.
fn join(seen: Vec<HolderInfo>, quorum: usize) -> Option<HolderInfo> {
    let mut ends: Vec<Option<Duration>> = seen.iter().map(|holder| holder.expires_in).collect();
    ends.sort_unstable();
    // It ends when so many nodes have let go of it that no quorum is left.
    let end = ends.len().saturating_sub(quorum);
    let expires_in = ends.get(end).copied().flatten();
    // A quorum agrees about the token; single nodes may have got further.
    let most = |holder: &HolderInfo| {
        seen.iter()
            .filter(|other| other.token == holder.token)
            .count()
    };
    let best = seen
        .iter()
        .max_by_key(|holder| (most(holder), holder.token))?;
    let mut holder = best.clone();
    holder.expires_in = expires_in;
    Some(holder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::{FencingToken, Mode};

    fn held(owner: &str, token: u64, seconds: u64) -> LockInfo {
        let mut info = LockInfo::new(Name::new("a").expect("a name"));
        let mut holder = HolderInfo::new(owner, Mode::Exclusive);
        holder.token = Some(FencingToken::new(token));
        holder.expires_in = Some(Duration::from_secs(seconds));
        info.holders.push(holder);
        info
    }

    #[test]
    fn those_who_wait_at_a_quorum_are_shown_in_their_order() {
        let queue = |owners: &[&str]| {
            let mut info = held("h", 1, 9);
            let waiter = |owner: &&str| WaiterInfo::new(*owner, Mode::Exclusive);
            info.waiters = owners.iter().map(waiter).collect();
            vec![info]
        };
        let seen = vec![
            queue(&["b", "a"]),
            queue(&["b", "a", "h"]),
            queue(&["a", "h"]),
            queue(&["b", "c", "h"]),
            vec![],
        ];
        let merged = merge(seen, 5, 3);
        let waiters = merged[0].waiters.iter();
        let waiters: Vec<&str> = waiters.map(|waiter| waiter.owner.as_str()).collect();
        assert_eq!(waiters, ["b", "a"]);
    }

    #[test]
    fn a_hold_counts_when_a_quorum_has_it_or_could_have_it() {
        let a = |token, seconds| vec![held("a", token, seconds)];
        let b = || vec![held("b", 9, 9)];
        let merged = merge(vec![a(5, 30), a(7, 10), a(5, 20), b(), vec![]], 5, 3);
        assert_eq!(merged.len(), 1);
        assert_eq!(merged[0].holders.len(), 1);
        let holder = &merged[0].holders[0];
        assert_eq!(holder.owner, "a");
        assert_eq!(holder.token, Some(FencingToken::new(5)));
        assert_eq!(holder.expires_in, Some(Duration::from_secs(10)));
        assert!(merge(vec![a(5, 1), a(5, 1), b(), b(), vec![]], 5, 3).is_empty());
        // Two nodes are silent: both could be holders, and one is.
        let merged = merge(vec![a(5, 1), a(5, 1), b()], 5, 3);
        assert_eq!(merged[0].holders.len(), 2);
    }
}
