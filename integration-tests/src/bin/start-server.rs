//! Starts a server and waits for ever: the process that the tests of server lifetimes kill.
//!
//! `start-server redis|mariadb|mysql|postgres|etcd|zookeeper` prints the process id of the server once it is ready.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "its caller reads both"
)]

use std::process::ExitCode;

use integration_tests::server::{Server, Store};
use integration_tests::{Etcd, Flavor, MySql, Postgres, Redis, Result, ZooKeeper};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let store = std::env::args().nth(1).unwrap_or_default();
    let outcome = match store.as_str() {
        Redis::NAME => hold(Redis::default()).await,
        "mariadb" => hold(MySql::default()).await,
        "mysql" => {
            hold(MySql {
                flavor: Flavor::MySql,
                ..MySql::default()
            })
            .await
        }
        Postgres::NAME => hold(Postgres::default()).await,
        Etcd::NAME => hold(Etcd::default()).await,
        ZooKeeper::NAME => hold(ZooKeeper::default()).await,
        other => {
            eprintln!("unknown store {other:?}");
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = outcome {
        eprintln!("{error}");
    }
    ExitCode::FAILURE
}

async fn hold<S: Store>(store: S) -> Result<()> {
    let server = Server::start_with(store).await?;
    println!("{}", server.pid());
    std::future::pending().await
}
