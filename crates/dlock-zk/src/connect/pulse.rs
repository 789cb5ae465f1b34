//! Proof that the session lives, one for all who wait.

use std::sync::{Arc, Mutex, PoisonError};

use dlock_core::backend::Request;
use dlock_core::{Clock, Moment, Result};

use super::Session;
use crate::error::Fault;

/// When the session was last proven to live.
#[derive(Default)]
pub(super) struct Pulse {
    /// By the clock of whoever asked: moments of two clocks do not compare.
    last: Mutex<Option<(Arc<dyn Clock>, Moment)>>,
    /// Held by the one who asks, for all others.
    asking: tokio::sync::Mutex<()>,
}

impl Pulse {
    fn since(&self, oldest: Moment, request: &Request) -> Option<Moment> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (clock, lived) = last.as_ref()?;
        (Arc::ptr_eq(clock, request.clock()) && *lived >= oldest).then_some(*lived)
    }
}

impl Session {
    /// A moment not before `oldest` at which the session lived. However many wait for it, one of them asks.
    ///
    /// It is the moment at which an empty transaction was sent that was answered. A read would not do, because a follower that has lost its
    /// leader answers it for some time, while the leader may end the session; nor would a `sync`, which a leader that has lost its followers
    /// answers, while they may have another.
    pub(crate) async fn lived_since(&self, oldest: Moment, request: &Request) -> Result<Moment> {
        loop {
            if let Some(lived) = self.pulse.since(oldest, request) {
                return Ok(lived);
            }
            let _asking = self.pulse.asking.lock().await;
            if let Some(lived) = self.pulse.since(oldest, request) {
                return Ok(lived);
            }
            self.up().await?;
            let sent = request.now();
            match self.prove().await {
                Ok(()) => {
                    let mut last = self
                        .pulse
                        .last
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner);
                    *last = Some((request.clock().clone(), sent));
                }
                Err(Fault::Broken(_)) => {}
                Err(fault) => return Err(fault.into()),
            }
        }
    }
}
