#![doc = include_str!("../README.md")]
#![allow(
    hidden_glob_reexports,
    reason = "our module `backend` is private; that of core is `dlock_core::backend`"
)]

mod backend;
#[cfg(feature = "client")]
pub mod client;
mod config;
mod connect;
mod error;
mod fence;
pub mod fenced;
mod key;
mod lease;
pub mod optimistic;
mod schema;
mod server;
mod session;
pub mod transaction;

pub use backend::PostgresBackend;
pub use config::{Config, LockMode};
pub use dlock_core::kit::{Login, Tls};
pub use schema::migration;
/// The client crate whose connections and transactions [`fenced`], [`optimistic`] and [`transaction`] take.
pub use tokio_postgres;

/// All that a user needs of `dlock-core` is here too, so that this crate is the only one to depend on.
#[doc(no_inline)]
pub use dlock_core::{self, *};
