#![doc = include_str!("../README.md")]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        reason = "a test ends where its expectation breaks"
    )
)]

pub mod exclusion;
mod history;
mod holds;
pub mod linear;
pub mod live;
pub mod order;
pub mod registers;
mod report;
#[cfg(test)]
mod testing;
pub mod tokens;

pub use history::{History, Line, Mode, Op, Phase, Register, Setup};
pub use holds::{End, Hold, holds};
pub use report::{Finding, Kind, judge};
