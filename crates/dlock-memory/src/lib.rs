#![doc = include_str!("../README.md")]
#![allow(
    hidden_glob_reexports,
    reason = "our module `backend` is private; that of core is `dlock_core::backend`"
)]

mod acquire;
mod backend;
mod capabilities;
mod client;
mod config;
mod control;
mod fence;
mod inspect;
mod link;
mod release;
mod renew;
mod store;
mod wait;

pub use backend::MemoryBackend;
pub use config::Config;
pub use control::Control;

/// All that a user needs of `dlock-core` is here too, so that this crate is the only one to depend on.
#[doc(no_inline)]
pub use dlock_core::{self, *};
