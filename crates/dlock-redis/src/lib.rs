#![doc = include_str!("../README.md")]
#![allow(
    hidden_glob_reexports,
    reason = "our module `backend` is private; that of core is `dlock_core::backend`"
)]

mod acquire;
mod backend;
mod batcher;
mod capabilities;
#[cfg(feature = "client")]
pub mod client;
mod config;
mod connect;
mod error;
mod fence;
mod fenced;
mod inspect;
mod key;
pub mod node;
mod release;
mod renew;
mod script;
mod script_args;
mod store;
mod try_out;
mod wait;
mod wanted;

pub use backend::RedisBackend;
pub use config::{Config, Style};
pub use dlock_core::kit::{Login, Tls};
pub use fenced::FENCED_SET;

/// All that a user needs of `dlock-core` is here too, so that this crate is the only one to depend on.
#[doc(no_inline)]
pub use dlock_core::{self, *};
