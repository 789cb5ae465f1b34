use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. Nothing panics while holding one of ours, and if it did, the data would still be whole.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
