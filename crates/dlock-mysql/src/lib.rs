#![doc = include_str!("../README.md")]

mod backend;
mod carried;
#[cfg(feature = "client")]
pub mod client;
mod config;
mod connect;
mod error;
pub mod fenced;
mod inspect;
mod key;
mod lease;
pub mod optimistic;
mod renew;
mod schema;
mod server;
mod unique;
mod wait;

pub use backend::MySqlBackend;
pub use config::{Config, LockMode};
/// The client crate whose connections and transactions [`fenced`] and [`optimistic`] take.
pub use mysql_async;
pub use schema::migration;
