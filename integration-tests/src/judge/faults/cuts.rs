//! Connections that end in the midst of what is said.

use std::time::Duration;

use dlock_judge::Op;
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::Form;
use super::strike::heal;
use crate::judge::crew::{Crew, Worker};
use crate::judge::{Store, now};
use crate::{Direction, Error, FaultProxy, Result};

/// A place at which a connection is reset: after so many bytes in this direction.
type Place = (Direction, u64);

/// How many places each proxy of each worker is given where only a share of them is wanted.
const SHARE: usize = 40;

/// No way from a new connection to a grant is longer, unless the client waited on it for its turn, with other words going by.
const LONGEST: u64 = 6_000;

/// Resets the connections of all workers at every byte of both ways, from a new connection to the grant of the lock, or at a share of them. Workers and their
/// proxies are at it side by side, each with bytes of its own, and no place is given up for the next before the reset has come. Writes down how many there were.
pub(super) async fn at_bytes(
    crew: &Crew,
    (store, lock): (Store, &str),
    form: Form,
    dice: &mut fastrand::Rng,
) -> Result<()> {
    let lease = store.lease();
    let living: Vec<_> = crew.workers.iter().filter(|one| !one.is_dead()).collect();
    let measured = join_all(living.iter().map(|worker| ways(worker, lock, lease))).await;
    let end = (form == Form::Share).then(|| Instant::now() + 4 * lease);
    let servers = living.first().map_or(0, |worker| worker.proxies.len());
    // A client of these speaks with one server after the other, so a place may come at any of them.
    let is_one_line = matches!(
        store,
        Store::EtcdCluster | Store::ZkEnsemble | Store::PostgresPair
    );
    let lines: Vec<_> = match is_one_line {
        true => std::iter::once(0..servers).collect(),
        false => (0..servers).map(|server| server..server + 1).collect(),
    };
    let (mut begun, mut all) = (Vec::new(), 0);
    for line in lines {
        let longest = |way: fn(&(u64, u64)) -> u64| {
            let lengths = measured
                .iter()
                .map(|ways| ways[line.clone()].iter().map(way).sum::<u64>());
            lengths.max().unwrap_or(0).min(LONGEST)
        };
        let to_server = (0..longest(|ways| ways.0)).map(|byte| (Direction::ToServer, byte));
        let to_client = (0..longest(|ways| ways.1)).map(|byte| (Direction::ToClient, byte));
        let mut places: Vec<Place> = to_server.chain(to_client).collect();
        all += places.len();
        if form == Form::Share {
            dice.shuffle(&mut places);
            places.truncate(SHARE * living.len());
        }
        for (number, worker) in living.iter().enumerate() {
            let own = places.iter().skip(number).step_by(living.len());
            let own = own.copied().collect();
            begun.push(reset_at(&worker.proxies[line.clone()], own, 2 * lease, end));
        }
    }
    let resets = join_all(begun).await;
    for worker in &living {
        heal(worker).await;
    }
    let (came, missed) = resets
        .iter()
        .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    crew.note(
        Op::Fault,
        &format!("reset at {came} of {all} bytes, {missed} did not come"),
    );
    match came {
        0 => Err(Error::answer("cut-at-bytes", "no connection was reset")),
        _ => Ok(()),
    }
}

/// How many bytes pass each proxy of a worker, to the server and back, from new connections to the lock.
async fn ways(worker: &Worker, lock: &str, lease: Duration) -> Vec<(u64, u64)> {
    for proxy in &worker.proxies {
        proxy.reset_all().await;
    }
    let received = || worker.proxies.iter().map(FaultProxy::received);
    let (before, moment): (Vec<_>, _) = (received().collect(), now());
    let end = Instant::now() + 2 * lease;
    while worker.last_got(lock) <= Some(moment) && Instant::now() < end {
        sleep(Duration::from_millis(1)).await;
    }
    let passed = received().zip(before);
    passed
        .map(|(after, before)| {
            (
                after.to_server - before.to_server,
                after.to_client - before.to_client,
            )
        })
        .collect()
}

/// One reset after the other, until `end`, at whichever of these servers it comes first. How many came, and how many did not, though there was time for it.
async fn reset_at(
    line: &[FaultProxy],
    places: Vec<Place>,
    limit: Duration,
    end: Option<Instant>,
) -> (usize, usize) {
    let (mut came, mut missed) = (0, 0);
    for (way, bytes) in places {
        if end.is_some_and(|end| Instant::now() > end) {
            break;
        }
        line.iter().for_each(|proxy| proxy.reset_after(way, bytes));
        let reset = async {
            while line.iter().all(|proxy| proxy.resets_left() > 0) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        match timeout(limit, reset).await {
            Ok(()) => came += 1,
            Err(_) => missed += 1,
        }
    }
    (came, missed)
}
