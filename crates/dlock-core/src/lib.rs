#![doc = include_str!("../README.md")]

pub mod backend;
mod clock;
pub mod contract;
mod engine;
mod error;
pub mod fence;
pub mod kit;
mod lock;
mod name;
mod runtime;
mod sync;

pub use backend::{
    Capabilities, Capability, Fairness, FencingToken, Hearing, Liveness, LossReason, Mode, Reach,
    Released, WakeUp,
};
pub use clock::{Clock, Moment, SystemClock, TokioClock};
pub use error::{Error, ErrorKind, HeldNow, Operation, Result};
pub use lock::{
    Election, Flat, Guard, HolderInfo, Leader, LockInfo, Locks, LocksBuilder, LossSignal, Losses,
    MultiLock, Mutex, Order, Owner, RwLock, Semaphore, Settings, Stats, Times, WaiterInfo, Writer,
};
pub use name::Name;
