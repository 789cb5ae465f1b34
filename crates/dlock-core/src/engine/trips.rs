//! The trips to the store that a room makes: renewals of many holds at once, and undos.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join_all};

use super::client::Client;
use super::entry::{Ending, Entry, Subject};
use super::ledger::undo_limit;
use crate::backend::{Lease, Released, Renewal, random_between};
use crate::kit::polling;
use crate::lock::stats::Event;
use crate::{Error, ErrorKind, Result};

/// Entries for which a trip is under way. If its future is dropped, because the runtime has ended, they go back to the ledger.
struct UnderWay {
    client: Arc<Client>,
    entries: Vec<(Arc<Entry>, u32)>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let now = self.client.clock.now();
        for (entry, trip) in &self.entries {
            self.client.ledger.dropped_trip(entry, *trip, now);
        }
    }
}

/// One trip for many holds; returns how many the store has extended. It never blocks the room: other holds are renewed and
/// expire meanwhile.
pub(super) async fn renew(client: Arc<Client>, entries: Vec<(Arc<Entry>, u32)>) -> usize {
    let mut under_way = UnderWay { client, entries };
    let client = under_way.client.clone();
    let entries = under_way.entries.clone();
    let leases: Vec<Arc<Lease>> = entries
        .iter()
        .filter_map(|(entry, _)| entry.lease())
        .collect();
    let limit = entries
        .iter()
        .map(|(entry, _)| entry.settings.renewal_limit())
        .min()
        .unwrap_or_default();
    let sent = client.clock.now();
    let renewal = client.trip(limit, async { Ok(client.backend.renew(&leases).await) });
    // Beside it, downgrades in doubt are asked for again.
    let downgrades = entries
        .iter()
        .filter(|(entry, _)| entry.is_downgrade_in_doubt())
        .map(|(entry, _)| settle_downgrade(&client, entry));
    let (answers, downgrades) = join(renewal, join_all(downgrades)).await;
    for error in downgrades.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "downgrade not confirmed, trying again");
    }
    under_way.entries.clear();
    let mut answers = answers.unwrap_or_default().into_iter();
    let mut extended = 0;
    let took = client.clock.now().since(sent);
    for (entry, trip) in entries {
        match answers.next() {
            Some(Renewal::Extended) => {
                extended += 1;
                client.ledger.count(Event::Renewed, &entry);
                let now = client.clock.now();
                client.ledger.renewed(&entry, trip, sent, now);
            }
            Some(Renewal::Lost(reason)) => client.lose(&entry, reason),
            Some(Renewal::Failed(error)) => failed(&client, &entry, trip, &error),
            None => failed(&client, &entry, trip, &polling::no_answer(limit)),
        }
    }
    if extended > 0 {
        client.trip_time.took(took);
    }
    extended
}

/// Not a loss: the lease has not passed yet ([C10](crate::contract#c10)).
fn failed(client: &Client, entry: &Arc<Entry>, trip: u32, error: &Error) {
    client.ledger.count(Event::RenewalFailed, entry);
    tracing::debug!(name = %entry.name(), %error, "renewal failed, trying again");
    let again = client.clock.now() + retry_pause(entry);
    client.ledger.not_renewed(entry, trip, again);
}

/// Several tries fit into what is left of the lease; randomised, since all holds of a client fail together.
fn retry_pause(entry: &Entry) -> Duration {
    let interval = entry.settings.renew_every.unwrap_or(entry.settings.lease);
    let step = interval / 8;
    random_between(step / 2, step).max(Duration::from_millis(2))
}

/// Repeats a downgrade whose answer was lost, or that was not sent, until the store has confirmed.
///
/// # Errors
///
/// When it did not. A hold that turns out to be gone is declared lost.
pub(super) async fn settle_downgrade(client: &Arc<Client>, entry: &Arc<Entry>) -> Result<()> {
    let Some(lease) = entry.lease() else {
        return Ok(());
    };
    let limit = entry.settings.renewal_limit();
    let answer = client.trip(limit, client.backend.downgrade(&lease)).await;
    match answer {
        Ok(()) => {
            client.ledger.downgraded(entry);
            Ok(())
        }
        Err(error) => {
            if error.kind() == ErrorKind::Lost {
                client.lose(entry, crate::LossReason::Gone);
            }
            Err(error)
        }
    }
}

/// One try to undo an attempt or to give back a hold.
pub(super) async fn undo(client: Arc<Client>, entry: Arc<Entry>, trip: u32) {
    let mut under_way = UnderWay {
        client: client.clone(),
        entries: vec![(entry.clone(), trip)],
    };
    let outcome = try_undo(&client, &entry).await;
    under_way.entries.clear();
    match outcome {
        Ok(()) => client.ledger.undone(&entry),
        Err(error) => {
            tracing::debug!(name = %entry.name(), %error, "undo not confirmed, trying again");
            let now = client.clock.now();
            client.ledger.not_undone(&entry, trip, &error, now);
        }
    }
}

async fn try_undo(client: &Arc<Client>, entry: &Arc<Entry>) -> Result<()> {
    let limit = undo_limit(entry);
    match entry.subject() {
        Subject::Attempt(request) => client.trip(limit, client.backend.abandon(&request)).await,
        Subject::Hold(_) => {
            let found = give_back(client, entry, limit).await?;
            if found == Released::Freed && entry.ending() == Ending::LetGo {
                client.ledger.count(Event::Released, entry);
            }
            Ok(())
        }
    }
}

/// Tells the store that a hold is over.
pub(super) async fn give_back(
    client: &Arc<Client>,
    entry: &Arc<Entry>,
    limit: Duration,
) -> Result<Released> {
    // After a downgrade without an answer the store may have the hold as a writer's or as a reader's, and a release must name the right one. If
    // the store refuses the question for good, the release is tried all the same.
    if entry.is_downgrade_in_doubt()
        && let Err(error) = settle_downgrade(client, entry).await
        && error.is_retryable()
    {
        return Err(error);
    }
    let Some(lease) = entry.lease() else {
        return Ok(Released::AlreadyLost);
    };
    let sent = client.clock.now();
    let found = client.trip(limit, client.backend.release(&lease)).await;
    if found.is_ok() {
        client.trip_time.took(client.clock.now().since(sent));
    }
    found
}

/// Listens for others who wait for a hold that rests now and then, until the hold has ended.
pub(super) fn watch(client: Arc<Client>, entry: Arc<Entry>) -> impl Future<Output = ()> {
    // Before the first poll, which may never come.
    let watch = Watch {
        client,
        entry,
        is_over: false,
    };
    listen(watch)
}

async fn listen(mut watch: Watch) {
    let (client, entry) = (watch.client.clone(), watch.entry.clone());
    let ended = async {
        loop {
            let mut change = std::pin::pin!(entry.change());
            change.as_mut().enable();
            if entry.ending() != Ending::NotYet {
                return;
            }
            change.await;
        }
    };
    tokio::select! {
        biased;
        () = ended => {}
        () = client.others_wait(&entry) => client.ledger.wanted(&entry, client.clock.now()),
    }
    watch.is_over = true;
}

/// If the runtime ends, another room listens.
struct Watch {
    client: Arc<Client>,
    entry: Arc<Entry>,
    is_over: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.is_over {
            let now = self.client.clock.now();
            self.client.ledger.no_longer_watched(&self.entry, now);
        }
    }
}
