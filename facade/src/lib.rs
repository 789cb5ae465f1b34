#![doc = include_str!("../README.md")]

#[cfg(feature = "blocking")]
pub mod blocking;
mod connect;
mod lease;
mod registry;
mod scheme;

pub use connect::{Builder, builder, connect};
pub use dlock_core::*;
pub use registry::register;
pub use scheme::{compiled_in, open};

#[cfg(feature = "etcd")]
pub use dlock_etcd as etcd;
#[cfg(feature = "file")]
pub use dlock_file as file;
#[cfg(feature = "memory")]
pub use dlock_memory as memory;
#[cfg(feature = "mysql")]
pub use dlock_mysql as mysql;
#[cfg(feature = "postgres")]
pub use dlock_postgres as postgres;
#[cfg(feature = "redis")]
pub use dlock_redis as redis;
#[cfg(feature = "redlock")]
pub use dlock_redlock as redlock;
#[cfg(feature = "zk")]
pub use dlock_zk as zk;
