//! Faults of processes, networks and stores, and what the judge says to them.
//!
//! A [scenario] is a [store](Store) with a [crew] of worker processes, and a [fault](Fault) that happens to them. The workers write
//! histories, which [`dlock_judge`] judges. [`plan`] says which verdict is expected; docs/faults.md is the table of it.

pub mod crew;
mod faults;
pub mod plan;
mod plant;
mod rate;
mod recorder;
mod registers;
pub mod scenario;
pub mod soak;
mod store;
pub mod table;
pub mod worker;

pub use faults::{Fault, Form};
pub use plan::Expected;
pub use plant::Plant;
pub use recorder::{Recorder, now};
pub use registers::Registers;
pub use scenario::{RoundReport, Scenario};
pub use store::{Site, Store};
