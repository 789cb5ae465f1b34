//! What users hold: clients, locks, guards, and what they tell.

mod election;
mod flat;
pub(crate) mod guard;
mod info;
mod locks;
mod multi;
mod mutex;
mod owner;
mod rwlock;
mod semaphore;
pub(crate) mod settings;
mod signal;
pub(crate) mod stats;

pub use election::{Election, Leader};
pub use flat::Flat;
pub use guard::{Guard, Writer};
pub use info::{HolderInfo, LockInfo, WaiterInfo};
pub use locks::{Locks, LocksBuilder};
pub use multi::MultiLock;
pub use mutex::Mutex;
pub use owner::Owner;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use settings::{Order, Settings};
pub use signal::LossSignal;
pub use stats::{Losses, Stats, Times};
