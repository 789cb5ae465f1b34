//! Each example does what its first lines say.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::process::Command;

/// What an example prints. Cargo builds the examples beside the tests.
fn run(name: &str, settings: &[(&str, &str)]) -> String {
    let tests = std::env::current_exe().expect("the path of this test");
    let program = tests
        .ancestors()
        .nth(2)
        .expect("target/debug")
        .join("examples")
        .join(name);
    let output = Command::new(&program)
        .env_remove("DLOCK_URL")
        .envs(settings.iter().copied())
        .output()
        .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{name}: {printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    printed
}

#[track_caller]
fn says(printed: &str, expected: &[&str]) {
    for line in expected {
        assert!(printed.contains(line), "{line:?} in {printed}");
    }
}

#[test]
fn the_leader_hands_over_until_all_have_led() {
    let printed = run("leader", &[]);
    says(
        &printed,
        &["replica-1 leads", "replica-2 leads", "replica-3 leads"],
    );
    says(&printed, &["3 replicas led, one after the other"]);
    let tokens: Vec<u64> = printed
        .lines()
        .filter_map(|line| line.split("token ").nth(1)?.parse().ok())
        .collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{printed}");
}

#[test]
fn one_host_runs_the_nightly_job() {
    says(
        &run("cron_singleton", &[]),
        &["4 hosts, the job ran 1 time(s)"],
    );
}

#[test]
fn the_pool_balances_when_workers_come_and_go() {
    let printed = run("shards", &[]);
    says(
        &printed,
        &[
            "two workers: [8, 8]",
            "four workers: [4, 4, 4, 4]",
            "three workers: [",
        ],
    );
}

#[test]
fn the_move_to_another_store_has_no_gap() {
    let printed = run("switching", &[]);
    assert_eq!(
        printed.matches("exclude each other").count(),
        4,
        "{printed}"
    );
    assert_eq!(printed.matches("both hold").count(), 1, "{printed}");
}

#[test]
fn threads_sell_exactly_what_is_there() {
    says(&run("blocking", &[]), &["200 sold, 0 left"]);
}

#[cfg(feature = "diesel")]
#[test]
fn diesel_commits_before_the_release_and_refuses_a_late_holder() {
    let printed = run("diesel_transaction", &[]);
    says(
        &printed,
        &["40 sold, 0 left", "a late holder is refused: true"],
    );
}

#[cfg(feature = "web")]
mod web {
    use super::{run, says};
    use integration_tests::PostgresServer;

    #[tokio::test]
    async fn the_handler_sells_what_is_there_and_refuses_a_late_holder() {
        let server = PostgresServer::start().await.expect("PostgreSQL");
        let url = server.url();
        let printed =
            tokio::task::spawn_blocking(move || run("axum_fenced", &[("DATABASE_URL", &url)]))
                .await
                .expect("the example");
        says(
            &printed,
            &[
                "ten buyers, 5 items sold",
                "a late holder: a later holder has written here",
            ],
        );
    }

    #[tokio::test]
    async fn no_transfer_is_lost() {
        let server = PostgresServer::start().await.expect("PostgreSQL");
        let url = server.url();
        let printed =
            tokio::task::spawn_blocking(move || run("sqlx_transaction", &[("DATABASE_URL", &url)]))
                .await
                .expect("the example");
        says(&printed, &["after 20 transfers of 50: [(0,), (1000,)]"]);
    }
}
