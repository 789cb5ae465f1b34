#![doc = include_str!("../README.md")]

mod acquire;
mod backend;
#[cfg(feature = "client")]
pub mod client;
mod config;
mod connect;
mod error;
mod fence;
mod how;
mod inspect;
mod key;
mod many;
pub mod node;
mod release;
mod renew;
mod script;
mod wait;

pub use backend::RedisBackend;
pub use config::{Config, Login, Style};
pub use fence::FENCED_SET;
