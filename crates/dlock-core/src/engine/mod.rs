//! What every lock of a client goes through, whatever the store.

mod acquire;
mod attempt;
pub(crate) mod client;
pub(crate) mod entry;
mod evidence;
mod keep_alive;
mod leave;
pub(crate) mod ledger;
mod post;
pub(crate) mod queue;
mod room;
pub(crate) mod rooms;
pub(crate) mod spec;
mod trip_time;
mod trips;
mod walk;
