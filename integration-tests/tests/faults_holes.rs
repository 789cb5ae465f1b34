//! What no lock can promise, and the known holes, each forced and seen: two at work at once, the unfenced register loses an update, and the
//! fenced one does not.
#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

use std::path::PathBuf;
use std::time::Duration;

use dlock_judge::{Finding, History, Kind, Op, Phase, Register, judge};
use integration_tests::judge::crew::{Crew, Shape};
use integration_tests::judge::scenario::{connect, merge, registers, write_setup};
use integration_tests::judge::{Fault, Registers, Site, Store, now};
use integration_tests::{Direction, Result};

/// What happens while the holder stands between its check and its write.
#[derive(Clone, Copy)]
enum Between {
    /// Its process is stopped until its lease is over.
    Stop,
    /// Its clock runs at less than half the rate, and it is cut off from the store.
    SlowClock,
    /// Something happens to the store, and the holder is not told before its next renewal.
    Store(Fault),
}

/// A holder that has checked its hold and not yet written, and others who try again and again. Gives what was found, and the history.
async fn caught_between(store: Store, between: Between) -> Result<(Vec<Finding>, History)> {
    // With holes, time enough before the next renewal; with a stop, a short wait.
    let (fault, lease) = match between {
        Between::Stop => (Fault::None, store.lease()),
        // It renews late by such a clock, and yet in time.
        Between::SlowClock => (Fault::ClientRate, 3 * store.lease()),
        Between::Store(fault) => (fault, Duration::from_secs(20)),
    };
    let site = Site::start_with_lease(store, Some(fault), lease).await?;
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join("judge-holes")
        .join(format!("{}-{}", store.as_str(), fault.as_str()));
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).expect("a folder");
    let client = connect(&site).await?;
    let lock = "hole:m".to_owned();
    let lock = format!("{}-{}-{lock}", store.as_str(), fault.as_str());
    let locks = vec![(lock.clone(), dlock_judge::Mode::Exclusive)];
    let holder = Shape {
        workers: 1,
        gate: true,
        plain: true,
        rates: match between {
            Between::SlowClock => vec![0.4],
            _ => Vec::new(),
        },
        ..Shape::new(locks, 1)
    };
    let addr = registers().await?.addr();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_judge"));
    let first = Crew::start(&program, &site, addr, &folder, &holder).await?;
    write_setup(&first, &site, &client, 0);
    let long = Duration::from_secs(60);
    let checked = |crew: &Crew| crew.workers.iter().any(|worker| worker.has_checked());
    first
        .eventually("the holder has checked", long, checked)
        .await?;
    let others = Shape {
        first: 2,
        workers: 2,
        gate: false,
        eager: true,
        rates: Vec::new(),
        ..holder
    };
    let second = Crew::start(&program, &site, addr, &folder, &others).await?;
    let moment = now();
    first.note(Op::Fault, fault.as_str());
    match between {
        Between::Stop => first.workers[0].freeze(&first.recorder),
        Between::SlowClock => {
            let proxies = first.workers[0].proxies.iter();
            proxies.for_each(|proxy| proxy.black_hole(Direction::Both));
        }
        Between::Store(_) => site.strike_now(fault, &lock).await?,
    }
    // Two grants: the first of them has written by then.
    let twice = |crew: &Crew| {
        let got = crew.workers.iter().map(|worker| worker.last_got(&lock));
        got.flatten().filter(|at| *at > moment).count() >= 2
    };
    second.eventually("the others get in", long, twice).await?;
    if let Between::Stop = between {
        first.workers[0].go_on(&first.recorder);
    }
    first.workers[0].tell("go").await;
    let wrote = |_: &Crew| {
        let text = std::fs::read_to_string(folder.join("worker-1.jsonl")).unwrap_or_default();
        text.matches("\"write\"").count() >= 4
    };
    first.eventually("the late write", long, wrote).await?;
    for proxy in &first.workers[0].proxies {
        proxy.heal().await;
    }
    let mut late = second.stop().await;
    late.extend(first.stop().await);
    assert!(late.is_empty(), "{late:?}");
    let mut registers = Registers::connect(addr).await?;
    for line in registers.took(&lock).await? {
        first.recorder.write(&line);
    }
    let history = merge(&folder)?;
    Ok((judge(&history), history))
}

fn count(findings: &[Finding], kind: Kind) -> usize {
    findings
        .iter()
        .filter(|finding| finding.kind == kind)
        .count()
}

/// Whether the fenced register refused the late write of the first holder.
fn was_refused(history: &History) -> bool {
    history.lines().iter().any(|line| {
        line.process == 1
            && line.op == Op::Write
            && line.phase == Phase::Fail
            && line.register == Some(Register::Fenced)
    })
}

/// A lease protects nothing from a holder that is stopped between its check and its write; the token does.
async fn stopped_holder_loses_an_update_unless_it_is_fenced(store: Store) {
    let (found, history) = caught_between(store, Between::Stop).await.expect("it runs");
    assert_eq!(count(&found, Kind::TwoHolders), 0, "{found:?}");
    assert_eq!(count(&found, Kind::LostUpdate), 0, "{found:?}");
    assert!(
        count(&found, Kind::LateWrite) > 0,
        "nothing was lost: the harness sees nothing"
    );
    assert!(was_refused(&history), "the late write was not refused");
    assert_eq!(
        count(&found, Kind::LostWrite) + count(&found, Kind::StaleWrite),
        0,
        "{found:?}"
    );
}

async fn hole_is_seen_and_the_fenced_register_survives_it(store: Store, between: Between) {
    let outcome = caught_between(store, between).await;
    let (found, history) = outcome.expect("it runs");
    assert!(count(&found, Kind::TwoHolders) > 0, "not seen: {found:?}");
    let lost = count(&found, Kind::LostUpdate) + count(&found, Kind::LateWrite);
    assert!(lost > 0, "{found:?}");
    assert!(was_refused(&history), "the late write was not refused");
    let data = [
        Kind::LostWrite,
        Kind::StaleWrite,
        Kind::TokenOrder,
        Kind::TokenTwice,
    ];
    for kind in data {
        assert_eq!(count(&found, kind), 0, "{found:?}");
    }
}

macro_rules! stopped {
    ($($name:ident: $store:ident),* $(,)?) => {
        mod stopped_holder {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::stopped_holder_loses_an_update_unless_it_is_fenced(super::Store::$store).await;
                }
            )*
        }
    };
}

stopped! {
    redis: Redis,
    redlock: Redlock,
    mysql_lease: MysqlLease,
    mysql_unique: MysqlUnique,
    mysql_session: MysqlSession,
    mysql_advisory: MysqlAdvisory,
    postgres: Postgres,
    postgres_session: PostgresSession,
    etcd: Etcd,
    zk: Zk,
}

macro_rules! holes {
    ($($name:ident: $store:ident $fault:ident),* $(,)?) => {
        mod hole {
            use super::{Fault, Store};
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let between = super::Between::Store(Fault::$fault);
                    super::hole_is_seen_and_the_fenced_register_survives_it(Store::$store, between).await;
                }
            )*
            pub(super) const SEEN: &[(Store, Fault)] = &[$((Store::$store, Fault::$fault)),*];
        }
    };
}

holes! {
    redis_server_empty: Redis ServerEmpty,
    redis_server_clock: Redis ServerClock,
    redis_eviction: Redis Eviction,
    redis_hold_deleted: Redis HoldDeleted,
    redis_sentinel_leader_frozen: RedisSentinel LeaderFrozen,
    redis_sentinel_switch_over: RedisSentinel SwitchOver,
    redis_sentinel_fail_over: RedisSentinel FailOver,
    redis_cluster_leader_frozen: RedisCluster LeaderFrozen,
    redis_cluster_fail_over: RedisCluster FailOver,
    redlock_server_clock: Redlock ServerClock,
    redlock_nodes_forget: Redlock NodesForget,
    mysql_lease_server_clock: MysqlLease ServerClock,
    mysql_lease_hold_deleted: MysqlLease HoldDeleted,
    mysql_unique_server_clock: MysqlUnique ServerClock,
    mysql_unique_hold_deleted: MysqlUnique HoldDeleted,
    postgres_hold_deleted: Postgres HoldDeleted,
    etcd_hold_deleted: Etcd HoldDeleted,
    zk_hold_deleted: Zk HoldDeleted,
}

/// The contract allows clocks one percent: a holder whose clock is slower by far believes in its hold when another has it.
macro_rules! slow_clocks {
    ($($name:ident: $store:ident),* $(,)?) => {
        mod slow_clock {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let slow = super::Between::SlowClock;
                    super::hole_is_seen_and_the_fenced_register_survives_it(super::Store::$store, slow).await;
                }
            )*
        }
    };
}

slow_clocks! {
    redis: Redis,
    redlock: Redlock,
    mysql_lease: MysqlLease,
    mysql_unique: MysqlUnique,
    postgres: Postgres,
}

/// No hole stands in the plan that is not seen here.
#[test]
fn every_hole_of_the_plan_is_forced() {
    use integration_tests::judge::{Expected, plan};
    let planned: Vec<_> = Store::ALL
        .into_iter()
        .flat_map(|store| {
            plan::of(store)
                .into_iter()
                .map(move |(fault, expected)| (store, fault, expected))
        })
        .filter(|(_, _, expected)| matches!(expected, Expected::Hole(_)))
        .map(|(store, fault, _)| (store, fault))
        .collect();
    assert_eq!(planned, hole::SEEN);
}
