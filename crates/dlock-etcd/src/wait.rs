//! How a waiter wakes: it watches the one entry that stands in its way (C17).

use std::time::Duration;

use dlock_core::{Attempt, Backoff, Moment, Request};

use crate::EtcdBackend;
use crate::acquire::{Entry, busy, removed};
use crate::connect::{Seen, Watching};
use crate::error::Trouble;
use crate::place::{Near, Place};
use crate::queue;
use crate::txn::{Range, Step, Txn, When};

const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(300);

/// What a waiter waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watched {
    range: Range,
    /// Whether a new value counts too, or only the end.
    puts: bool,
    /// Whether nobody else is before us: when it ends, we hold. Nobody can come before us later.
    last: bool,
}

impl Watched {
    pub(crate) fn end_of(key: &[u8]) -> Self {
        Self::end_in(Range::key(key))
    }

    pub(crate) fn end_in(range: Range) -> Self {
        Self {
            range,
            puts: false,
            last: false,
        }
    }

    pub(crate) fn end_of_last(key: &[u8]) -> Self {
        Self {
            last: true,
            ..Self::end_of(key)
        }
    }

    pub(crate) fn change_of(key: &[u8]) -> Self {
        Self {
            puts: true,
            ..Self::end_of(key)
        }
    }
}

impl EtcdBackend {
    /// Waits at a place in the queue, `seen` at this revision. Ends with the lock, at the deadline, or when the store is out of reach.
    pub(crate) async fn wait(
        &self,
        request: &Request,
        entry: Entry,
        mut watched: Watched,
        mut seen: i64,
    ) -> Result<Attempt, Trouble> {
        let mut backoff = Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE);
        let mut trouble_since: Option<Moment> = None;
        loop {
            let moved = tokio::select! {
                biased;
                moved = self.moved(request, &entry, &watched, seen) => moved,
                () = at(request, request.deadline()) => {
                    let removed = self.remove(request.attempt(), &entry.key, Some(entry.created));
                    removed.await.map_err(Trouble::in_doubt)?;
                    return Ok(busy());
                }
            };
            match moved {
                Ok((Place::Holds { followed }, _)) => {
                    if followed {
                        self.ring(request, &entry).await;
                    }
                    return Ok(self.held(request, entry));
                }
                Ok((Place::Behind(next), revision)) => {
                    (watched, seen) = (next, revision);
                    trouble_since = None;
                    backoff.reset();
                }
                Ok((Place::Gone, _)) => return Err(removed()),
                Err(trouble) if trouble.lease_gone => return Err(trouble),
                Err(trouble) if !trouble.retryable => return Err(trouble.in_doubt()),
                Err(trouble) => {
                    // The place in the queue lives as long as the lease: a restart or an election does not cost it.
                    let now = request.now();
                    let since = *trouble_since.get_or_insert(now);
                    if entry.session.has_ended() {
                        return Err(trouble.in_doubt());
                    }
                    if now.since(since) >= request.trip_timeout() {
                        return Err(trouble.in_doubt());
                    }
                    tracing::debug!(name = %request.name(), why = trouble.message(), "the wait was disturbed");
                    request.clock().sleep_until(now + backoff.pause()).await;
                }
            }
        }
    }

    /// Resolves when the entry stands elsewhere than behind `watched`.
    async fn moved(
        &self,
        request: &Request,
        entry: &Entry,
        watched: &Watched,
        seen: i64,
    ) -> Result<(Place, i64), Trouble> {
        self.sessions.keep_if_due(&entry.session).await?;
        let mut watch = self
            .link
            .watch(Watching {
                range: &watched.range,
                puts: watched.puts,
                own: watched.last.then_some(&entry.key),
                seen,
            })
            .await?;
        let node = watch.node;
        // Between the look and the watch something may have happened.
        if watch.since > seen {
            let revision = watch.since;
            let near = Near { node, revision };
            let (place, revision) = self.place(request, entry, Some(near)).await?;
            if place != Place::Behind(watched.clone()) {
                return Ok((place, revision));
            }
        }
        loop {
            let look_again = request.now() + self.recheck();
            let near = tokio::select! {
                biased;
                event = watch.event() => match event? {
                    // The end of our own entry would have been told before.
                    Seen { own: false, revision } if watched.last => {
                        return Ok((Place::Holds { followed: false }, revision));
                    }
                    // This server has seen the event, so it knows enough: what is before us can only become less.
                    Seen { revision, .. } => Some(Near { node, revision }),
                },
                () = request.clock().sleep_until(look_again) => {
                    // A watch can die in silence: the whole cluster is asked now and then.
                    self.sessions.keep_if_due(&entry.session).await?;
                    None
                }
            };
            let (place, revision) = self.place(request, entry, near).await?;
            if place != Place::Behind(watched.clone()) {
                return Ok((place, revision));
            }
        }
    }

    /// A little less than the third of the lease after which it must be kept alive, and not the same for all waiters.
    fn recheck(&self) -> Duration {
        let third = self.sessions.ttl() / 3;
        let step = u32::from(
            uuid::Uuid::new_v4()
                .as_bytes()
                .first()
                .copied()
                .unwrap_or_default(),
        );
        third - third * step / 2048
    }

    /// Tells the next who waits for a permit that it is the first now. If it gets lost, the next finds out by itself.
    async fn ring(&self, request: &Request, entry: &Entry) {
        let txn = Txn {
            when: vec![When::CreatedAt(entry.key.clone(), entry.created)],
            then: vec![Step::Put {
                key: entry.key.clone(),
                value: queue::value(request.attempt(), request.mode(), request.label()),
                lease: entry.session.id,
            }],
            ..Txn::default()
        };
        if let Err(trouble) = self.link.txn(&txn).await {
            tracing::debug!(name = %request.name(), why = trouble.message(), "the next waiter was not told");
        }
    }
}

/// Resolves at a moment; never when there is none.
async fn at(request: &Request, moment: Option<Moment>) {
    match moment {
        Some(moment) => request.clock().sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
