//! How the tasks of a client take turns. On a store without a queue they make room for other clients, but only when somebody may
//! wait there. On one that keeps the order of requests the next asks right behind the release.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::{World, millis};
use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{Capabilities, Fairness, Guard, Locks, Name, Released, Result, Settings, WakeUp};
use dlock_memory::{Control, MemoryBackend};
use tokio::task::JoinHandle;
use tokio::time::Instant;

const PAUSE: Duration = Duration::from_millis(100);
const TURNS: u32 = 4;

/// The memory store as if it had no queue; it is told whether others wait.
#[derive(Debug)]
struct NoQueue {
    store: MemoryBackend,
    capabilities: Capabilities,
    others_wait: AtomicBool,
    silent: AtomicBool,
    asked: AtomicU32,
}

#[async_trait]
impl Backend for NoQueue {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        self.store.identity()
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        self.store.try_acquire(request).await
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.store.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        self.store.release(lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.store.abandon(request).await
    }

    async fn others_wait(&self, _: &Name) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.others_wait.load(Ordering::Relaxed)
    }
}

fn client(world: &World) -> (Locks, Arc<NoQueue>) {
    let store = world.backend.another_client();
    let mut capabilities = store.capabilities().clone();
    capabilities.fairness = Fairness::None;
    capabilities.wake_up = WakeUp::Poll { longest: PAUSE };
    let backend = Arc::new(NoQueue {
        store,
        capabilities,
        others_wait: AtomicBool::new(false),
        silent: AtomicBool::new(false),
        asked: AtomicU32::new(0),
    });
    let settings = Settings::new().local_turns(TURNS).trip_timeout(millis(500));
    let locks = Locks::builder(backend.clone())
        .clock(world.clock.clone())
        .settings(settings)
        .build();
    (locks.unwrap(), backend)
}

/// So many tasks take the lock from each other. Returns how long that took.
async fn pass_around(locks: &Locks, tasks: usize) -> Duration {
    let start = Instant::now();
    let turns = (0..tasks).map(|_| async {
        let guard = locks.mutex("a").unwrap().lock().await.unwrap();
        // So that the others stand in line meanwhile.
        tokio::task::yield_now().await;
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
    });
    futures::future::join_all(turns).await;
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn tasks_do_not_pause_for_nobody() {
    let world = World::new();
    let (locks, backend) = client(&world);
    assert_eq!(pass_around(&locks, 21).await, Duration::ZERO);
    assert_eq!(backend.asked.load(Ordering::Relaxed), 5, "once in {TURNS}");
}

#[tokio::test(start_paused = true)]
async fn tasks_pause_for_those_who_wait_after_so_many_turns() {
    let world = World::new();
    let (locks, backend) = client(&world);
    backend.others_wait.store(true, Ordering::Relaxed);
    let took = pass_around(&locks, 21).await;
    assert!((PAUSE * 5 / 2..=PAUSE * 6).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_costs_a_trip_and_counts_as_a_yes() {
    let world = World::new();
    let (locks, backend) = client(&world);
    backend.silent.store(true, Ordering::Relaxed);
    let took = pass_around(&locks, TURNS as usize + 1).await;
    assert!(
        (millis(500) + PAUSE / 2..=millis(600)).contains(&took),
        "{took:?}"
    );
    // Nobody waits longer than they said.
    let holder = locks.mutex("a").unwrap().lock().await.unwrap();
    let start = Instant::now();
    let waits = (0..6).map(|_| async {
        let mutex = locks.mutex("a").unwrap();
        mutex.lock_within(millis(200)).await
    });
    let (waited, _) = tokio::join!(futures::future::join_all(waits), holder.release());
    assert!(start.elapsed() <= millis(300), "{:?}", start.elapsed());
    assert!(waited.iter().any(|one| matches!(one, Ok(Some(_)))));
}

/// The memory store as one that keeps the order of requests.
#[derive(Debug)]
struct InOrder(MemoryBackend);

#[async_trait]
impl Backend for InOrder {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    fn identity(&self) -> &str {
        self.0.identity()
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        self.0.try_acquire(request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        self.0.acquire(request).await
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.0.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        self.0.release(lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.0.abandon(request).await
    }

    fn sends_in_order(&self) -> bool {
        true
    }
}

/// A client with answers that take 100 ms, one task that holds the lock, and the next one waiting.
async fn handing_over(world: &World) -> (Locks, Control, Guard, JoinHandle<Guard>) {
    let store = world.backend.another_client();
    let control = store.control();
    let locks = Locks::builder(Arc::new(InOrder(store)))
        .clock(world.clock.clone())
        .settings(Settings::new().trip_timeout(millis(500)))
        .build();
    let locks = locks.unwrap();
    let mutex = locks.mutex("a").unwrap();
    let guard = mutex.lock().await.unwrap();
    let next = tokio::spawn(async move { mutex.lock().await.unwrap() });
    tokio::time::sleep(millis(1)).await;
    control.delay_replies(millis(100));
    (locks, control, guard, next)
}

#[tokio::test(start_paused = true)]
async fn on_a_store_that_keeps_the_order_a_hand_over_is_one_trip() {
    let world = World::new();
    let (_locks, _, guard, next) = handing_over(&world).await;
    let start = Instant::now();
    let release = tokio::spawn(guard.release());
    let guard = next.await.unwrap();
    assert_eq!(start.elapsed(), millis(100));
    assert_eq!(release.await.unwrap().unwrap(), Released::Freed);
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_dropped_or_lost_does_not_stop_the_next() {
    for lost in [false, true] {
        let world = World::new();
        let (locks, control, guard, next) = handing_over(&world).await;
        // It does not reach the store at first.
        control.hang();
        let release = tokio::spawn(guard.release());
        tokio::time::sleep(millis(1)).await;
        if lost {
            assert_eq!(release.await.unwrap().unwrap(), Released::Unknown);
        } else {
            release.abort();
        }
        control.heal();
        let guard = next.await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        locks.close().await.unwrap();
        assert_eq!(world.names(), 0, "lost: {lost}");
    }
}
