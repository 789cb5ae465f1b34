#![doc = include_str!("../README.md")]

mod acquire;
mod attempts;
mod backend;
#[cfg(feature = "client")]
pub mod client;
mod config;
mod connect;
mod error;
mod fence;
mod inspect;
mod key;
mod place;
mod queue;
mod release;
mod renew;
mod session;
mod slots;
mod txn;
mod wait;

pub use backend::EtcdBackend;
pub use config::Config;
pub use fence::Fence;
