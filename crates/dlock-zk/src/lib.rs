#![doc = include_str!("../README.md")]
#![allow(
    hidden_glob_reexports,
    reason = "our module `backend` is private; that of core is `dlock_core::backend`"
)]

mod acquire;
mod backend;
#[cfg(feature = "client")]
pub mod client;
mod config;
mod connect;
mod crowd;
mod current_session;
mod error;
mod fence;
mod inspect;
mod key;
mod pace;
mod queue;
mod quiet;
mod release;
mod renew;
mod wait;
mod wanted;

pub use backend::ZkBackend;
pub use config::{Access, Auth, Config, Style};
pub use dlock_core::kit::{Login, Tls};
pub use fence::Fenced;

/// All that a user needs of `dlock-core` is here too, so that this crate is the only one to depend on.
#[doc(no_inline)]
pub use dlock_core::{self, *};
