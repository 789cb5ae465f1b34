//! One hold of one lock, as everybody in this client sees it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::queue::Turn;
use crate::settings::Checked;
use crate::sync::locked;
use crate::{Lease, LossReason, Moment, Owner};

/// Timers have a grain of a millisecond and fire late: the keeper looks this much before the end, so that the loss signal
/// fires no later than `valid_until` (C8).
const TIMER_GRAIN: Duration = Duration::from_millis(2);

/// How a hold ends is decided once, by whoever moves it out of `HELD` first: a release or a loss, never both (C9).
const HELD: u8 = 0;
const LET_GO: u8 = 1;
const LOST: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Held,
    LetGo,
    Lost(LossReason),
}

#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) id: u64,
    pub(crate) settings: Arc<Checked>,
    pub(crate) owner: Option<Owner>,
    pub(crate) since: Moment,
    /// Replaced by a downgrade only.
    lease: Mutex<Arc<Lease>>,
    /// The local queue's turn, kept while an exclusive hold lasts.
    turn: Mutex<Option<Turn>>,
    state: AtomicU8,
    /// When it was let go or lost; the state is read first.
    ended_at: AtomicU64,
    valid_until: AtomicU64,
    ends_at: Moment,
    changed: Notify,
    /// How often the owner has entered; changed under the ledger's lock only.
    pub(crate) entries: AtomicU32,
    /// When the keeper looks next; changed under the ledger's lock only.
    pub(crate) due: AtomicU64,
    pub(crate) renewing: AtomicBool,
}

impl Hold {
    pub(crate) fn new(
        id: u64,
        lease: Lease,
        settings: Arc<Checked>,
        owner: Option<Owner>,
        turn: Option<Turn>,
        now: Moment,
    ) -> Self {
        let ends_at = settings.max_hold.map_or(Moment::NEVER, |limit| now + limit);
        let valid_until = valid_until(&lease, &settings).min(ends_at);
        Self {
            id,
            settings,
            owner,
            since: now,
            lease: Mutex::new(Arc::new(lease)),
            turn: Mutex::new(turn),
            state: AtomicU8::new(HELD),
            ended_at: AtomicU64::new(0),
            valid_until: AtomicU64::new(valid_until.as_nanos()),
            ends_at,
            changed: Notify::new(),
            entries: AtomicU32::new(1),
            due: AtomicU64::new(0),
            renewing: AtomicBool::new(false),
        }
    }

    pub(crate) fn lease(&self) -> Arc<Lease> {
        locked(&self.lease).clone()
    }

    pub(crate) fn set_lease(&self, lease: Lease) {
        *locked(&self.lease) = Arc::new(lease);
    }

    /// Since when somebody tries to end it at the store; `None` while it is held.
    pub(crate) fn ended_at(&self) -> Option<Moment> {
        (self.state() != State::Held)
            .then(|| Moment::from_nanos(self.ended_at.load(Ordering::Acquire)))
    }

    /// The store could not be told that it has ended: those who wait locally should know.
    pub(crate) fn not_confirmed(&self) {
        if let Some(turn) = locked(&self.turn).as_ref() {
            turn.failed();
        }
    }

    /// Lets the next local waiter go to the store. Harmless when it has gone already.
    pub(crate) fn pass_turn(&self) {
        let turn = locked(&self.turn).take();
        drop(turn);
    }

    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            HELD => State::Held,
            LET_GO => State::LetGo,
            code => State::Lost(reason_of(code)),
        }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    /// Right at every moment, also when no task gets to run: it reads the clock (C8).
    pub(crate) fn is_held(&self, now: Moment) -> bool {
        self.state() == State::Held && now < self.valid_until()
    }

    /// When the loss has to be declared, if nothing happens before.
    pub(crate) fn loss_at(&self) -> Moment {
        self.valid_until().earlier(TIMER_GRAIN)
    }

    /// The reason that applies if the hold is lost to the clock now.
    pub(crate) fn clock_reason(&self) -> LossReason {
        if self.valid_until() == self.ends_at {
            LossReason::MaxHold
        } else {
            LossReason::Expired
        }
    }

    /// The store has counted the lease anew from `sent`. A hold that is lost stays lost.
    pub(crate) fn extend(&self, sent: Moment) {
        if let Some(validity) = self.settings.validity {
            let until = (sent + validity).min(self.ends_at);
            self.valid_until
                .fetch_max(until.as_nanos(), Ordering::AcqRel);
        }
    }

    /// The first of `let_go` and `lose` wins.
    pub(crate) fn let_go(&self, now: Moment) -> Result<(), LossReason> {
        match self.leave_held(LET_GO, now) {
            Ok(()) => Ok(()),
            Err(LET_GO) => Ok(()),
            Err(code) => Err(reason_of(code)),
        }
    }

    pub(crate) fn lose(&self, reason: LossReason, now: Moment) -> bool {
        self.leave_held(code_of(reason), now).is_ok()
    }

    fn leave_held(&self, to: u8, now: Moment) -> Result<(), u8> {
        // The first who leaves counts.
        let _ =
            self.ended_at
                .compare_exchange(0, now.as_nanos(), Ordering::AcqRel, Ordering::Acquire);
        self.state
            .compare_exchange(HELD, to, Ordering::AcqRel, Ordering::Acquire)?;
        self.changed.notify_waiters();
        Ok(())
    }

    /// Resolves when the hold has ended or its time is up; the caller looks which.
    pub(crate) async fn ended(&self, clock: &dyn crate::Clock) -> State {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let state = self.state();
            let at = self.loss_at();
            if state != State::Held || clock.now() >= at {
                return state;
            }
            tokio::select! {
                () = changed => {}
                // The lease may have been renewed meanwhile: look again.
                () = clock.sleep_until(at) => {}
            }
        }
    }
}

fn valid_until(lease: &Lease, settings: &Checked) -> Moment {
    settings
        .validity
        .map_or(Moment::NEVER, |validity| lease.from() + validity)
}

fn code_of(reason: LossReason) -> u8 {
    LOST + match reason {
        LossReason::Expired => 0,
        LossReason::Gone => 1,
        LossReason::SessionEnded => 2,
        LossReason::MaxHold => 3,
        LossReason::Closed => 4,
    }
}

fn reason_of(code: u8) -> LossReason {
    match code.saturating_sub(LOST) {
        0 => LossReason::Expired,
        1 => LossReason::Gone,
        2 => LossReason::SessionEnded,
        3 => LossReason::MaxHold,
        _ => LossReason::Closed,
    }
}
