//! One attempt: an entry in the lock's queue, whose create revision is its place and its token.

use std::sync::Arc;

use dlock_core::{Attempt, AttemptId, Busy, ErrorKind, Lease, Mode, Request};

use crate::EtcdBackend;
use crate::attempts::{Seated, abandoned};
use crate::error::Trouble;
use crate::place::{Place, question};
use crate::queue;
use crate::session::Session;
use crate::txn::{Answer, Query, Range, Step, Txn, When};

/// How often a try looks again when others come in between its look and its grab. Each time somebody else did get in.
const TRIES: usize = 16;

/// An entry of ours in the store.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    pub(crate) created: i64,
    pub(crate) session: Arc<Session>,
}

impl Entry {
    fn new(key: Vec<u8>, created: i64, session: &Arc<Session>) -> Self {
        Self {
            key,
            created,
            session: session.clone(),
        }
    }
}

/// What a hold needs to be found again.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) key: Vec<u8>,
    pub(crate) created: i64,
    pub(crate) lease: i64,
    pub(crate) label: String,
}

/// One trip of an attempt found its answer, or the lease gone.
enum Sent {
    Answer(Box<Answer>),
    LeaseGone,
}

impl EtcdBackend {
    /// Takes the lock if nobody stands in the way; leaves no entry otherwise.
    pub(crate) async fn try_enter(&self, request: &Request) -> Result<Attempt, Trouble> {
        let outcome = self.try_to_hold(request).await;
        self.leave_nothing(request, outcome).await
    }

    async fn try_to_hold(&self, request: &Request) -> Result<Attempt, Trouble> {
        let lock = self.keys.lock(request.name());
        let mut looked_at = None;
        for _ in 0..TRIES {
            let session = self.sessions.usable().await?;
            let seated = self.attempts.seat(request, &lock, session.id)?;
            let mut txn = self.entry_txn(request, &seated, &session);
            match looked_at {
                // Nobody is there, or nobody whom this mode minds.
                None if request.mode() == Mode::Shared => {
                    txn.when.push(When::NoneIn(lock.writers_and_permits()));
                }
                None => txn.when.push(When::NoneIn(lock.all())),
                // Those who were there let it in, and nobody came since.
                Some(revision) => txn.when.push(When::NoneSince(lock.all(), revision)),
            }
            if request.mode() != Mode::Exclusive {
                txn.or_else.insert(0, Step::Get(Query::queue(lock.all())));
            }
            let answer = match self.send(request.attempt(), &session, &txn).await? {
                Sent::Answer(answer) => answer,
                Sent::LeaseGone => continue,
            };
            if answer.succeeded {
                let entry = Entry::new(seated.key, answer.revision, &session);
                return Ok(self.held(request, entry));
            }
            if !seated.again && self.attempts.doubt(request.attempt()).is_some() {
                // It was sent twice, and may stand in its own way.
                continue;
            }
            if let Some(own) = own_entry(request, &seated, &answer, &session)? {
                // The same attempt again.
                let place = Box::pin(self.place(request, &own, None)).await;
                if let Place::Holds { .. } = place.map_err(Trouble::in_doubt)?.0 {
                    return Ok(self.held(request, own));
                }
                let removed = Box::pin(self.remove(request.attempt(), &own.key, None)).await;
                removed.map_err(Trouble::in_doubt)?;
                return Ok(busy());
            }
            if request.mode() == Mode::Exclusive {
                return Ok(busy());
            }
            let queue = queue::read_all(&self.keys, answer.rows(0));
            refuse_other_limit(queue::other_limit(&queue, request.mode()), request.mode())?;
            if !queue::admits(&queue, request.mode()) {
                return Ok(busy());
            }
            looked_at = Some(answer.revision);
        }
        Ok(busy())
    }

    /// Takes the lock, or a place in the queue and waits there.
    pub(crate) async fn enter(&self, request: &Request) -> Result<Attempt, Trouble> {
        let outcome = self.hold_or_wait(request).await;
        self.leave_nothing(request, outcome).await
    }

    async fn hold_or_wait(&self, request: &Request) -> Result<Attempt, Trouble> {
        // Where others were met the last time, it would be in vain.
        if request.mode() == Mode::Exclusive
            && !self.attempts.is_wanted(request.name())
            && let Some(held) = self.take_if_free(request).await?
        {
            return Ok(held);
        }
        Box::pin(self.stand_in(request)).await
    }

    /// Takes a lock that nobody else wants, without a look at the queue. If this is sent twice the entry may be there nevertheless: the next
    /// request of the attempt finds it.
    async fn take_if_free(&self, request: &Request) -> Result<Option<Attempt>, Trouble> {
        let lock = self.keys.lock(request.name());
        let session = self.sessions.usable().await?;
        let seated = self.attempts.seat(request, &lock, session.id)?;
        let mut txn = self.entry_txn(request, &seated, &session);
        // The own key is one of them.
        txn.when.pop();
        txn.when.push(When::NoneIn(lock.all()));
        let sent = self.send(request.attempt(), &session, &txn).await?;
        Ok(match sent {
            Sent::Answer(answer) if answer.succeeded => {
                let entry = Entry::new(seated.key, answer.revision, &session);
                Some(self.held(request, entry))
            }
            _ => None,
        })
    }

    async fn stand_in(&self, request: &Request) -> Result<Attempt, Trouble> {
        let (entry, place, seen) = self.enqueue(request).await?;
        let alone = matches!(place, Place::Holds { .. });
        self.attempts.wanted(request.name(), !alone);
        match place {
            Place::Holds { .. } => Ok(self.held(request, entry)),
            Place::Behind(watched) => {
                request.mark_contended();
                Box::pin(self.wait(request, entry, watched, seen)).await
            }
            Place::Gone => Err(removed()),
        }
    }

    async fn enqueue(&self, request: &Request) -> Result<(Entry, Place, i64), Trouble> {
        let lock = self.keys.lock(request.name());
        let mode = request.mode();
        for _ in 0..TRIES {
            let session = self.sessions.usable().await?;
            let seated = self.attempts.seat(request, &lock, session.id)?;
            let mut txn = self.entry_txn(request, &seated, &session);
            if let Mode::Permit { limit } = mode {
                txn.when.extend(lock.other_permits(limit).map(When::NoneIn));
                let one = Query::newest(lock.permits(), 1);
                txn.or_else.insert(0, Step::Get(one));
            }
            txn.then.push(Step::Get(question(mode, &lock, None)));
            let answer = match self.send(request.attempt(), &session, &txn).await? {
                Sent::Answer(answer) => answer,
                Sent::LeaseGone => continue,
            };
            if answer.succeeded {
                let entry = Entry::new(seated.key, answer.revision, &session);
                let place = self.judge(mode, &lock, &entry, answer.rows(0));
                return Ok((entry, place, answer.revision));
            }
            if let Some(own) = own_entry(request, &seated, &answer, &session)? {
                let place = Box::pin(self.place(request, &own, None)).await;
                let (place, seen) = place.map_err(Trouble::in_doubt)?;
                return Ok((own, place, seen));
            }
            let used = queue::read_all(&self.keys, answer.rows(0));
            refuse_other_limit(queue::other_limit(&used, mode), mode)?;
            // It was sent twice, or was given up meanwhile, or permits of another limit are gone: the next trip asks.
        }
        Err(Trouble::session_ended())
    }

    /// An attempt that ends without the lock leaves nothing that could take effect later, or says that it may (C13).
    async fn leave_nothing(
        &self,
        request: &Request,
        outcome: Result<Attempt, Trouble>,
    ) -> Result<Attempt, Trouble> {
        let attempt = request.attempt();
        let doubt = self.attempts.doubt(attempt).is_some();
        match outcome {
            Ok(Attempt::Held(lease)) => Ok(Attempt::Held(lease)),
            Err(trouble) if trouble.sent => Err(trouble),
            Err(trouble) if doubt && !trouble.lease_gone => Err(trouble.in_doubt()),
            Ok(busy) if doubt => {
                if let Some(key) = self.attempts.key(attempt) {
                    let removed = Box::pin(self.remove(attempt, &key, None)).await;
                    removed.map_err(Trouble::in_doubt)?;
                }
                Ok(busy)
            }
            nothing => {
                self.attempts.over(attempt);
                nothing
            }
        }
    }

    /// Puts the entry, unless it is there or the attempt was abandoned. A caller may add conditions and questions. The last two questions
    /// of the other branch are for the own entry and the mark, and are asked only if the entry may be there: nearly always it cannot, and
    /// a request of less than 256 bytes goes out in one piece.
    fn entry_txn(&self, request: &Request, seated: &Seated, session: &Session) -> Txn {
        let attempt = request.attempt();
        let key = seated.key.as_slice();
        let mark = self.keys.abandoned(&attempt.to_string());
        let mut then = Vec::with_capacity(2);
        then.push(Step::Put {
            key: key.to_vec(),
            value: queue::value(attempt, request.mode(), request.label()),
            lease: session.id,
        });
        Txn {
            when: vec![
                When::NoneIn(Range::key(&mark)),
                When::NoneIn(Range::key(key)),
            ],
            then,
            or_else: if seated.again {
                vec![
                    Step::Get(Query::one(key)),
                    Step::Get(Query::one(&mark).keys_only()),
                ]
            } else {
                Vec::new()
            },
            local: false,
        }
    }

    /// Sends a request that may put an entry, and keeps account of the doubt.
    async fn send(
        &self,
        attempt: AttemptId,
        session: &Session,
        txn: &Txn,
    ) -> Result<Sent, Trouble> {
        let doubt_before = self.attempts.sending(attempt);
        let (told, kept) = if session.is_due() {
            Box::pin(async { tokio::join!(self.link.txn(txn), self.sessions.keep_if_due(session)) })
                .await
        } else {
            (self.link.txn(txn).await, Ok(()))
        };
        // The lease ended, and with it what this request or an earlier one may have put, or may yet try to.
        let lease_gone = matches!(&told, Err(trouble) if trouble.lease_gone)
            || matches!(&kept, Err(trouble) if trouble.lease_gone);
        let open = match &told {
            Ok(told) => told.doubt,
            Err(trouble) => trouble.sent,
        };
        if lease_gone {
            session.end();
            self.attempts.over(attempt);
            return Ok(Sent::LeaseGone);
        }
        if !doubt_before && !open {
            self.attempts.settled(attempt);
        }
        Ok(Sent::Answer(Box::new(told?.value)))
    }

    pub(crate) fn held(&self, request: &Request, entry: Entry) -> Attempt {
        // The lease counts from its last proof of life, not from this request (C7).
        let from = request.now().earlier(entry.session.age());
        let token = u64::try_from(entry.created).unwrap_or_default();
        let native = Held {
            key: entry.key,
            created: entry.created,
            lease: entry.session.id,
            label: request.label().to_owned(),
        };
        let lease = Lease::new(request, from)
            .with_token(token)
            .with_native(Arc::new(native));
        Attempt::Held(lease)
    }
}

/// The entry that the attempt has already, from the last questions of [`entry_txn`](EtcdBackend::entry_txn)'s other branch.
fn own_entry(
    request: &Request,
    seated: &Seated,
    answer: &Answer,
    session: &Arc<Session>,
) -> Result<Option<Entry>, Trouble> {
    let [.., own, mark] = answer.found.as_slice() else {
        return Ok(None);
    };
    if !seated.again {
        return Ok(None);
    }
    if !mark.is_empty() {
        return Err(abandoned());
    }
    let Some(own) = own.first() else {
        return Ok(None);
    };
    if !queue::is_of(&own.value, request.attempt()) {
        // Nobody else uses this client's keys, unless somebody put it there by hand.
        return Err(Trouble::new(
            ErrorKind::Store,
            "the key for this attempt is there already, and is not of this client",
        )
        .unsent());
    }
    Ok(Some(Entry::new(own.key.clone(), own.created, session)))
}

pub(crate) fn busy() -> Attempt {
    Attempt::Busy(Busy::default())
}

pub(crate) fn removed() -> Trouble {
    Trouble::new(
        ErrorKind::Store,
        "somebody removed this attempt from the queue",
    )
    .unsent()
}

fn refuse_other_limit(used: Option<u32>, mode: Mode) -> Result<(), Trouble> {
    match (used, mode) {
        (Some(used), Mode::Permit { limit }) => Err(Trouble::new(
            ErrorKind::Conflict,
            format!("this semaphore is in use with {used} permits, not {limit}: everybody must give the same limit"),
        )
        .unsent()),
        _ => Ok(()),
    }
}
