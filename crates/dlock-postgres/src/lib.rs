#![doc = include_str!("../README.md")]

mod acquire;
mod backend;
mod config;
mod connect;
mod error;
mod inspect;
mod key;
mod release;
mod renew;
mod schema;
mod server;
mod wait;

pub use backend::PostgresBackend;
pub use config::{Config, LockMode};
pub use schema::migration;
