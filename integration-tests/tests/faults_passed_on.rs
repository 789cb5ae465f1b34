//! C21 under faults: tasks of one client pass a lock on, and their client keeps it for a while, as they are stopped, killed and cut off.
//! The judge finds as little as without it.
#![allow(
    clippy::panic,
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dlock_judge::{History, holds};
use integration_tests::judge::{Fault, Form, Scenario, Store, plan, soak};

/// What happens to clients that hold more than they use.
const FAULTS: [Fault; 10] = [
    Fault::None,
    Fault::HolderStoppedLong,
    Fault::WaiterStopped,
    Fault::HolderKilled,
    Fault::RuntimeBlocked,
    Fault::Partition,
    Fault::HalfOpen,
    Fault::RepliesLost,
    Fault::RequestsLate,
    Fault::Resets,
];

async fn is_passed_on_safely(store: Store) {
    let template = Scenario {
        store,
        faults: Vec::new(),
        seed: 1,
        program: env!("CARGO_BIN_EXE_judge").into(),
        folder: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("judge"),
        passed_on: Some(soak::PASSED_ON),
        plant: None,
        form: Form::Share,
    };
    let mut plan = plan::of(store);
    plan.retain(|(fault, _)| FAULTS.contains(fault));
    let runs = soak::these(plan, &template, 5).await;
    let runs = runs.expect("the servers run");
    let complaints: Vec<_> = runs.iter().filter_map(soak::Run::complaint).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    // In all of them together: a run that ends with the death of a holder is short.
    let counts = runs.iter().map(|run| {
        let report = run.outcome.as_ref().expect("it ran");
        passed_on(&report.history)
    });
    assert!(counts.sum::<usize>() > 0, "nothing was passed on");
}

/// How many holds have the number after one of the same client: the numbers of a grant are its own, and the next grant's are far off.
fn passed_on(history: &Path) -> usize {
    let text = std::fs::read_to_string(history).expect("the history is there");
    let history = History::parse(&text).expect("it is one");
    let all = holds(&history);
    let tokens = all
        .iter()
        .filter_map(|hold| Some((&hold.lock, hold.process, hold.token?)));
    let tokens: BTreeSet<_> = tokens.collect();
    let next =
        |&&(lock, process, token): &&(_, u32, u64)| tokens.contains(&(lock, process, token + 1));
    tokens.iter().filter(next).count()
}

macro_rules! stores {
    ($($name:ident: $store:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                is_passed_on_safely(Store::$store).await;
            }
        )*
    };
}

stores! {
    redis: Redis,
    redlock: Redlock,
    mysql_lease: MysqlLease,
    mysql_session: MysqlSession,
    postgres: Postgres,
    postgres_session: PostgresSession,
    etcd: Etcd,
    zk: Zk,
    file: File,
}
