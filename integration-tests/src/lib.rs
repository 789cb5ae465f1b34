#![doc = include_str!("../README.md")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: a broken assumption should end the test at once, where it broke"
)]

mod clock;
mod error;
mod folder;
mod holder;
pub mod judge;
mod meter;
mod port;
mod process;
mod program;
mod sale;
mod seen;
pub mod server;
mod wait;

pub use clock::Clock;
pub use dlock_conformance::proxy::{self, Direction, FaultProxy};
pub use error::{Error, Result};
pub use folder::Folder;
pub use holder::Holder;
pub use process::Process;
pub use sale::{Sale, WORKERS};
pub use server::{
    Endpoint, Etcd, EtcdCluster, EtcdServer, Flavor, Group, MySql, MySqlServer, PgBouncer,
    PgBouncerServer, Postgres, PostgresServer, Redis, RedisCluster, RedisServer, Reply,
    SentinelGroup, SentinelServer, Server, Tls, ZooKeeper, ZooKeeperEnsemble, ZooKeeperServer,
    etcd, mysql, mysql_of, postgres, redis, zookeeper,
};
pub use wait::until;
