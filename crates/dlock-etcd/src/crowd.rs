//! How many tasks of a client may take a place in the queue of one lock, or open a watch on it, at the same time.
//!
//! A server goes through the whole queue for each who comes, one after the other. Thousands who come at once would make it too slow for
//! everybody, the signs of life of holders among them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::Name;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const AT_ONCE: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Crowds(Mutex<HashMap<Name, Arc<Semaphore>>>);

/// The right to ask, until it is dropped.
#[derive(Debug)]
pub(crate) struct Admitted<'a> {
    crowds: &'a Crowds,
    name: &'a Name,
    permit: Option<OwnedSemaphorePermit>,
}

impl Crowds {
    fn all(&self) -> MutexGuard<'_, HashMap<Name, Arc<Semaphore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is this one's turn to ask for this lock; first come, first served.
    pub(crate) async fn admit<'a>(&'a self, name: &'a Name) -> Admitted<'a> {
        // Made first, so that a dropped future leaves nothing either.
        let mut admitted = Admitted {
            crowds: self,
            name,
            permit: None,
        };
        let crowd = {
            let mut all = self.all();
            let crowd = all.entry(name.clone());
            crowd
                .or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE)))
                .clone()
        };
        // It is never closed.
        admitted.permit = crowd.acquire_owned().await.ok();
        admitted
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.permit = None;
        let mut all = self.crowds.all();
        // Nobody else has it or waits for it.
        if all
            .get(self.name)
            .is_some_and(|crowd| Arc::strong_count(crowd) == 1)
        {
            all.remove(self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn some_are_let_in_for_each_lock_and_nothing_is_left() {
        let crowds = Crowds::default();
        let (a, b) = (
            Name::new("a").expect("a name"),
            Name::new("b").expect("a name"),
        );
        let mut inside: Vec<_> = (0..AT_ONCE)
            .map(|_| crowds.admit(&a).now_or_never().expect("let in"))
            .collect();
        let mut next = Box::pin(crowds.admit(&a));
        assert!((&mut next).now_or_never().is_none(), "too many");
        assert!(crowds.admit(&b).now_or_never().is_some(), "another lock");
        inside.pop();
        drop((&mut next).now_or_never().expect("let in"));
        drop((next, inside));
        assert!(crowds.all().is_empty());
    }
}
