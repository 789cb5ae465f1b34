//! One attempt: an entry in the lock's queue, whose create revision is its place and its token.

use std::sync::Arc;

use dlock_core::{Attempt, AttemptId, Busy, ErrorKind, Lease, Mode, Request};

use crate::EtcdBackend;
use crate::error::Trouble;
use crate::key::LockKeys;
use crate::queue;
use crate::session::Session;
use crate::txn::{Answer, Query, Range, Row, Step, Txn, When};
use crate::wait::Watched;

/// How often a try looks again when others come in between its look and its grab. Each time somebody else did get in.
const TRIES: usize = 16;

/// An entry of ours in the store.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    pub(crate) created: i64,
    pub(crate) session: Arc<Session>,
}

/// What a hold needs to be found again.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) key: Vec<u8>,
    pub(crate) created: i64,
    pub(crate) lease: i64,
    pub(crate) label: String,
}

/// Where an entry stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// It holds. Those who wait for permits behind it want to know.
    Holds { followed: bool },
    /// It waits until this changes.
    Behind(Watched),
    /// Somebody removed it.
    Gone,
}

/// One trip of an attempt found its answer, or the lease gone.
enum Sent {
    Answer(Box<Answer>),
    LeaseGone,
}

impl EtcdBackend {
    /// Takes the lock if nobody stands in the way; leaves no entry otherwise.
    pub(crate) async fn try_enter(&self, request: &Request) -> Result<Attempt, Trouble> {
        let lock = self.keys.lock(request.name());
        let mut looked_at = None;
        for _ in 0..TRIES {
            let session = self.sessions.usable().await?;
            let mut txn = self.entry_txn(request, &lock, &session);
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
                txn.or_else.push(Step::Get(Query::queue(lock.all())));
            }
            let answer = match self.send(request.attempt(), &session, &txn).await? {
                Sent::Answer(answer) => answer,
                Sent::LeaseGone => continue,
            };
            if answer.succeeded {
                let entry = self.entry(request, &lock, answer.revision, &session);
                return Ok(self.held(request, entry));
            }
            if let Some(own) = self.own_entry(&answer, &session)? {
                // The same attempt again.
                let (place, _) = self.place(request, &own, None).await?;
                if matches!(place, Place::Holds { .. }) {
                    return Ok(self.held(request, own));
                }
                self.remove(request.attempt(), &own.key).await?;
                return Ok(busy());
            }
            if request.mode() == Mode::Exclusive {
                return Ok(busy());
            }
            let queue = queue::read_all(&self.keys, answer.rows(2));
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
        let (entry, place, seen) = self.enqueue(request).await?;
        match place {
            Place::Holds { .. } => Ok(self.held(request, entry)),
            Place::Behind(watched) => {
                request.mark_contended();
                self.wait(request, entry, watched, seen).await
            }
            Place::Gone => Err(removed()),
        }
    }

    async fn enqueue(&self, request: &Request) -> Result<(Entry, Place, i64), Trouble> {
        let lock = self.keys.lock(request.name());
        let mode = request.mode();
        for _ in 0..TRIES {
            let session = self.sessions.usable().await?;
            let mut txn = self.entry_txn(request, &lock, &session);
            if let Mode::Permit { limit } = mode {
                txn.when.extend(lock.other_permits(limit).map(When::NoneIn));
                let one = Query::newest(lock.permits(), 1);
                txn.or_else.push(Step::Get(one));
            }
            txn.then.push(Step::Get(question(mode, &lock, None)));
            let answer = match self.send(request.attempt(), &session, &txn).await? {
                Sent::Answer(answer) => answer,
                Sent::LeaseGone => continue,
            };
            if answer.succeeded {
                let entry = self.entry(request, &lock, answer.revision, &session);
                let place = self.judge(mode, &lock, &entry, answer.rows(0));
                return Ok((entry, place, answer.revision));
            }
            if let Some(own) = self.own_entry(&answer, &session)? {
                let (place, seen) = self.place(request, &own, None).await?;
                return Ok((own, place, seen));
            }
            let used = queue::read_all(&self.keys, answer.rows(2));
            refuse_other_limit(queue::other_limit(&used, mode), mode)?;
            // Permits of another limit, and gone meanwhile.
        }
        Err(Trouble::session_ended())
    }

    /// Puts the entry, unless it is there or the attempt was abandoned. A caller may add conditions and questions; the
    /// first two questions of the other branch are for the own entry and the mark.
    fn entry_txn(&self, request: &Request, lock: &LockKeys, session: &Session) -> Txn {
        let attempt = request.attempt().to_string();
        let key = lock.entry(request.mode(), &attempt);
        let mark = self.keys.abandoned(&attempt);
        Txn {
            when: vec![
                When::NoneIn(Range::key(&mark)),
                When::NoneIn(Range::key(&key)),
            ],
            then: vec![Step::Put {
                key: key.clone(),
                value: queue::value(request.mode(), request.label()),
                lease: session.id,
            }],
            or_else: vec![
                Step::Get(Query::one(&key)),
                Step::Get(Query::one(&mark).keys_only()),
            ],
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
        self.attempts.check(attempt)?;
        let doubt_before = self.attempts.doubt(attempt).is_some();
        self.attempts.sending(attempt, session.id);
        let (told, kept) = if session.is_due() {
            tokio::join!(self.link.txn(txn), self.sessions.keep_if_due(session))
        } else {
            (self.link.txn(txn).await, Ok(()))
        };
        // The lease ended, and with it what the request may have put.
        let lease_gone = matches!(&told, Err(trouble) if trouble.lease_gone)
            || matches!(&kept, Err(trouble) if trouble.lease_gone);
        let open = match &told {
            Ok(told) => told.doubt,
            Err(trouble) => trouble.sent,
        };
        if !doubt_before && (lease_gone || !open) {
            self.attempts.settled(attempt);
        }
        if lease_gone {
            session.end();
            return Ok(Sent::LeaseGone);
        }
        Ok(Sent::Answer(Box::new(told?.value)))
    }

    fn entry(
        &self,
        request: &Request,
        lock: &LockKeys,
        created: i64,
        session: &Arc<Session>,
    ) -> Entry {
        Entry {
            key: lock.entry(request.mode(), &request.attempt().to_string()),
            created,
            session: session.clone(),
        }
    }

    /// The entry that the attempt has already, from the first questions of [`entry_txn`](Self::entry_txn)'s other branch.
    fn own_entry(&self, answer: &Answer, session: &Arc<Session>) -> Result<Option<Entry>, Trouble> {
        if !answer.rows(1).is_empty() {
            return Err(Trouble::new(
                ErrorKind::Store,
                "this attempt was abandoned: make a new one",
            )
            .unsent());
        }
        let Some(own) = answer.rows(0).first() else {
            return Ok(None);
        };
        if own.lease != session.id {
            // It hangs on a lease that is over for us; nobody may count on it.
            return Err(Trouble::session_ended().in_doubt());
        }
        Ok(Some(Entry {
            key: own.key.clone(),
            created: own.created,
            session: session.clone(),
        }))
    }

    /// Looks where an entry stands: at one server, which has seen what matters, or at the whole cluster.
    pub(crate) async fn place(
        &self,
        request: &Request,
        entry: &Entry,
        at: Option<usize>,
    ) -> Result<(Place, i64), Trouble> {
        let lock = self.keys.lock(request.name());
        let mode = request.mode();
        let txn = Txn {
            when: vec![When::CreatedAt(entry.key.clone(), entry.created)],
            then: vec![Step::Get(question(mode, &lock, Some(entry.created)))],
            or_else: Vec::new(),
            local: at.is_some(),
        };
        let answer = match at {
            Some(node) => self.link.txn_at(node, &txn).await?,
            None => self.link.txn(&txn).await?.value,
        };
        let place = if answer.succeeded {
            self.judge(mode, &lock, entry, answer.rows(0))
        } else {
            Place::Gone
        };
        Ok((place, answer.revision))
    }

    /// Reads the answer to [`question`].
    fn judge(&self, mode: Mode, lock: &LockKeys, entry: &Entry, rows: &[Row]) -> Place {
        let before = rows.iter().find(|row| row.key != entry.key);
        match mode {
            Mode::Exclusive => match before {
                Some(row) => Place::Behind(Watched::end_of(&row.key)),
                None => Place::Holds { followed: false },
            },
            Mode::Shared => match before {
                // A writer that has become a reader holds, so no other writer is before it.
                Some(row) if queue::mode_of(&row.value) != Some(Mode::Shared) => {
                    Place::Behind(Watched::change_of(&row.key))
                }
                _ => Place::Holds { followed: false },
            },
            Mode::Permit { limit } => self.judge_permit(limit as usize, lock, entry, rows),
        }
    }

    fn judge_permit(&self, limit: usize, lock: &LockKeys, entry: &Entry, rows: &[Row]) -> Place {
        let queue = queue::read_all(&self.keys, rows);
        let rank = queue
            .iter()
            .take_while(|ticket| ticket.created < entry.created);
        let before: Vec<_> = rank.collect();
        let stranger = before
            .iter()
            .rfind(|ticket| !matches!(ticket.mode, Mode::Permit { .. }));
        if let Some(stranger) = stranger {
            return Place::Behind(Watched::end_of(&stranger.key));
        }
        match before.last() {
            // The first who waits watches the holders; the others watch for the one before them to move up.
            Some(_) if before.len() == limit => Place::Behind(Watched::end_in(lock.permits())),
            Some(last) if before.len() > limit => Place::Behind(Watched::change_of(&last.key)),
            _ => Place::Holds {
                followed: queue.len() > before.len() + 1,
            },
        }
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

/// Who stands in the way: of one that was just put, and is the newest, or of one that was put at a revision.
fn question(mode: Mode, lock: &LockKeys, created: Option<i64>) -> Query {
    let query = match mode {
        Mode::Exclusive => {
            // The newest may be the asking entry itself.
            let enough = if created.is_some() { 1 } else { 2 };
            Query::newest(lock.all(), enough).keys_only()
        }
        Mode::Shared => Query::newest(lock.writers_and_permits(), 1),
        Mode::Permit { .. } => return Query::queue(lock.all()),
    };
    query.created_before(created.unwrap_or_default())
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
