#![doc = include_str!("../README.md")]

#[cfg(not(unix))]
compile_error!(
    "dlock-file stands on Unix file locks, owners and sockets: leave the `file` feature out on this system"
);

mod access;
mod acquire;
mod backend;
mod config;
mod connect;
mod error;
mod fence;
mod gate;
mod inspect;
mod key;
mod life;
mod origin;
mod release;
mod slots;
mod state;
mod wait;

pub use access::Access;
pub use backend::FileBackend;
pub use config::Config;
