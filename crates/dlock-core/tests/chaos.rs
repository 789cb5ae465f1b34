//! Many tasks on several clients take, cancel, drop and release locks at random while connections break, hang, slow down
//! and lose replies. Whatever happens: nobody holds a lock together with somebody it excludes, tokens increase, and nothing
//! is left at the end. The clock is paused and the dice are seeded, so each round is the same every time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod common;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{World, millis, seconds};
use dlock_core::{FencingToken, Guard, Locks, Mode, Order, Released, Settings};
use dlock_memory::Control;

const ROUNDS: u64 = 40;
const TASKS: usize = 9;
const STEPS: usize = 25;
const PERMITS: u32 = 2;

/// What everybody saw so far.
#[derive(Default)]
struct Witness {
    holding: HashMap<String, Vec<Arc<Guard>>>,
    tokens: HashMap<String, Tokens>,
    acquired: usize,
    lost: usize,
}

/// Holders that share a lock may hear of their tokens in any order; one that excludes stands between all before and after it.
#[derive(Default)]
struct Tokens {
    seen: BTreeSet<FencingToken>,
    alone: Option<FencingToken>,
}

impl Tokens {
    fn check(&mut self, mode: Mode, token: FencingToken) {
        assert!(
            self.alone < Some(token),
            "{token} came after {:?}",
            self.alone
        );
        if mode == Mode::Exclusive {
            let last = self.seen.last();
            assert!(last < Some(&token), "{token} came after {last:?}");
            self.alone = Some(token);
        }
        assert!(self.seen.insert(token), "{token} came twice");
    }
}

impl Witness {
    /// Somebody got a lock: all who hold it now must fit together (C1, C19), and its token must be new (C11).
    fn enter(&mut self, name: &str, guard: &Arc<Guard>) {
        self.acquired += 1;
        let token = guard.token().expect("this store has tokens");
        let tokens = self.tokens.entry(name.to_owned()).or_default();
        tokens.check(guard.mode(), token);
        let holding = self.holding.entry(name.to_owned()).or_default();
        holding.push(guard.clone());
        let modes: Vec<Mode> = holding
            .iter()
            .filter(|guard| guard.is_held())
            .map(|guard| guard.mode())
            .collect();
        let fit = modes.len() <= 1
            || modes.iter().all(|mode| *mode == Mode::Shared)
            || modes.len() <= PERMITS as usize
                && modes.iter().all(|mode| matches!(mode, Mode::Permit { .. }));
        assert!(fit, "{name} is held by {modes:?} at once");
    }

    fn leave(&mut self, name: &str, guard: Arc<Guard>) -> Guard {
        let holding = self.holding.get_mut(name).expect("it entered");
        holding.retain(|other| !Arc::ptr_eq(other, &guard));
        Arc::into_inner(guard).expect("only the witness had another")
    }
}

fn up_to(limit: u64) -> Duration {
    millis(fastrand::u64(0..=limit))
}

/// One acquire, by one of all the ways there are. Errors are fine: the store is in trouble.
async fn acquire(locks: &Locks, name: &str) -> Option<Guard> {
    let limit = up_to(1500);
    let asked = async {
        match (name.as_bytes().first(), fastrand::u8(0..3)) {
            (Some(b'p'), 0) => locks.semaphore(name, PERMITS)?.try_acquire().await,
            (Some(b'p'), _) => locks.semaphore(name, PERMITS)?.acquire_within(limit).await,
            (Some(b'r'), 0) => locks.rw_lock(name)?.write_within(limit).await,
            (Some(b'r'), 1) => locks.rw_lock(name)?.try_read().await,
            (Some(b'r'), _) => locks.rw_lock(name)?.read_within(limit).await,
            (_, 0) => locks.mutex(name)?.try_lock().await,
            (_, 1) => locks.mutex(name)?.lock_within(limit).await,
            _ => locks.mutex(name)?.lock().await.map(Some),
        }
    };
    // The caller loses patience: the future is dropped wherever it is (C13).
    let patience = up_to(2000);
    match tokio::time::timeout(patience, asked).await {
        Ok(Ok(guard)) => guard,
        Ok(Err(_)) | Err(_) => None,
    }
}

async fn work(locks: Locks, witness: Arc<Mutex<Witness>>) {
    for _ in 0..STEPS {
        let name = ["m1", "m2", "r", "p"][fastrand::usize(0..4)];
        let Some(guard) = acquire(&locks, name).await else {
            tokio::time::sleep(up_to(50)).await;
            continue;
        };
        let guard = Arc::new(guard);
        witness.lock().unwrap().enter(name, &guard);
        if fastrand::u8(0..4) == 0 && guard.mode() == Mode::Exclusive {
            let _ = guard.downgrade().await;
        }
        tokio::time::sleep(up_to(1500)).await;
        let guard = witness.lock().unwrap().leave(name, guard);
        let good = guard.is_held();
        match fastrand::u8(0..3) {
            0 => drop(guard),
            1 => {
                // A release that is given up goes on in the background.
                let _ = tokio::time::timeout(up_to(100), guard.release()).await;
            }
            _ => {
                let found = guard
                    .release()
                    .await
                    .expect("trouble is `Unknown`, no error");
                assert!(good || found != Released::Freed, "freed what was lost");
                witness.lock().unwrap().lost += usize::from(found == Released::AlreadyLost);
            }
        }
    }
}

async fn trouble(controls: Vec<Control>) {
    loop {
        tokio::time::sleep(up_to(900)).await;
        let control = &controls[fastrand::usize(0..controls.len())];
        match fastrand::u8(0..7) {
            0 => control.cut(),
            1 => control.hang(),
            2 => control.delay_replies(up_to(400)),
            3 => control.delay_requests(up_to(400)),
            4 => control.lose_reply(fastrand::u32(1..4)),
            _ => control.heal(),
        }
    }
}

async fn round(seed: u64) -> (usize, usize) {
    fastrand::seed(seed);
    let world = World::new();
    let witness = Arc::new(Mutex::new(Witness::default()));
    let clients: Vec<(Locks, Control)> = [Order::ByClient, Order::Strict, Order::ByClient]
        .into_iter()
        .map(|order| {
            let settings = Settings::new().lease(seconds(1)).trip_timeout(millis(300));
            world.client_with(settings.outage(seconds(1)).order(order))
        })
        .collect();
    let controls = clients.iter().map(|(_, control)| control.clone()).collect();
    let trouble = tokio::spawn(trouble(controls));
    let tasks: Vec<_> = (0..TASKS)
        .map(|n| {
            let locks = clients[n % clients.len()].0.clone();
            tokio::spawn(work(locks, witness.clone()))
        })
        .collect();
    for task in tasks {
        task.await
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    trouble.abort();
    for (locks, control) in &clients {
        control.heal();
        locks.close().await.expect("all is well again");
        let stats = locks.stats();
        assert_eq!((stats.held, stats.in_doubt), (0, 0), "seed {seed}");
    }
    assert_eq!(world.names(), 0, "seed {seed} left something in the store");
    let witness = witness.lock().unwrap();
    (witness.acquired, witness.lost)
}

#[test]
fn whatever_happens_the_contract_holds() {
    let (mut acquired, mut lost) = (0, 0);
    for seed in 0..ROUNDS {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let (a, l) = runtime.block_on(round(seed));
        (acquired, lost) = (acquired + a, lost + l);
    }
    // A round in which nothing happens shows nothing.
    assert!(acquired > 1_000, "only {acquired} locks were acquired");
    assert!(lost > 20, "only {lost} locks were lost");
}
