//! What every lock of a client goes through, whatever the store.

mod acquire;
mod attempt;
pub(crate) mod client;
pub(crate) mod entry;
mod evidence;
pub(crate) mod ledger;
mod queue;
pub(crate) mod room;
pub(crate) mod spec;
mod trip_time;
mod trips;
mod walk;
