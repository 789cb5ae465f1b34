//! Connections of which each serves one task at a time, for as many tasks as come.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use dlock_bench::Result;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// As many connections as a client of ours shares at most.
const MOST: usize = 16;

/// Makes them as they are needed.
pub(crate) struct Pool<C> {
    url: String,
    idle: Arc<Mutex<Vec<C>>>,
    room: Arc<Semaphore>,
}

impl<C> Pool<C> {
    pub(crate) fn new(url: &str, first: C) -> Self {
        Self {
            url: url.to_owned(),
            idle: Arc::new(Mutex::new(vec![first])),
            room: Arc::new(Semaphore::new(MOST)),
        }
    }

    pub(crate) async fn take<F: Future<Output = Result<C>>>(
        &self,
        connect: impl FnOnce(String) -> F,
    ) -> Result<Pooled<C>> {
        let permit = self.room.clone().acquire_owned().await?;
        let idle = pop(&self.idle);
        let connection = match idle {
            Some(connection) => connection,
            None => connect(self.url.clone()).await?,
        };
        Ok(Pooled {
            connection: Some(connection),
            idle: self.idle.clone(),
            _permit: permit,
        })
    }
}

fn pop<C>(idle: &Mutex<Vec<C>>) -> Option<C> {
    idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
}

/// One that is in use.
pub(crate) struct Pooled<C> {
    connection: Option<C>,
    idle: Arc<Mutex<Vec<C>>>,
    _permit: OwnedSemaphorePermit,
}

impl<C> Deref for Pooled<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.connection.as_ref().expect("it is put back at the end")
    }
}

impl<C> DerefMut for Pooled<C> {
    fn deref_mut(&mut self) -> &mut C {
        self.connection.as_mut().expect("it is put back at the end")
    }
}

impl<C> Drop for Pooled<C> {
    fn drop(&mut self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.extend(self.connection.take());
    }
}
