use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use futures::future::select_all;

use crate::engine::client::Client;
use crate::engine::entry::{Ending, Entry};
use crate::{Clock, LossReason};

/// Tells when a hold is lost, apart from the guard. Clones tell the same. It keeps neither the lock nor the client.
#[derive(Clone)]
pub struct LossSignal {
    pub(super) watched: Vec<Watched>,
}

/// One hold that is watched.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) client: Weak<Client>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entry: Arc<Entry>,
    pub(super) stay: u32,
    pub(super) left: Option<Arc<AtomicBool>>,
}

impl Watched {
    /// A reader that joined may have left a hold that goes on without it.
    fn ending(&self) -> Ending {
        let has_left = |left: &Arc<AtomicBool>| left.load(Ordering::Acquire);
        match &self.left {
            Some(left) if has_left(left) => Ending::LetGo,
            _ => self.entry.ending_of_stay(self.stay),
        }
    }

    /// Resolves when the hold is lost, with the reason, or when it was released.
    async fn lost(&self) -> Option<LossReason> {
        if let Some(client) = self.client.upgrade() {
            client.ensure_rooms();
        }
        loop {
            let clock = self.clock.as_ref();
            self.entry.ended(|| self.ending(), clock).await;
            match self.ending() {
                Ending::Lost(reason) => return Some(reason),
                Ending::LetGo => return None,
                Ending::NotYet => {}
            }
            // Its time is up, and no room got to run; or it was renewed at the last moment.
            match self.client.upgrade() {
                Some(client) => client.lose_to_the_clock(&self.entry),
                None => return Some(LossReason::Expired),
            }
        }
    }
}

impl LossSignal {
    /// Resolves with the reason when the hold is lost, or with `None` once it was released.
    pub async fn wait(&self) -> Option<LossReason> {
        let mut left: Vec<_> = self
            .watched
            .iter()
            .map(|watched| Box::pin(watched.lost()))
            .collect();
        while !left.is_empty() {
            let (reason, _, others) = select_all(left).await;
            if reason.is_some() {
                return reason;
            }
            left = others;
        }
        None
    }

    /// Resolves with the reason when the hold is lost; never once it was released ([C9](crate::contract#c9)).
    pub async fn reason(&self) -> LossReason {
        match self.wait().await {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }
}

impl fmt::Debug for LossSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.watched.iter().map(Watched::ending))
            .finish()
    }
}
