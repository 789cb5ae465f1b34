#![doc = include_str!("../README.md")]

mod acquire;
mod backend;
#[cfg(feature = "client")]
pub mod client;
mod config;
mod connect;
mod error;
pub mod fenced;
mod inspect;
mod key;
pub mod optimistic;
mod release;
mod renew;
mod schema;
mod server;
pub mod transaction;
mod wait;

pub use backend::PostgresBackend;
pub use config::{Config, LockMode};
pub use schema::migration;
/// The client crate whose connections and transactions [`fenced`], [`optimistic`] and [`transaction`] take.
pub use tokio_postgres;
