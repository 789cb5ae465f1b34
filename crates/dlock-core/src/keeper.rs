//! The one renewal task of a client. It renews what is due, many holds in one trip, and declares losses by the clock.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use crate::backoff::random_between;
use crate::client::Client;
use crate::hold::Hold;
use crate::stats::Event;
use crate::{Lease, Moment, Renewal};

/// How many leases one call of `renew` carries: enough to make a trip worth it, few enough to keep the store responsive.
const BATCH: usize = 256;

pub(crate) fn run(client: &Arc<Client>) -> impl Future<Output = ()> + Send + use<> {
    // The task must not keep the client alive: it would then never end.
    keep(
        Arc::downgrade(client),
        client.clock.clone(),
        client.ledger.clone(),
    )
}

async fn keep(
    client: Weak<Client>,
    clock: Arc<dyn crate::Clock>,
    ledger: Arc<crate::ledger::Ledger>,
) {
    let mut trips = FuturesUnordered::new();
    ledger.renewals_ended(clock.now());
    loop {
        let next = {
            let Some(client) = client.upgrade() else {
                return;
            };
            let due = ledger.due(clock.now());
            for hold in &due.lost {
                client.lose(hold, hold.clock_reason());
            }
            for batch in due.renew.chunks(BATCH) {
                trips.push(renew(client.clone(), batch.to_vec()));
            }
            due.next.unwrap_or(Moment::NEVER)
        };
        tokio::select! {
            Some(()) = trips.next() => {}
            () = ledger.sooner.notified() => {}
            () = clock.sleep_until(next), if next != Moment::NEVER => {}
        }
    }
}

/// One trip for many holds. It never blocks the keeper: other holds are renewed and expire meanwhile.
async fn renew(client: Arc<Client>, holds: Vec<Arc<Hold>>) {
    let leases: Vec<Arc<Lease>> = holds.iter().map(|hold| hold.lease()).collect();
    // No longer than until the next one is due: a hung trip must not eat the tries that the lease has left.
    let limit = holds
        .iter()
        .map(|hold| hold.settings.trip_timeout.min(interval(hold)))
        .min()
        .unwrap_or_default();
    let sent = client.clock.now();
    let answers = client
        .trip(limit, async { Ok(client.backend.renew(&leases).await) })
        .await
        .unwrap_or_default();
    let mut answers = answers.into_iter();
    for hold in &holds {
        let answer = answers
            .next()
            .unwrap_or_else(|| Renewal::Failed(crate::wait::no_answer(limit)));
        let now = client.clock.now();
        match answer {
            Renewal::Extended => {
                client.stats.count(Event::Renewed);
                hold.extend(sent);
                client.ledger.renewed(hold, sent + interval(hold));
            }
            Renewal::Lost(reason) => {
                client.ledger.renewed(hold, now);
                client.lose(hold, reason);
            }
            Renewal::Failed(error) => {
                // Not a loss: the lease has not passed yet (C10).
                client.stats.count(Event::RenewalFailed);
                tracing::debug!(name = %hold.lease().name(), %error, "renewal failed, trying again");
                client.ledger.renewed(hold, now + retry_pause(hold));
            }
        }
    }
}

fn interval(hold: &Hold) -> Duration {
    hold.settings.renew_every.unwrap_or(hold.settings.lease)
}

/// Several tries fit into what is left of the lease; randomised, since all holds of a client fail together.
fn retry_pause(hold: &Hold) -> Duration {
    let step = interval(hold) / 8;
    random_between(step / 2, step).max(Duration::from_millis(2))
}
