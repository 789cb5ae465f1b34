//! The slow looks of those who wait. A watch can die in silence, so now and then each waiter makes sure that its own entry and the one that it
//! watches are as they were: two keys, however long the queue is. The waiters of a client share the trips: whose look is due
//! looks for others too, and those find it done.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::Moment;
use tokio::sync::Notify;

use crate::error::Trouble;
use crate::store::Store;
use crate::txn::{About, Query, Row, Step, Txn};
use crate::watched::{Sight, by_key};

/// How many waiters one look serves. A server takes at most 128 steps in a transaction, and a waiter needs two.
const SHARED: usize = 50;

#[derive(Debug, Default)]
pub(crate) struct Lookout(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    next: u64,
    waiters: BTreeMap<u64, PostedWaiter>,
}

#[derive(Debug)]
struct PostedWaiter {
    sight: Sight,
    looked: Moment,
    changed: Arc<Notify>,
}

/// One waiter's place at the lookout, until it is dropped.
#[derive(Debug)]
pub(crate) struct Post {
    lookout: Arc<Mutex<Known>>,
    number: u64,
    changed: Arc<Notify>,
}

fn known(lookout: &Mutex<Known>) -> MutexGuard<'_, Known> {
    lookout.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lookout {
    /// From `now` on, this is looked at.
    pub(crate) fn post(&self, sight: Sight, now: Moment) -> Post {
        let changed = Arc::new(Notify::new());
        let mut known = known(&self.0);
        known.next += 1;
        let number = known.next;
        let waiter = PostedWaiter {
            sight,
            looked: now,
            changed: changed.clone(),
        };
        known.waiters.insert(number, waiter);
        Post {
            lookout: self.0.clone(),
            number,
            changed,
        }
    }

    /// Those who have waited longest for a look, as long as it is half due at least. They count as looked at now.
    fn claim(&self, now: Moment, period: Duration) -> Claim {
        let mut known = known(&self.0);
        let due = |waiter: &&mut PostedWaiter| now.since(waiter.looked) >= period / 2;
        let mut taken: Vec<(&u64, &mut PostedWaiter)> = known
            .waiters
            .iter_mut()
            .filter(|(_, waiter)| due(waiter))
            .collect();
        if taken.len() > SHARED {
            taken.select_nth_unstable_by_key(SHARED, |(_, waiter)| waiter.looked);
            taken.truncate(SHARED);
        }
        let claimed = taken
            .into_iter()
            .map(|(number, waiter)| Claimed {
                number: *number,
                sight: waiter.sight.clone(),
                before: std::mem::replace(&mut waiter.looked, now),
            })
            .collect();
        Claim {
            lookout: self.0.clone(),
            claimed,
            done: false,
        }
    }
}

struct Claimed {
    number: u64,
    sight: Sight,
    before: Moment,
}

/// A look under way. If it does not come to its end, it counts as not begun.
struct Claim {
    lookout: Arc<Mutex<Known>>,
    claimed: Vec<Claimed>,
    done: bool,
}

impl Claim {
    fn questions(&self) -> Txn {
        let keys = self.claimed.iter().flat_map(|claimed| claimed.sight.keys());
        let steps = keys.map(|key| Step::Get(About::Entries, Query::one(key).keys_only()));
        Txn::of(steps.collect())
    }

    fn tell(mut self, rows: &[Row]) {
        let rows = by_key(rows);
        let known = known(&self.lookout);
        for claimed in &self.claimed {
            if !claimed.sight.is_unchanged(&rows)
                && let Some(waiter) = known.waiters.get(&claimed.number)
            {
                waiter.changed.notify_one();
            }
        }
        drop(known);
        self.done = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut known = known(&self.lookout);
        for claimed in &self.claimed {
            if let Some(waiter) = known.waiters.get_mut(&claimed.number) {
                waiter.looked = claimed.before;
            }
        }
    }
}

impl Post {
    /// When somebody last looked for it.
    pub(crate) fn looked(&self) -> Moment {
        let known = known(&self.lookout);
        let waiter = known.waiters.get(&self.number);
        waiter.map_or(Moment::NEVER, |waiter| waiter.looked)
    }

    /// Resolves when a look has found a change.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        known(&self.lookout).waiters.remove(&self.number);
    }
}

impl Store {
    /// Looks for those waiters of this client whose look is due, or soon will be. The whole cluster is asked.
    pub(crate) async fn look_out(&self, now: Moment, period: Duration) -> Result<(), Trouble> {
        let claim = self.lookout.claim(now, period);
        if claim.claimed.is_empty() {
            return Ok(());
        }
        let told = self.cluster.txn(&claim.questions()).await?;
        let rows: Vec<Row> = told.value.into_rows().collect();
        claim.tell(&rows);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watched::tests::{row, sight_of};

    const PERIOD: Duration = Duration::from_secs(2);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    fn is_told(post: &Post) -> bool {
        use futures::FutureExt;
        post.changed().now_or_never().is_some()
    }

    #[test]
    fn one_look_serves_those_who_are_due_and_tells_only_who_has_moved() {
        let lookout = Lookout::default();
        let stays = lookout.post(sight_of("a", "first"), at(0));
        let moves = lookout.post(sight_of("b", "gone"), at(0));
        let young = lookout.post(sight_of("c", "gone"), at(3));
        let claim = lookout.claim(at(3), PERIOD);
        assert_eq!(claim.claimed.len(), 2);
        assert!(lookout.claim(at(3), PERIOD).claimed.is_empty(), "once");
        claim.tell(&[row("a", 5, 5), row("b", 5, 5), row("first", 3, 3)]);
        assert!(!is_told(&stays) && is_told(&moves) && !is_told(&young));
        assert_eq!(stays.looked(), at(3));
    }

    #[test]
    fn a_look_that_came_to_nothing_was_none() {
        let lookout = Lookout::default();
        let post = lookout.post(sight_of("a", "first"), at(0));
        drop(lookout.claim(at(3), PERIOD));
        assert_eq!(post.looked(), at(0));
        assert_eq!(lookout.claim(at(3), PERIOD).claimed.len(), 1);
    }

    #[test]
    fn those_who_waited_longest_come_first_and_nobody_stays_behind() {
        let lookout = Lookout::default();
        let posts: Vec<Post> = (0..120)
            .map(|n| lookout.post(sight_of("a", "first"), at(n % 60)))
            .collect();
        let mut claims = Vec::new();
        for expected in [50, 50, 20] {
            let claim = lookout.claim(at(100), PERIOD);
            assert_eq!(claim.claimed.len(), expected);
            claims.push(claim);
        }
        let latest = |claim: &Claim| claim.claimed.iter().map(|claimed| claimed.before).max();
        assert!(latest(&claims[0]) <= latest(&claims[1]));
        assert!(latest(&claims[1]) <= latest(&claims[2]));
        drop(posts);
        assert!(known(&lookout.0).waiters.is_empty());
    }
}
