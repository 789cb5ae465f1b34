//! What every lock of a client goes through, whatever the store.

pub(crate) mod acquire;
pub(crate) mod client;
pub(crate) mod entry;
mod evidence;
pub(crate) mod ledger;
mod queue;
pub(crate) mod room;
mod trips;
mod walk;
