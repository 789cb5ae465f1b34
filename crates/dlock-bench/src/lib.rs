#![doc = include_str!("../README.md")]

mod bench;
mod figure;
mod kept;
mod meter;
mod processes;
mod round;
mod sample;
mod scenario;
mod subject;

pub use bench::Bench;
pub use figure::{Figure, Spread};
pub use meter::{Counters, Meter};
pub use processes::serve;
pub use sample::Sample;
pub use scenario::Scenario;
pub use subject::{Client, Dlock, Hold, Subject};

/// What ends a benchmark: a store's error, or that of a library that is measured beside it.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// A [`std::result::Result`] with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
