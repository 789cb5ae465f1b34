#![doc = include_str!("../README.md")]
#![allow(
    hidden_glob_reexports,
    reason = "our module `backend` is private; that of core is `dlock_core::backend`"
)]

mod acquire;
mod attempts;
mod backend;
#[cfg(feature = "client")]
pub mod client;
mod config;
mod connect;
mod crowd;
mod error;
mod fence;
mod inspect;
mod key;
mod line;
mod lookout;
mod position;
mod queue;
mod release;
mod renew;
mod session;
mod slots;
mod store;
mod tidy;
mod txn;
mod wait;
mod wanted;
mod watched;

pub use backend::EtcdBackend;
pub use config::Config;
pub use dlock_core::kit::{Login, Tls};
pub use fence::Fence;

/// All that a user needs of `dlock-core` is here too, so that this crate is the only one to depend on.
#[doc(no_inline)]
pub use dlock_core::{self, *};
