//! The background room of a client: it renews what is due, declares losses by the clock, and undoes what nobody wants, by due time.
//!
//! A room needs a runtime, and runtimes end, block, or are not driven. So the same room is kept at two posts:
//!
//! - **home**, a task in the runtime of the program that used the client first (or that was chosen), and
//! - the **standby**, a task in a small runtime with a thread of its own, one for all clients of the process. It looks a little
//!   later, so in a healthy program it finds nothing to do. What home has left undone it does itself, and from then on the
//!   next call from a living runtime makes that one home.
//!
//! Two rooms never do the same thing twice at a time: the ledger hands out each trip once, and hands it out again only when it
//! must have ended (decision 14).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::runtime::Handle;

use super::client::Client;
use super::entry::Entry;
use super::ledger::{Capacity, Ledger, Work};
use super::post::Post;
use super::trips;
use crate::{Clock, Moment};

/// How many leases one call of `renew` carries: enough to make a trip worth it, few enough to keep the store responsive.
const BATCH: usize = 256;
/// How many calls of `renew` run at once: for holds that are well, and for those whose last renewal failed.
const RENEWALS: usize = 16;
/// How many undos run at once: dropped guards free their locks together, but do not flood the store.
const UNDOS: usize = 64;
/// An undo that takes longer than this waits for a part of the store that does not answer, and makes room for others.
const SLOW: Duration = Duration::from_millis(50);
impl Client {
    /// Opens the rooms that can be open, unless they are: from the first acquire on, and again after the runtime that one was in has
    /// ended.
    pub(crate) fn ensure_rooms(self: &Arc<Self>) {
        if !self.rooms.standby.load(Ordering::Acquire) {
            self.open_standby();
        }
        if self.rooms.home.load(Ordering::Acquire) == 0 {
            self.open_home();
        }
    }

    fn open_home(self: &Arc<Self>) {
        let rooms = &self.rooms;
        let chosen = rooms.chosen.clone();
        let Some(runtime) = chosen.or_else(|| Handle::try_current().ok()) else {
            return;
        };
        let number = rooms.last_home.fetch_add(1, Ordering::AcqRel) + 1;
        if rooms
            .home
            .compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            return;
        }
        self.ledger.home_opens();
        // A runtime that is ending drops the task at once, and with it the mark.
        let room = Room::new(self, Post::Home, number);
        drop(runtime.spawn(room.run()));
    }

    fn open_standby(self: &Arc<Self>) {
        // Another runtime cannot follow a clock that belongs to one runtime, such as a paused one.
        if !self.rooms.with_standby || !self.clock.is_the_same_in_every_runtime() {
            return;
        }
        let Some(runtime) = standby_runtime() else {
            return;
        };
        if !self.rooms.standby.swap(true, Ordering::AcqRel) {
            let room = Room::new(self, Post::Standby, 0);
            drop(runtime.spawn(room.run()));
        }
    }
}

/// The runtime of the standby, with a thread of its own that sleeps most of the time; `None` where none can be had.
fn standby_runtime() -> Option<&'static Handle> {
    static RUNTIME: OnceLock<Option<Handle>> = OnceLock::new();
    RUNTIME
        .get_or_init(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .ok()?;
            let handle = runtime.handle().clone();
            std::thread::Builder::new()
                .name("dlock-standby".to_owned())
                .spawn(move || runtime.block_on(std::future::pending::<()>()))
                .ok()?;
            Some(handle)
        })
        .as_ref()
}

struct Room {
    /// Weak: a room must not keep the client alive, or it would never end. What is still to be undone does.
    client: Weak<Client>,
    clock: Arc<dyn Clock>,
    ledger: Arc<Ledger>,
    post: Post,
    number: u64,
    trips: FuturesUnordered<BoxFuture<'static, ()>>,
    slots: Slots,
}

/// How many trips of each kind are under way.
#[derive(Debug, Clone, Default)]
struct Slots {
    renewals: Arc<AtomicUsize>,
    renewals_again: Arc<AtomicUsize>,
    undos: Arc<AtomicUsize>,
}

impl Slots {
    fn capacity(&self) -> Capacity {
        let free =
            |taken: &AtomicUsize, most: usize| most.saturating_sub(taken.load(Ordering::Relaxed));
        Capacity {
            renew: free(&self.renewals, RENEWALS) * BATCH,
            renew_again: free(&self.renewals_again, RENEWALS) * BATCH,
            undo: free(&self.undos, UNDOS),
        }
    }
}

/// One slot, given back when the trip ends or is dropped.
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(slots: &Arc<AtomicUsize>) -> Self {
        slots.fetch_add(1, Ordering::Relaxed);
        Self(slots.clone())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Room {
    fn new(client: &Arc<Client>, post: Post, number: u64) -> Self {
        Self {
            client: Arc::downgrade(client),
            clock: client.clock.clone(),
            ledger: client.ledger.clone(),
            post,
            number,
            trips: FuturesUnordered::new(),
            slots: Slots::default(),
        }
    }

    async fn run(mut self) {
        loop {
            let next = {
                let Some(client) = self.client.upgrade() else {
                    return;
                };
                if self.post == Post::Home
                    && client.rooms.home.load(Ordering::Acquire) != self.number
                {
                    // Another runtime is home now. What was begun here is finished here.
                    drop(client);
                    while self.trips.next().await.is_some() {}
                    return;
                }
                let now = self.clock.now();
                let capacity = self.slots.capacity();
                let work = self
                    .ledger
                    .take_work(self.post, now, capacity, Some(&client));
                self.begin(&client, work)
            };
            tokio::select! {
                biased;
                // First, so that a client that rings without end does not keep its trips from going on.
                Some(()) = self.trips.next() => {}
                () = self.ledger.rung(self.post) => {}
                () = self.clock.sleep_until(next), if next != Moment::NEVER => {}
            }
        }
    }

    fn begin(&mut self, client: &Arc<Client>, work: Work) -> Moment {
        if work.home_is_late {
            // Its runtime is not driven: whoever calls next from a living one becomes home.
            client.rooms.home.store(0, Ordering::Release);
        }
        for name in &work.given_up {
            tracing::warn!(%name, "the store did not confirm a release; its lease has ended it");
        }
        for entry in &work.lost {
            client.lose_to_the_clock(entry);
        }
        for entry in work.watch {
            self.trips
                .push(Box::pin(trips::watch(client.clone(), entry)));
        }
        for (mut due, slots) in [
            (work.renew, &self.slots.renewals),
            (work.renew_again, &self.slots.renewals_again),
        ] {
            // Who shares a trip shares its time limit.
            let limit = |(entry, _): &(Arc<Entry>, u32)| entry.settings.renewal_limit();
            due.sort_by_key(limit);
            let batches = due.chunk_by(|a, b| limit(a) == limit(b));
            for batch in batches.flat_map(|batch| batch.chunks(BATCH)) {
                let slot = Slot::take(slots);
                let trip = trips::renew(client.clone(), batch.to_vec());
                self.trips.push(Box::pin(async move {
                    let _slot = slot;
                    let _ = trip.await;
                }));
            }
        }
        for (entry, trip) in work.undo {
            let mut slot = Some(Slot::take(&self.slots.undos));
            let ledger = self.ledger.clone();
            let slow = self.clock.sleep_until(self.clock.now() + SLOW);
            let undo = trips::undo(client.clone(), entry, trip);
            self.trips.push(Box::pin(async move {
                let mut undo = std::pin::pin!(undo);
                tokio::select! {
                    biased;
                    () = &mut undo => return,
                    () = slow => {}
                }
                slot.take();
                ledger.ring_all();
                undo.await;
            }));
        }
        work.next
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // What was under way goes back to the ledger, for the other room.
        self.trips.clear();
        self.ledger.ring_all();
        let Some(client) = self.client.upgrade() else {
            return;
        };
        let home = &client.rooms.home;
        match self.post {
            Post::Home => {
                let _ = home.compare_exchange(self.number, 0, Ordering::AcqRel, Ordering::Acquire);
            }
            Post::Standby => client.rooms.standby.store(false, Ordering::Release),
        }
        if !client.rooms.can_finish() {
            self.ledger.orphan(self.clock.now());
        }
        self.ledger.ring_all();
    }
}
