#![doc = include_str!("../README.md")]
#![allow(
    hidden_glob_reexports,
    reason = "our module `backend` is private; that of core is `dlock_core::backend`"
)]

mod backend;
mod bell;
mod carried;
#[cfg(feature = "client")]
pub mod client;
mod config;
mod connect;
mod error;
mod fence;
pub mod fenced;
mod inspect;
mod key;
mod lately;
mod lease;
pub mod optimistic;
mod renew;
mod schema;
mod server;
mod unique;
mod wait;
mod waiters;

pub use backend::MySqlBackend;
pub use config::{Config, LockMode};
pub use dlock_core::kit::{Login, Tls};
/// The client crate whose connections and transactions [`fenced`] and [`optimistic`] take.
pub use mysql_async;
pub use schema::migration;

/// All that a user needs of `dlock-core` is here too, so that this crate is the only one to depend on.
#[doc(no_inline)]
pub use dlock_core::{self, *};
