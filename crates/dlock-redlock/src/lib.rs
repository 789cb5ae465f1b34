#![doc = include_str!("../README.md")]
#![allow(
    hidden_glob_reexports,
    reason = "our module `backend` is private; that of core is `dlock_core::backend`"
)]

mod abandon;
mod acquire;
mod backend;
mod config;
mod connect;
mod error;
mod fence;
mod inspect;
mod lives;
#[cfg(test)]
mod model;
mod peer;
mod release;
mod renew;
mod stake;
mod vote;
mod waiting;

pub use backend::RedlockBackend;
pub use config::Config;
pub use dlock_core::kit::{Login, Tls};

/// All that a user needs of `dlock-core` is here too, so that this crate is the only one to depend on.
#[doc(no_inline)]
pub use dlock_core::{self, *};
