#![doc = include_str!("../README.md")]

mod acquire;
mod backend;
#[cfg(feature = "client")]
pub mod client;
mod config;
mod connect;
mod error;
mod fence;
mod inspect;
mod key;
mod link;
mod pace;
mod queue;
mod quiet;
mod release;
mod renew;
mod wait;

pub use backend::ZkBackend;
pub use config::{Access, Config};
pub use fence::Fenced;
