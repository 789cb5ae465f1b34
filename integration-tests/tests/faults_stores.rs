//! Every store × every fault, judged: see docs/faults.md. Many scenarios wait side by side.
#![allow(
    clippy::panic,
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

use std::path::PathBuf;

use integration_tests::judge::{Form, Scenario, Store, soak};

async fn every_fault_of(store: Store) {
    let template = Scenario {
        store,
        faults: Vec::new(),
        seed: 1,
        program: env!("CARGO_BIN_EXE_judge").into(),
        folder: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("judge"),
        passed_on: None,
        plant: None,
        form: Form::Share,
    };
    let runs = soak::every_fault(None, &template, 6).await;
    let runs = runs.expect("the servers run");
    let complaints: Vec<_> = runs.iter().filter_map(soak::Run::complaint).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    // The judge of the order can see, where there is one. How many pairs it judges depends on how busy the machine is.
    let seen = runs.iter().filter_map(|run| run.outcome.as_ref().ok());
    let seen: usize = seen.map(|outcome| outcome.seen_waiting).sum();
    assert!(!store.is_fair() || seen > 0, "nobody was seen to wait");
}

macro_rules! stores {
    ($($name:ident: $store:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                every_fault_of(Store::$store).await;
            }
        )*

        #[test]
        fn no_store_is_missing() {
            assert_eq!([$(Store::$store),*], Store::ALL);
        }
    };
}

stores! {
    redis: Redis,
    redis_sentinel: RedisSentinel,
    redis_cluster: RedisCluster,
    redlock: Redlock,
    mysql_lease: MysqlLease,
    mysql_unique: MysqlUnique,
    mysql_session: MysqlSession,
    mysql_advisory: MysqlAdvisory,
    postgres: Postgres,
    postgres_pair: PostgresPair,
    postgres_session: PostgresSession,
    etcd: Etcd,
    etcd_cluster: EtcdCluster,
    zk: Zk,
    zk_ensemble: ZkEnsemble,
    file: File,
}
