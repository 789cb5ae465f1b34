#![doc = include_str!("../README.md")]
#![allow(
    hidden_glob_reexports,
    reason = "our module `backend` is private; that of core is `dlock_core::backend`"
)]

#[cfg(not(unix))]
compile_error!(
    "dlock-file stands on Unix file locks, owners and sockets: leave the `file` feature out on this system"
);

mod access;
mod acquire;
mod backend;
mod clients;
mod config;
mod connect;
mod error;
mod fence;
mod gate;
mod inspect;
mod key;
mod life;
mod origin;
mod record;
mod release;
mod renew;
mod slots;
mod wait;
mod wake_socket;

pub use access::Access;
pub use backend::FileBackend;
pub use config::Config;

/// All that a user needs of `dlock-core` is here too, so that this crate is the only one to depend on.
#[doc(no_inline)]
pub use dlock_core::{self, *};
