#![doc = include_str!("../README.md")]

mod backend;
mod config;
mod control;
mod store;

pub use backend::MemoryBackend;
pub use config::Config;
pub use control::Control;
