//! The kinds of locks.

mod multi;
mod mutex;
mod rwlock;
mod semaphore;

use std::fmt;
use std::future::Future;

use dlock_core::Result;

use super::{Guard, room::Room};

/// What all kinds share: how an asynchronous acquire becomes one that blocks.
#[derive(Clone)]
struct Asker {
    backend: &'static str,
    room: Room,
}

impl Asker {
    fn wait(
        &self,
        acquire: impl Future<Output = Result<dlock_core::Guard>> + Send + 'static,
    ) -> Result<Guard> {
        let inner = self.room.call(acquire)?;
        Ok(Guard::new(inner, self.backend, self.room.clone()))
    }

    fn attempt(
        &self,
        acquire: impl Future<Output = Result<Option<dlock_core::Guard>>> + Send + 'static,
    ) -> Result<Option<Guard>> {
        let inner = self.room.call(acquire)?;
        Ok(inner.map(|inner| Guard::new(inner, self.backend, self.room.clone())))
    }
}

macro_rules! kind {
    ($kind:ident, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone)]
        pub struct $kind {
            inner: dlock_core::$kind,
            asker: Asker,
        }

        impl $kind {
            pub(super) fn new(inner: dlock_core::$kind, backend: &'static str, room: Room) -> Self {
                Self {
                    inner,
                    asker: Asker { backend, room },
                }
            }
        }

        impl fmt::Debug for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.inner, f)
            }
        }
    };
}

kind!(
    Mutex,
    "A lock for one holder at a time, as [`dlocks::Mutex`](crate::Mutex). Not reentrant by itself, not even in one thread: give an \
     [`Owner`](crate::Owner) for that."
);
kind!(
    RwLock,
    "A lock for many readers or one writer, as [`dlocks::RwLock`](crate::RwLock)."
);
kind!(
    Semaphore,
    "A lock for at most `limit` holders at a time, as [`dlocks::Semaphore`](crate::Semaphore)."
);
kind!(
    MultiLock,
    "Several locks as one: all or nothing, as [`dlocks::MultiLock`](crate::MultiLock)."
);
