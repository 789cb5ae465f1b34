use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::{join_all, select_all};

use crate::client::Client;
use crate::hold::{Hold, State};
use crate::{
    Error, ErrorKind, FencingToken, HeldNow, LossReason, Mode, Moment, Name, Operation, Released,
    Result,
};

/// A lock that is held: by a mutex, a reader or writer, a permit, or several locks as one.
///
/// The lease is renewed in the background as long as the guard lives. Give the lock back with
/// [`release`](Guard::release), which tells whether the hold was good to the end. Dropping the guard gives it back
/// in the background: promptly if the runtime lives on, else when the lease ends (C14). Nothing is sent when a program ends right
/// after a drop, so a program's last guard should be released, or the client closed.
///
/// # Losing the lock
///
/// A lease can pass while the holder is paused, cut off or slow. Then [`is_held`](Guard::is_held) turns false and
/// [`lost`](Guard::lost) resolves, both by the local clock, before the store can give the lock to another (C8). Work that
/// cannot be stopped in time is made safe by handing [`token`](Guard::token) to the resource.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard {
    first: Grip,
    /// Only for several locks as one.
    rest: Vec<Grip>,
    reentry: bool,
}

/// One hold of a guard.
struct Grip {
    client: Arc<Client>,
    hold: Arc<Hold>,
    /// Cleared when the hold was left.
    on: bool,
}

impl Drop for Grip {
    fn drop(&mut self) {
        if self.on {
            self.client.drop_hold(&self.hold);
        }
    }
}

impl Grip {
    async fn release(mut self) -> Result<Released> {
        self.on = false;
        self.client.release(&self.hold).await
    }
}

impl Guard {
    pub(crate) fn new(client: Arc<Client>, hold: Arc<Hold>, reentry: bool) -> Self {
        Self {
            first: Grip {
                client,
                hold,
                on: true,
            },
            rest: Vec::new(),
            reentry,
        }
    }

    /// Several guards as one; `None` when there are none.
    pub(crate) fn join(guards: Vec<Self>) -> Option<Self> {
        let mut guards = guards.into_iter();
        let mut all = guards.next()?;
        for guard in guards {
            all.rest.push(guard.first);
            all.rest.extend(guard.rest);
        }
        Some(all)
    }

    fn grips(&self) -> impl Iterator<Item = &Grip> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    pub(crate) fn is_reentry(&self) -> bool {
        self.reentry
    }

    /// The lock's name; of several locks as one, the first.
    pub fn name(&self) -> Name {
        self.first.hold.lease().name().clone()
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.first.hold.lease().mode()
    }

    /// The fencing token: hand it to the protected resource with every write. `None` when the store has none.
    ///
    /// Of several locks as one it is the first lock's; [`tokens`](Guard::tokens) gives them all.
    pub fn token(&self) -> Option<FencingToken> {
        self.first.hold.lease().token()
    }

    /// Every lock of this guard with its token.
    pub fn tokens(&self) -> Vec<(Name, Option<FencingToken>)> {
        self.grips()
            .map(|grip| {
                let lease = grip.hold.lease();
                (lease.name().clone(), lease.token())
            })
            .collect()
    }

    /// The owner as it is written in the store, which `inspect` shows.
    pub fn owner_id(&self) -> String {
        self.first.hold.lease().attempt().to_string()
    }

    /// Whether the hold is good right now. It reads the clock: it turns false as soon as the lease may have passed, even if no
    /// task of this program got to run.
    pub fn is_held(&self) -> bool {
        self.grips()
            .all(|grip| grip.hold.is_held(grip.client.clock.now()))
    }

    /// Until when the hold is good if it is not renewed again; `None` when it has no deadline.
    pub fn valid_until(&self) -> Option<Moment> {
        self.grips()
            .map(|grip| grip.hold.valid_until())
            .min()
            .filter(|until| *until != Moment::NEVER)
    }

    /// How long the hold is good if it is not renewed again: zero when it is lost, `None` when it has no deadline.
    pub fn remaining(&self) -> Option<Duration> {
        if !self.is_held() {
            return Some(Duration::ZERO);
        }
        let now = self.first.client.clock.now();
        self.valid_until().map(|until| until.since(now))
    }

    /// How many guards the owner has on this hold (R6).
    pub fn hold_count(&self) -> u32 {
        self.first.hold.entries.load(Ordering::Relaxed)
    }

    /// Resolves with the reason when the hold is lost; never otherwise.
    ///
    /// It fires before the store can have given the lock to another, without a single packet from the store (C8), and at
    /// once when the hold has been lost before (C9).
    ///
    /// # Cancel safety
    ///
    /// Dropping it changes nothing.
    pub async fn lost(&self) -> LossReason {
        self.loss_signal().reason().await
    }

    /// The loss signal as a value of its own, for a task that watches.
    pub fn loss_signal(&self) -> LossSignal {
        LossSignal {
            watched: self
                .grips()
                .map(|grip| (grip.client.clone(), grip.hold.clone()))
                .collect(),
        }
    }

    /// Gives the lock back and tells what became of it.
    ///
    /// Renewal stops first. What the store does not confirm within the trip time-out is
    /// [`Released::Unknown`], and is tried again in the background.
    ///
    /// # Errors
    ///
    /// When the store refuses for a reason that a retry cannot mend, for example a permission that was taken away. The
    /// lock then ends with its lease.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    pub async fn release(self) -> Result<Released> {
        let Self { first, rest, .. } = self;
        if rest.is_empty() {
            return first.release().await;
        }
        let answers = join_all(std::iter::once(first).chain(rest).map(Grip::release)).await;
        // The worst of them speaks for all.
        let mut worst = Released::Freed;
        for answer in answers {
            worst = match (worst, answer?) {
                (Released::AlreadyLost, _) | (_, Released::AlreadyLost) => Released::AlreadyLost,
                (Released::Unknown, _) | (_, Released::Unknown) => Released::Unknown,
                (Released::StillHeld, _) | (_, Released::StillHeld) => Released::StillHeld,
                _ => Released::Freed,
            };
        }
        Ok(worst)
    }

    /// Turns a writer's hold into a reader's without a moment in between at which another writer could get in.
    ///
    /// Repeating it is harmless. From the call on, this guard counts as a reader's, also when the answer was lost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] when the store cannot, [`ErrorKind::Conflict`] for anything but a writer's single hold,
    /// [`ErrorKind::Lost`] when the hold is gone, and what befalls the trip.
    pub async fn downgrade(&self) -> Result<()> {
        let Grip { client, hold, .. } = &self.first;
        let lease = hold.lease();
        let explain = |error| client.explain(error, Operation::Downgrade, lease.name());
        if !self.rest.is_empty()
            || self.hold_count() > 1
            || matches!(lease.mode(), Mode::Permit { .. })
        {
            return Err(explain(Error::new(
                ErrorKind::Conflict,
                "only the single hold of a writer can be downgraded: release the other guards of this owner first",
            )));
        }
        if !self.is_held() {
            return Err(explain(lost_error(self.reason_if_lost())));
        }
        client
            .backend
            .capabilities()
            .require(&[crate::Capability::Downgrade])?;
        // Claimed before it is asked for: if the answer is lost, we believe to hold less than we do, never more.
        hold.set_lease(lease.as_ref().clone().with_mode(Mode::Shared));
        let answer = client
            .trip(hold.settings.trip_timeout, client.backend.downgrade(&lease))
            .await;
        match answer {
            Ok(()) => {
                hold.pass_turn();
                Ok(())
            }
            Err(error) => {
                if error.kind() == ErrorKind::Lost {
                    client.lose(hold, LossReason::Gone);
                }
                Err(explain(error))
            }
        }
    }

    fn reason_if_lost(&self) -> LossReason {
        self.grips()
            .find_map(|grip| match grip.hold.state() {
                State::Lost(reason) => Some(reason),
                _ => None,
            })
            .unwrap_or(LossReason::Expired)
    }

    /// Runs `work` while the hold is good, then gives the lock back (R2).
    pub(crate) async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T> {
        let done = {
            let signal = self.loss_signal();
            tokio::select! {
                biased;
                reason = signal.reason() => Err(reason),
                value = work(&self) => Ok(value),
            }
        };
        let value = match done {
            Ok(value) if self.is_held() => value,
            // The work ended after the hold had: nobody knows who else was at it.
            Ok(_) => return Err(self.lost_while_working(self.reason_if_lost())),
            Err(reason) => return Err(self.lost_while_working(reason)),
        };
        match self.release().await {
            Ok(
                Released::AlreadyLost | Released::Unknown | Released::Freed | Released::StillHeld,
            ) => {}
            Err(error) => {
                tracing::warn!(%error, "the lock could not be given back; its lease ends it")
            }
        }
        Ok(value)
    }

    fn lost_while_working(&self, reason: LossReason) -> Error {
        let error = lost_error(reason);
        self.first
            .client
            .explain(error, Operation::Work, &self.name())
    }
}

fn lost_error(reason: LossReason) -> Error {
    Error::new(
        ErrorKind::Lost,
        format!("{reason}: the work was not done under the lock to its end, so check or repeat it"),
    )
    .with_held(HeldNow::No)
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.name())
            .field("mode", &self.mode())
            .field("token", &self.token())
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

/// Tells when a hold is lost, apart from the guard. Clones tell the same.
#[derive(Clone)]
pub struct LossSignal {
    watched: Vec<(Arc<Client>, Arc<Hold>)>,
}

impl LossSignal {
    /// Resolves with the reason when the hold is lost, or with `None` once it was released.
    pub async fn wait(&self) -> Option<LossReason> {
        let mut left: Vec<_> = self
            .watched
            .iter()
            .map(|(client, hold)| Box::pin(client.lost(hold)))
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

    /// Resolves with the reason when the hold is lost; never once it was released (C9).
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
            .entries(self.watched.iter().map(|(_, hold)| hold.state()))
            .finish()
    }
}
