#![doc = include_str!("../README.md")]

mod acquire;
mod backend;
mod backoff;
mod capabilities;
mod client;
mod clock;
mod election;
mod error;
mod guard;
mod hold;
mod info;
mod keeper;
mod ledger;
mod locks;
mod multi;
mod mutex;
mod name;
mod owner;
mod queue;
mod reaper;
mod request;
mod rwlock;
mod semaphore;
mod settings;
mod stats;
mod sync;
mod url;
mod wait;

pub use backend::Backend;
pub use backoff::Backoff;
pub use capabilities::{Capabilities, Capability, Fairness, Liveness, Reach, WakeUp};
pub use clock::{Clock, Moment, SystemClock, TokioClock};
pub use election::{Election, Leader};
pub use error::{Error, ErrorKind, HeldNow, Operation, Result};
pub use guard::{Guard, LossSignal};
pub use info::{HolderInfo, LockInfo, WaiterInfo};
pub use locks::{Locks, LocksBuilder};
pub use multi::MultiLock;
pub use mutex::Mutex;
pub use name::Name;
pub use owner::Owner;
pub use request::{
    Attempt, AttemptId, Busy, FencingToken, Lease, LossReason, Mode, Released, Renewal, Request,
};
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use settings::{Order, Settings};
pub use stats::{Losses, Stats, Times};
pub use url::{BackendUrl, Host, parse_duration};
