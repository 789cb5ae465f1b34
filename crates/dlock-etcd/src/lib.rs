#![doc = include_str!("../README.md")]

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
mod password;
mod place;
mod queue;
mod release;
mod renew;
mod session;
mod slots;
mod store;
mod tidy;
mod txn;
mod wait;
mod watched;

pub use backend::EtcdBackend;
pub use config::Config;
pub use fence::Fence;
