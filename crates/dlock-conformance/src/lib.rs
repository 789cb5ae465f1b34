#![doc = include_str!("../README.md")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a case fails by panicking; the runner catches it"
)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test program prints"
)]

mod case;
mod cases;
mod harness;
mod polls;
pub mod process;
pub mod proxy;
mod report;
mod run;
mod suite;
mod worker;
mod world;

pub use async_trait::async_trait;
pub use case::{Case, Clause, Need};
pub use cases::cases;
pub use harness::{Ability, Fault, Faulty, Harness, Residue, Timings};
pub use report::{Line, Report};
pub use run::{CaseResult, check};
pub use suite::{main, main_all};

pub(crate) use world::World;
