//! Whether there is a runtime: timers and background tasks need one.

use tokio::runtime::Handle;

use crate::{Error, Operation, Result};

/// What a backend asks first in its `connect`, since clients panic where there is no runtime: an error in its place.
///
/// ```
/// let error = dlock_core::backend::need_runtime("my-store").expect_err("there is no runtime here");
/// assert!(error.to_string().starts_with("my-store: connect: invalid input: called outside of a tokio runtime"));
/// ```
///
/// # Errors
///
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) outside of a tokio runtime.
pub fn need_runtime(backend: &'static str) -> Result<()> {
    in_runtime().map_err(|error| {
        error
            .with_backend(backend)
            .with_operation(Operation::Connect)
    })
}

/// Timers and background tasks need a runtime.
pub(crate) fn in_runtime() -> Result<()> {
    match Handle::try_current() {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::invalid(
            "called outside of a tokio runtime: call it from a task, or inside Runtime::block_on",
        )),
    }
}
