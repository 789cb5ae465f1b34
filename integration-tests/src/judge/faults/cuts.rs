//! Connections that end in the midst of what is said.

use std::time::Duration;

use dlock_judge::Op;
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::Form;
use super::strike::heal;
use crate::judge::crew::{Crew, Worker};
use crate::judge::now;
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
    lock: &str,
    lease: Duration,
    form: Form,
    dice: &mut fastrand::Rng,
) -> Result<()> {
    let living: Vec<_> = crew.workers.iter().filter(|one| !one.is_dead()).collect();
    let measured = join_all(living.iter().map(|worker| ways(worker, lock, lease))).await;
    let end = (form == Form::Share).then(|| Instant::now() + 4 * lease);
    let (mut begun, mut all) = (Vec::new(), 0);
    for server in 0..living.first().map_or(0, |worker| worker.proxies.len()) {
        let longest = |way: fn(&(u64, u64)) -> u64| {
            let lengths = measured.iter().map(|ways| way(&ways[server]));
            lengths.max().unwrap_or_default().min(LONGEST)
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
            begun.push(reset_at(&worker.proxies[server], own, 2 * lease, end));
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

/// One reset after the other, until `end`. How many came, and how many did not, though there was time for it.
async fn reset_at(
    proxy: &FaultProxy,
    places: Vec<Place>,
    limit: Duration,
    end: Option<Instant>,
) -> (usize, usize) {
    let (mut came, mut missed) = (0, 0);
    for (way, bytes) in places {
        if end.is_some_and(|end| Instant::now() > end) {
            break;
        }
        proxy.reset_after(way, bytes);
        let reset = async {
            while proxy.resets_left() > 0 {
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
