#![doc = include_str!("../README.md")]

mod acquire;
mod backend;
mod config;
mod connect;
mod error;
mod inspect;
mod lives;
#[cfg(test)]
mod model;
mod peer;
mod release;
mod renew;
mod stake;
mod undo;
mod vote;
mod wait;

pub use backend::RedlockBackend;
pub use config::Config;
