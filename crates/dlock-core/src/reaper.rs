//! The one clean-up task of a client: it undoes attempts and releases that were not confirmed, until they are or the lease is over.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use crate::backoff::Backoff;
use crate::client::Client;
use crate::hold::State;
use crate::ledger::{Chore, Ledger, Leftover};
use crate::settings::DEFAULT_TRIP_TIMEOUT;
use crate::stats::Event;
use crate::{Released, Result};

/// How many trips run at once: dropped guards free their locks together, but do not flood the store.
const AT_ONCE: usize = 64;
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub(crate) fn run(client: &Arc<Client>) -> impl Future<Output = ()> + Send + use<> {
    reap(Arc::downgrade(client), client.ledger.clone())
}

async fn reap(client: Weak<Client>, ledger: Arc<Ledger>) {
    let _orphans = Orphans(&ledger);
    let mut trips = FuturesUnordered::new();
    loop {
        while trips.len() < AT_ONCE
            && let Some(chore) = ledger.take_chore()
        {
            // No client: nobody is left whom this chore could serve, and its backend is closed.
            match chore.keeps.clone().or_else(|| client.upgrade()) {
                Some(client) => trips.push(undo(Taken {
                    client,
                    chore: Some(chore),
                })),
                None => ledger.strike(),
            }
        }
        if trips.is_empty() && client.strong_count() == 0 {
            return;
        }
        tokio::select! {
            Some(()) = trips.next() => {}
            () = ledger.work.notified() => {}
        }
    }
}

/// When the task ends with its runtime, the chores that nobody took yet let go of the client.
struct Orphans<'a>(&'a Ledger);

impl Drop for Orphans<'_> {
    fn drop(&mut self) {
        self.0.orphan_chores();
    }
}

/// A chore in work. If the runtime ends meanwhile, it goes back to the ledger for the next reaper.
struct Taken {
    client: Arc<Client>,
    chore: Option<Chore>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(mut chore) = self.chore.take() {
            chore.keeps = None;
            self.client.ledger.add_chore(chore);
        }
        self.client.ledger.strike();
    }
}

async fn undo(mut taken: Taken) {
    let mut backoff = Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE);
    while let Some(chore) = &taken.chore {
        let client = &taken.client;
        let outcome = try_once(client, chore).await;
        if let Leftover::Hold(hold) = &chore.what {
            if outcome.is_err() {
                hold.not_confirmed();
            }
            // Local waiters go on now, also if it failed: the store decides, and tells them if it is out of reach.
            hold.pass_turn();
        }
        match outcome {
            Ok(()) => break,
            Err(error) => {
                let now = client.clock.now();
                if now >= chore.until {
                    tracing::warn!(%error, "the store did not confirm a release; its lease ends it");
                    break;
                }
                tracing::debug!(%error, "release not confirmed, trying again");
                let again = now + backoff.pause();
                client.clock.sleep_until(again.min(chore.until)).await;
            }
        }
    }
    taken.chore = None;
}

async fn try_once(client: &Arc<Client>, chore: &Chore) -> Result<()> {
    match &chore.what {
        Leftover::Attempt(request) => {
            client
                .trip(request.trip_timeout(), client.backend.abandon(request))
                .await
        }
        Leftover::Hold(hold) => {
            let lease = hold.lease();
            let limit = hold.settings.trip_timeout.min(DEFAULT_TRIP_TIMEOUT);
            let found = client.trip(limit, client.backend.release(&lease)).await?;
            if found == Released::Freed && hold.state() == State::LetGo {
                client.stats.count(Event::Released);
            }
            Ok(())
        }
    }
}
