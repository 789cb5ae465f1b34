//! One attempt: an entry in the lock's queue, whose create revision is its place and its token.

mod look;
mod own;

use std::sync::Arc;

use dlock_core::backend::{AttemptId, Busy, Lease, Outcome, Request};
use dlock_core::{ErrorKind, Mode, kit};

use self::look::Look;
use self::own::{Own, own_entry};
use crate::attempts::Seated;
use crate::crowd::Admitted;
use crate::error::Trouble;
use crate::fence;
use crate::line::Ahead;
use crate::position::{Position, judge, questions};
use crate::queue;
use crate::session::Session;
use crate::store::Store;
use crate::txn::{About, Query, Range, Step, Txn, TxnAnswer, When};
use crate::wait::Waits;

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
    Answer(Box<TxnAnswer>),
    LeaseGone,
}

impl Store {
    /// Takes the lock if nobody stands in the way; leaves no entry otherwise.
    pub(crate) async fn try_acquire(&self, request: &Request) -> Result<Outcome, Trouble> {
        let outcome = self.try_to_hold(request).await;
        self.leave_nothing(request, outcome).await
    }

    async fn try_to_hold(&self, request: &Request) -> Result<Outcome, Trouble> {
        let (attempt, mode) = (request.attempt(), request.mode());
        let lock = self.keys.lock(request.name());
        let mut look = Look::Nobody;
        for _ in 0..TRIES {
            let session = self.sessions.usable().await?;
            let seated = self.attempts.seat(request, &lock, session.id)?;
            let mut txn = self.entry_txn(request, &seated, &session);
            look.add_to(&mut txn, mode, &lock);
            let answer = match self.send(attempt, &session, &txn).await? {
                Sent::Answer(answer) => answer,
                Sent::LeaseGone => continue,
            };
            if answer.succeeded {
                let entry = Entry::new(seated.key, answer.revision, &session);
                if look != Look::Permits
                    || matches!(judge(mode, &lock, &entry, &answer), Position::Holds { .. })
                {
                    return self.held(request, entry).map(Outcome::Held);
                }
                // Others were quicker, and took the last permits.
                let certain = self.attempts.doubt(attempt).is_none();
                let removed = Box::pin(self.remove(attempt, &entry.key, None)).await;
                removed.map_err(Trouble::in_doubt)?;
                if certain {
                    look = Look::Nobody;
                    continue;
                }
                return Ok(busy());
            }
            if !seated.again && self.attempts.doubt(attempt).is_some() {
                // It was sent twice, and may stand in its own way.
                continue;
            }
            match own_entry(request, &seated, &answer, &session)? {
                Own::None => {}
                Own::Entry(own) => {
                    // The same attempt again.
                    let place = Box::pin(self.place(request, &own, None)).await;
                    if let Position::Holds { .. } = place.map_err(Trouble::in_doubt)?.0 {
                        return self.held(request, own).map(Outcome::Held);
                    }
                    let removed = Box::pin(self.remove(attempt, &own.key, None)).await;
                    removed.map_err(Trouble::in_doubt)?;
                    return Ok(busy());
                }
                Own::Ghost(row) => {
                    Box::pin(self.bury(&row)).await?;
                    continue;
                }
            }
            refuse_other_limit(queue::other_limit(answer.rows(About::Entries), mode), mode)?;
            match Look::after(mode, &answer) {
                Some(next) => look = next,
                None => return Ok(busy()),
            }
        }
        Ok(busy())
    }

    /// Takes the lock, or a place in the queue and waits there.
    pub(crate) async fn acquire(&self, request: &Request) -> Result<Outcome, Trouble> {
        let outcome = self.hold_or_wait(request).await;
        self.leave_nothing(request, outcome).await
    }

    async fn hold_or_wait(&self, request: &Request) -> Result<Outcome, Trouble> {
        let admitted = self.crowds.admit(request.name()).await;
        // Where others were met the last time, it would be in vain.
        if request.mode() == Mode::Exclusive
            && !self.attempts.is_wanted(request.name())
            && let Some(held) = self.take_if_free(request).await?
        {
            return Ok(held);
        }
        Box::pin(self.stand_in(request, admitted)).await
    }

    /// Takes a lock that nobody else wants, without a look at the queue. If this is sent twice the entry may be there nevertheless: the next
    /// request of the attempt finds it.
    async fn take_if_free(&self, request: &Request) -> Result<Option<Outcome>, Trouble> {
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
                Some(Outcome::Held(self.held(request, entry)?))
            }
            _ => None,
        })
    }

    async fn stand_in(
        &self,
        request: &Request,
        admitted: Admitted<'_>,
    ) -> Result<Outcome, Trouble> {
        if let Some(ahead) = self.lines.last(request.name(), request.mode())
            && let Some(entry) = self.enqueue_behind(request, &ahead).await?
        {
            drop(admitted);
            request.mark_contended();
            return Box::pin(self.wait(request, entry, Waits::Line(ahead))).await;
        }
        let (entry, place, seen) = self.enqueue(request).await?;
        drop(admitted);
        let alone = matches!(place, Position::Holds { .. });
        self.attempts.wanted(request.name(), !alone);
        match place {
            Position::Holds { .. } => self.held(request, entry).map(Outcome::Held),
            Position::Behind(watched) => {
                request.mark_contended();
                Box::pin(self.wait(request, entry, Waits::Watch(watched, seen))).await
            }
            Position::Gone => Err(removed()),
        }
    }

    /// Takes a place in the queue behind one of our own who waits there, without a look at it; `None` when that one is gone, or there is anything
    /// else to look at first.
    async fn enqueue_behind(
        &self,
        request: &Request,
        ahead: &Ahead,
    ) -> Result<Option<Entry>, Trouble> {
        let lock = self.keys.lock(request.name());
        let session = self.sessions.usable().await?;
        let seated = self.attempts.seat(request, &lock, session.id)?;
        if seated.again {
            return Ok(None);
        }
        let mut txn = self.entry_txn(request, &seated, &session);
        // Permits of another limit would be before that one, too.
        txn.when
            .push(When::CreatedAt(ahead.key.clone(), ahead.created));
        let sent = self.send(request.attempt(), &session, &txn).await?;
        Ok(match sent {
            Sent::Answer(answer) if answer.succeeded => {
                Some(Entry::new(seated.key, answer.revision, &session))
            }
            _ => None,
        })
    }

    async fn enqueue(&self, request: &Request) -> Result<(Entry, Position, i64), Trouble> {
        let lock = self.keys.lock(request.name());
        let mode = request.mode();
        for _ in 0..TRIES {
            let session = self.sessions.usable().await?;
            let seated = self.attempts.seat(request, &lock, session.id)?;
            let mut txn = self.entry_txn(request, &seated, &session);
            if let Mode::Permit { limit } = mode {
                txn.when.extend(lock.other_permits(limit).map(When::NoneIn));
                let one = Query::newest(lock.permits(), 1);
                txn.or_else.push(Step::Get(About::Entries, one));
            }
            txn.then.extend(questions(mode, &lock, None));
            let answer = match self.send(request.attempt(), &session, &txn).await? {
                Sent::Answer(answer) => answer,
                Sent::LeaseGone => continue,
            };
            if answer.succeeded {
                let entry = Entry::new(seated.key, answer.revision, &session);
                let place = judge(mode, &lock, &entry, &answer);
                return Ok((entry, place, answer.revision));
            }
            match own_entry(request, &seated, &answer, &session)? {
                Own::None => {}
                Own::Entry(own) => {
                    let place = Box::pin(self.place(request, &own, None)).await;
                    let (place, seen) = place.map_err(Trouble::in_doubt)?;
                    return Ok((own, place, seen));
                }
                Own::Ghost(row) => Box::pin(self.bury(&row)).await?,
            }
            refuse_other_limit(queue::other_limit(answer.rows(About::Entries), mode), mode)?;
            // It was sent twice, or was given up meanwhile, or permits of another limit are gone: the next trip asks.
        }
        Err(Trouble::session_ended())
    }

    /// An attempt that ends without the lock leaves nothing that could take effect later, or says that it may ([C13](dlock_core::contract#c13)).
    async fn leave_nothing(
        &self,
        request: &Request,
        outcome: Result<Outcome, Trouble>,
    ) -> Result<Outcome, Trouble> {
        let attempt = request.attempt();
        let doubt = self.attempts.doubt(attempt).is_some();
        match outcome {
            Ok(Outcome::Held(lease)) => Ok(Outcome::Held(lease)),
            Err(trouble) if trouble.is_sent() => Err(trouble),
            Err(trouble) if doubt && !trouble.is_lease_gone() => Err(trouble.in_doubt()),
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

    /// Puts the entry, unless it is there or the attempt was abandoned. A caller may add conditions and questions. The own entry and
    /// the mark are asked for only if the entry may be there: nearly always it cannot, and a request of less than 256 bytes goes out in
    /// one piece.
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
                    Step::Get(About::Own, Query::one(key)),
                    Step::Get(About::Mark, Query::one(&mark).keys_only()),
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
            Box::pin(async { tokio::join!(self.cluster.txn(txn), self.keep_if_due(session)) }).await
        } else {
            (self.cluster.txn(txn).await, Ok(()))
        };
        // The lease ended, and with it what this request or an earlier one may have put, or may yet try to.
        let lease_gone = matches!(&told, Err(trouble) if trouble.is_lease_gone())
            || matches!(&kept, Err(trouble) if trouble.is_lease_gone());
        let open = match &told {
            Ok(told) => told.doubt,
            Err(trouble) => trouble.is_sent(),
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

    pub(crate) fn held(&self, request: &Request, entry: Entry) -> Result<Lease, Trouble> {
        // The lease counts from its last proof of life, not from this request (C7).
        let from = request.now().earlier(entry.session.age());
        let token = fence::token(entry.created).ok_or_else(|| fence::no_token(entry.created))?;
        let native = Held {
            key: entry.key,
            created: entry.created,
            lease: entry.session.id,
            label: request.label().to_owned(),
        };
        Ok(Lease::new(request, from)
            .with_token(token.get())
            .with_native(Arc::new(native)))
    }
}

pub(crate) fn busy() -> Outcome {
    Outcome::Busy(Busy::default())
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
        (Some(used), Mode::Permit { .. }) => Err(kit::other_limit(used, mode).into()),
        _ => Ok(()),
    }
}
