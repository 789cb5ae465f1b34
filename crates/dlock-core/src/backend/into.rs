use std::sync::Arc;

use super::Backend;

/// What a client can be made of: a backend, or one that is shared with others.
///
/// ```
/// use std::sync::Arc;
/// use dlock_core::Locks;
/// use dlock_memory::MemoryBackend;
///
/// let own = Locks::new(MemoryBackend::new())?;
/// let shared = Arc::new(MemoryBackend::new()); // kept for its other methods, such as fenced writes
/// let locks = Locks::new(shared.clone())?;
/// # Ok::<(), dlock_core::Error>(())
/// ```
///
/// `Kind` is found by the compiler: it keeps the three ways apart.
pub trait IntoBackend<Kind> {
    /// The backend, shared.
    fn into_backend(self) -> Arc<dyn Backend>;
}

/// A backend itself.
#[doc(hidden)]
#[derive(Debug)]
pub enum Own {}

/// A shared backend whose type is known.
#[doc(hidden)]
#[derive(Debug)]
pub enum Shared {}

/// A shared backend of any type.
#[doc(hidden)]
#[derive(Debug)]
pub enum Any {}

impl<B: Backend> IntoBackend<Own> for B {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(self)
    }
}

impl<B: Backend> IntoBackend<Shared> for Arc<B> {
    fn into_backend(self) -> Arc<dyn Backend> {
        self
    }
}

impl IntoBackend<Any> for Arc<dyn Backend> {
    fn into_backend(self) -> Arc<dyn Backend> {
        self
    }
}
