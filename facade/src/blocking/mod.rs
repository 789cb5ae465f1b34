//! The same locks for code that blocks: plain threads, rayon, diesel. No runtime is needed.
//!
//! ```
//! # #[cfg(feature = "memory")]
//! # fn main() -> Result<(), dlocks::Error> {
//! let locks = dlocks::blocking::connect("memory:")?;
//! let stock = locks.mutex("stock:42")?; // cheap; nothing is sent
//!
//! let sold = stock.run(|guard| format!("sold one with token {:?}", guard.token()))?;
//!
//! if let Some(guard) = stock.try_lock()? {
//!     guard.ensure_held()?; // before each step: a thread cannot be stopped from outside
//!     let _ = guard.release()?; // or drop it, which never blocks
//! }
//! locks.close()?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "memory"))]
//! # fn main() {}
//! ```
//!
//! Each client has one thread, in which everything happens that must go on while yours are busy: renewals, clean-up, the connection. A call
//! sends its work there and blocks until it is done. The thread ends with the last handle of the client.
//!
//! In an async task every call that waits is an error of kind [`Invalid`](crate::ErrorKind::Invalid): it would block the thread that other
//! tasks need, perhaps the one that holds the lock. Use the async API there, or `spawn_blocking`.
//!
//! What differs from the async API: [`run`](Mutex::run) cannot cancel work whose hold is lost, so long work asks
//! [`ensure_held`](Guard::ensure_held); a call that waits cannot be dropped, so give it a limit; and owners are given by `owned_by`, as
//! there are no scopes. For an election, use its lock: whoever holds the mutex leads.

mod guard;
mod kinds;
mod locks;
mod room;

pub use guard::Guard;
pub use kinds::{MultiLock, Mutex, RwLock, Semaphore};
pub use locks::{Builder, Locks, builder, connect, open};
