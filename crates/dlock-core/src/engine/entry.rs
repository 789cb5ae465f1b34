//! One attempt to get a lock, and the hold it became, as everybody in this client sees it.
//!
//! What changes an entry is in `ledger`; here is what may be read at any moment.
//!
//! A hold is what the store knows. One task's time in it is a **stay**: a hold that is passed on between the tasks of a client has
//! several, one after the other, each with the next token of the hold ([C21](crate::contract#c21)). Between two stays a hold may **rest**: the store's lease
//! goes on while no task is in, for as long as [`Settings::linger`](crate::Settings::linger) allows.

mod ending;
mod validity;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

pub(crate) use self::ending::Ending;
use self::ending::{code_of, ending_of};
use self::validity::OVER;
use super::keep_alive::KeptAlive;
use super::queue::Turn;
use crate::backend::{Backoff, Lease, Request};
use crate::lock::settings::ResolvedSettings;
use crate::sync::locked;
use crate::{FencingToken, Mode, Moment, Name, Owner};

/// Where an entry is in its life; the diagram is in `ledger/life.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Asking,
    Held,
    Releasing,
    Undoing,
    Over,
}

/// Who asks for a lock, and how it is kept.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) settings: Arc<ResolvedSettings>,
    pub(crate) owner: Option<Owner>,
    /// The name of the span it asks in.
    pub(crate) span: Option<&'static str>,
    /// Whether the hold may be passed on to other tasks with the same settings.
    pub(crate) passes_on: bool,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) settings: Arc<ResolvedSettings>,
    /// Whether the store knows the hold by the settings' own label, so that any task with these settings may have it.
    pub(super) passes_on: bool,
    /// Its guard has shown to others what the store has of it, which must end with the guard.
    goes_back: AtomicBool,
    /// Which stay it is. It changes only while nobody has a guard on the hold.
    stay: AtomicU32,
    /// Whether the task of this stay knows that it has the hold. Until then nothing is renewed: a runtime that is not driven must not
    /// keep a lock that nobody uses.
    taken_up: AtomicBool,
    /// A renewal was due meanwhile.
    postponed: AtomicBool,
    /// Somebody of another client waits for the lock, as the store has said: it does not rest again ([C23](crate::contract#c23)).
    wanted: AtomicBool,
    /// Nanoseconds of the clock, or [`OVER`].
    valid_until: AtomicU64,
    ending: AtomicU8,
    changed: Notify,
    /// Written by the ledger alone, while it holds its own lock.
    pub(super) life: Mutex<Life>,
}

#[derive(Debug)]
pub(super) struct Life {
    pub(super) phase: Phase,
    pub(super) subject: Subject,
    /// The local queue's turn, kept while an exclusive hold lasts and until its release was tried.
    pub(super) turn: Option<Turn<Entry>>,
    /// Who is in it, and the name of the span that it asked in.
    pub(super) owner: Option<Owner>,
    pub(super) taken_in: Option<&'static str>,
    /// How often the owner has entered; of a hold that readers have joined, how many of them are in.
    pub(super) guards: u32,
    /// How many readers have been in it.
    pub(super) readers: u32,
    /// When this stay began.
    pub(super) granted_at: Moment,
    /// When `max_hold` ends this stay.
    pub(super) ends_at: Moment,
    /// Until when the store keeps the hold for certain, however long a stay may last.
    pub(super) lease_until: Moment,
    /// From when on it goes back to the store instead of to the next local task.
    pub(super) passed_on_until: Moment,
    /// From when the time to linger counts, once the hold has rested.
    pub(super) rests_since: Option<Moment>,
    /// Set while the hold rests.
    pub(super) rest: Option<Rest>,
    /// A room listens for others who wait for it; and the standby does, because home was late.
    pub(super) is_watched: bool,
    pub(super) is_watched_twice: bool,
    /// Where the entry stands in the schedule.
    pub(super) due: Moment,
    /// While it is held: when it is to be renewed, or the renewal under way must have ended. It may stand earlier in the schedule.
    pub(super) renew_at: Moment,
    /// The last trip that was begun for it, and whether it is under way. An answer to an earlier trip plans nothing.
    pub(super) trip: u32,
    pub(super) under_way: bool,
    /// The last renewal failed.
    pub(super) in_trouble: bool,
    pub(super) downgrade: Downgrade,
    pub(super) undo: Option<Box<Undo>>,
}

/// A hold that no task is in.
#[derive(Debug)]
pub(super) struct Rest {
    /// When it goes back to the store, unless a task takes it before.
    pub(super) until: Moment,
    /// Somebody must be there to give it back.
    pub(super) keeps: KeptAlive,
}

/// What the store knows the entry by.
#[derive(Debug, Clone)]
pub(crate) enum Subject {
    Attempt(Arc<Request>),
    Hold(Arc<Lease>),
}

/// From the call on, the guard counts as a reader's; the store is asked until it has confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Downgrade {
    NotAsked,
    InDoubt,
    Done,
}

/// What clean-up has to know.
#[derive(Debug)]
pub(super) struct Undo {
    /// When the store has forgotten it by itself.
    pub(super) until: Moment,
    /// Until when it keeps the client alive. After that the end of the client may do what the store did not confirm: a session
    /// that is closed frees its locks.
    pub(super) keeps_until: Moment,
    pub(super) keeps: Option<KeptAlive>,
    pub(super) pauses: Backoff,
    /// The store was told at least once.
    pub(super) tried: bool,
}

impl Entry {
    /// From now on the hold goes back to the store when it is left: to no other task of the client, and it does not rest.
    pub(crate) fn is_not_passed_on(&self) {
        self.goes_back.store(true, Ordering::Release);
    }

    /// Whether it goes back to the store in any case.
    pub(super) fn goes_back(&self) -> bool {
        self.goes_back.load(Ordering::Acquire)
    }

    pub(super) fn asking(id: u64, asker: Asker, request: Arc<Request>) -> Self {
        Self {
            id,
            settings: asker.settings,
            passes_on: asker.passes_on,
            goes_back: AtomicBool::new(false),
            stay: AtomicU32::new(0),
            taken_up: AtomicBool::new(true),
            postponed: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            valid_until: AtomicU64::new(OVER),
            ending: AtomicU8::new(code_of(Ending::NotYet)),
            changed: Notify::new(),
            life: Mutex::new(Life {
                phase: Phase::Asking,
                subject: Subject::Attempt(request),
                turn: None,
                owner: asker.owner,
                taken_in: asker.span,
                guards: 0,
                readers: 1,
                granted_at: Moment::NEVER,
                ends_at: Moment::NEVER,
                lease_until: Moment::NEVER,
                passed_on_until: Moment::NEVER,
                rests_since: None,
                rest: None,
                is_watched: false,
                is_watched_twice: false,
                due: Moment::NEVER,
                renew_at: Moment::NEVER,
                trip: 0,
                under_way: false,
                in_trouble: false,
                downgrade: Downgrade::NotAsked,
                undo: None,
            }),
        }
    }

    pub(crate) fn subject(&self) -> Subject {
        locked(&self.life).subject.clone()
    }

    /// The lease of a hold, as the store knows it; `None` before the grant.
    pub(crate) fn lease(&self) -> Option<Arc<Lease>> {
        match &locked(&self.life).subject {
            Subject::Hold(lease) => Some(lease.clone()),
            Subject::Attempt(_) => None,
        }
    }

    /// Which stay it is.
    pub(crate) fn stay(&self) -> u32 {
        self.stay.load(Ordering::Acquire)
    }

    /// The token of a stay: the next of the hold's own for each.
    pub(crate) fn token(&self, stay: u32) -> Option<FencingToken> {
        let first = self.lease()?.token()?.get();
        Some(FencingToken::new(first.saturating_add(u64::from(stay))))
    }

    /// The name of the span in which this stay was asked for.
    pub(crate) fn taken_in(&self) -> Option<&'static str> {
        locked(&self.life).taken_in
    }

    pub(crate) fn name(&self) -> Name {
        match &locked(&self.life).subject {
            Subject::Hold(lease) => lease.name().clone(),
            Subject::Attempt(request) => request.name().clone(),
        }
    }

    /// How its guards may use it: a downgrade counts from the call on.
    pub(crate) fn mode(&self) -> Mode {
        let life = locked(&self.life);
        match (&life.subject, life.downgrade) {
            (Subject::Hold(lease), Downgrade::NotAsked) => lease.mode(),
            (Subject::Hold(_), _) => Mode::Shared,
            (Subject::Attempt(request), _) => request.mode(),
        }
    }

    /// Whether it was taken to write, however it is held now.
    pub(crate) fn was_taken_to_write(&self) -> bool {
        let life = locked(&self.life);
        match (&life.subject, life.downgrade) {
            (Subject::Hold(lease), Downgrade::NotAsked) => lease.mode() == Mode::Exclusive,
            (Subject::Hold(_), _) => true,
            (Subject::Attempt(_), _) => false,
        }
    }

    /// Whether the store has not confirmed a downgrade that was asked for.
    pub(crate) fn is_downgrade_in_doubt(&self) -> bool {
        locked(&self.life).downgrade == Downgrade::InDoubt
    }

    /// How many guards the owner has on it.
    pub(crate) fn guards(&self) -> u32 {
        let life = locked(&self.life);
        match life.owner {
            Some(_) => life.guards,
            // Readers who joined do not count each other.
            None => life.guards.min(1),
        }
    }

    pub(crate) fn ending(&self) -> Ending {
        ending_of(self.ending.load(Ordering::Acquire))
    }

    /// The stay before has ended by a release: those who watch it are told.
    pub(super) fn next_stay(&self, stay: u32) {
        self.taken_up.store(false, Ordering::Relaxed);
        self.postponed.store(false, Ordering::Relaxed);
        self.stay.store(stay, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// The stay before has ended by a release, and nobody is in until the next one begins.
    pub(super) fn next_stay_after_rest(&self, stay: u32) {
        // A hold that its heir has not taken up yet is not renewed, since that task may never run again. One that rests has no task, and is to
        // be renewed: so it counts as taken up.
        self.taken_up.store(true, Ordering::SeqCst);
        self.postponed.store(false, Ordering::SeqCst);
        self.stay.store(stay, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Somebody waits for the lock, or has left it to others: those who watch it look again.
    pub(crate) fn others_came(&self) {
        self.changed.notify_waiters();
    }

    /// The store says that somebody of another client waits.
    pub(super) fn set_wanted(&self) {
        self.wanted.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Resolves when something about the hold has changed, from the moment of this call on.
    pub(crate) fn change(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// The task of this stay has the hold in its hands. `false` when the ledger must hear of it
    /// ([`taken_up_late`](super::ledger::Ledger::taken_up_late)).
    pub(super) fn take_up(&self) -> bool {
        self.taken_up.store(true, Ordering::SeqCst);
        self.settings.validity.is_some() && !self.postponed.load(Ordering::SeqCst)
    }

    /// A renewal is due, and nobody has taken the hold up. `false` when somebody has, just now.
    pub(super) fn postpone(&self) -> bool {
        self.postponed.store(true, Ordering::SeqCst);
        !self.taken_up.load(Ordering::SeqCst)
    }

    pub(super) fn is_taken_up(&self) -> bool {
        self.taken_up.load(Ordering::Relaxed)
    }

    /// Called once, when the entry leaves `Held`.
    pub(super) fn ends(&self, ending: Ending) {
        self.ending.store(code_of(ending), Ordering::Release);
        self.valid_until.store(OVER, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// How a stay ended: a hold is passed on only after a release.
    pub(crate) fn ending_of_stay(&self, stay: u32) -> Ending {
        let ending = self.ending();
        if self.stay() == stay {
            ending
        } else {
            Ending::LetGo
        }
    }
}
