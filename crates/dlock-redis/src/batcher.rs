//! Requests of many tasks in one trip.
//!
//! A few at a time go alone and at once. What comes while those are under way waits for the first of them to be answered and then
//! goes together, which costs the server and the client a fraction. So a single request never waits, and a crowd costs less: from
//! then on two trips go to and fro, one at the server while the other is at the client, each with half of the crowd.
//!
//! The way of one request:
//!
//! ```text
//!                    fewer than AT_ONCE under way (IN_A_CROWD while there are trips of many),
//!                    or it wants a lock that somebody who waits wants too
//!   enter ─────────────────────────────────────────────────────────────────────────► alone ──► answered
//!     │ otherwise                                                                       ▲
//!     ▼                                                                                 │ not so easy; the trip broke,
//!   waiting ──────────────► in a trip of many ──► taken or freed                        │ was refused, or its runtime ended
//!     │    a lone one ends,        │                                                    │
//!     │    a trip comes back,      └────────────────────────────────────────────────────┘
//!     │    or LARGEST wait
//!     └── its future is dropped: it is left out of the next trip
//! ```
//!
//! And of the batch state, which counts what is under way:
//!
//! ```text
//!   nothing ──enter──► some alone ──one ends while others wait──► trips of many ──nobody waits──► some alone or nothing
//!      ▲                                                               │
//!      └── nothing has begun or ended for 2 × the answer time-out: what is under way is given up (`age` goes up), since a
//!          runtime that nobody drives has it ◄─────────────────────────┘
//! ```

mod known;
mod state;

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use dlock_core::backend::AttemptId;
use dlock_core::{ErrorKind, kit};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

pub(crate) use self::state::BatchOutcome;
use self::state::{AT_ONCE, BatchItem, BatchState, LARGEST};
use crate::acquire::unexpected_reply;
use crate::config::Config;
use crate::connect::{RedisLink, RedisReply, ScriptCall};
use crate::error::Trouble;
use crate::key::SIGNS;
use crate::script::Script;
use crate::script_args::Attempt32;

#[derive(Debug)]
pub(crate) struct Batcher {
    link: Arc<RedisLink>,
    script: Script,
    limit: Duration,
    state: Mutex<BatchState>,
}

/// How a request goes.
#[derive(Debug)]
pub(crate) enum Dispatch {
    /// At once, by itself. To be kept until the answer is there, where there is something to keep.
    Alone(Option<LoneRequest>),
    Together(BatchTicket),
}

impl Batcher {
    pub(crate) fn new(link: Arc<RedisLink>, config: &Config) -> Arc<Self> {
        Arc::new(Self {
            link,
            script: Script::many(),
            limit: config.answer_timeout,
            // Half of the time, so that the key is still there when the request comes.
            state: Mutex::new(BatchState::new(config.fence_ttl / 2)),
        })
    }

    fn state(&self) -> MutexGuard<'_, BatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a lock, if it goes together with others: with the end of the lock's value and the time to live of its key.
    pub(crate) fn try_acquire(
        self: &Arc<Self>,
        wish: impl FnOnce() -> (String, Vec<u8>, u64),
    ) -> Dispatch {
        self.enter(|tell| {
            let (key, text, lasts) = wish();
            BatchItem::new(key, text, Some(lasts), tell)
        })
    }

    /// Frees a lock, if it goes together with others.
    pub(crate) fn release(
        self: &Arc<Self>,
        wish: impl FnOnce() -> (String, AttemptId),
    ) -> Dispatch {
        self.enter(|tell| {
            let (key, attempt) = wish();
            let text = [b"-", Attempt32::new(attempt).as_ref()].concat();
            BatchItem::new(key, text, None, tell)
        })
    }

    fn enter(
        self: &Arc<Self>,
        wish: impl FnOnce(oneshot::Sender<Result<BatchOutcome, Trouble>>) -> BatchItem,
    ) -> Dispatch {
        let mut state = self.state();
        let full = state.under_way >= state.at_once();
        if full && state.stands_still(self.limit) {
            state.age += 1;
            (state.under_way, state.trips) = (0, 0);
        }
        if !full || state.under_way == 0 {
            state.under_way += 1;
            state.moved = Some(Instant::now());
            return Dispatch::Alone(Some(LoneRequest {
                batcher: self.clone(),
                age: state.age,
            }));
        }
        let (tell, told) = oneshot::channel();
        if !state.wait(wish(tell)) {
            return Dispatch::Alone(None);
        }
        // Enough for a trip of their own.
        if state.waits().is_multiple_of(LARGEST) && state.under_way < AT_ONCE {
            state.under_way += 1;
            self.start(state);
        }
        Dispatch::Together(BatchTicket {
            told,
            usual: self.limit,
        })
    }

    /// Starts a trip of many, which counts as under way already. It goes where the connection lives: the runtime of whoever waits
    /// may be one that nobody drives in a moment.
    fn start(self: &Arc<Self>, mut state: MutexGuard<'_, BatchState>) {
        state.trips += 1;
        let trip = BatchTrip {
            batcher: self.clone(),
            age: state.age,
            ended: false,
        };
        drop(state);
        let home = self.link.home().or_else(|| Handle::try_current().ok());
        if let Some(home) = home {
            home.spawn(trip.run());
        }
    }

    /// Sends all of them in one trip, and tells each what it came to.
    async fn send(&self, wishes: Vec<BatchItem>) {
        let lasts = wishes.iter().find_map(|wish| wish.lasts).unwrap_or(1);
        let strange_ones = wishes.iter().filter(|wish| wish.is_strange());
        let sides: Vec<String> = strange_ones
            .flat_map(|wish| SIGNS.map(|end| [wish.key.as_str(), end].concat()))
            .collect();
        let mut keys: Vec<&str> = wishes.iter().map(|wish| wish.key.as_str()).collect();
        keys.extend(sides.iter().map(String::as_str));
        let mut call = ScriptCall::new(&self.script, keys.into_iter()).arg(lasts.to_string());
        for wish in &wishes {
            call = if wish.is_strange() {
                call.arg([b"+", wish.text.as_slice()].concat())
            } else {
                call.arg(&wish.text)
            };
        }
        let said = match self.link.call_once(&call, self.limit).await {
            Ok(RedisReply::List(said)) if said.len() == wishes.len() => said,
            Ok(_) => {
                return tell_all(
                    wishes,
                    &unexpected_reply("to many in an unknown form").breaking(),
                );
            }
            // The server's word may be about one of them alone, such as a missing permission: each asks for itself.
            Err(trouble) if trouble.is_of_the_server() => {
                return tell_all(wishes, &trouble.breaking());
            }
            Err(trouble) => return tell_all(wishes, &trouble),
        };
        let taken = |said: &RedisReply| matches!(said, RedisReply::Text(_));
        let both = wishes.iter().zip(&said);
        self.state()
            .note(both.filter_map(|(wish, said)| taken(said).then_some(wish.mark)));
        for (wish, said) in wishes.into_iter().zip(said) {
            let said = match said {
                RedisReply::Number(0) => Ok(BatchOutcome::NeedsFullScript),
                RedisReply::Number(_) => Ok(BatchOutcome::Freed),
                RedisReply::Text(token) => match token.parse() {
                    Ok(token) => Ok(BatchOutcome::Taken(token)),
                    Err(_) => Err(unexpected_reply("a token that is no number")),
                },
                _ => Err(unexpected_reply("to one of many in an unknown form")),
            };
            // Whoever dropped its future has the attempt abandoned, or the hold released, by core in the background: this answer is not needed.
            let _ = wish.tell.send(said);
        }
    }
}

fn tell_all(wishes: Vec<BatchItem>, trouble: &Trouble) {
    for wish in wishes {
        let _ = wish.tell.send(Err(trouble.clone()));
    }
}

/// A request under way by itself: to be kept until its answer is there. When it ends while others wait, they go in a trip of many.
#[derive(Debug)]
pub(crate) struct LoneRequest {
    batcher: Arc<Batcher>,
    age: u64,
}

impl Drop for LoneRequest {
    fn drop(&mut self) {
        let mut state = self.batcher.state();
        if state.age != self.age {
            return;
        }
        state.moved = Some(Instant::now());
        if state.waits() == 0 || state.under_way > state.at_once() {
            state.under_way = state.under_way.saturating_sub(1);
        } else {
            // The trip takes over our share of what is under way.
            self.batcher.start(state);
        }
    }
}

/// The task that sends trips of many, one after the other, as long as anybody waits.
struct BatchTrip {
    batcher: Arc<Batcher>,
    age: u64,
    ended: bool,
}

impl BatchTrip {
    async fn run(mut self) {
        loop {
            let wishes = {
                let mut state = self.batcher.state();
                if state.age != self.age {
                    self.ended = true;
                    return;
                }
                state.moved = Some(Instant::now());
                let wishes = state.next();
                if wishes.is_empty() {
                    state.trip_ended();
                    self.ended = true;
                    return;
                }
                wishes
            };
            self.batcher.send(wishes).await;
            // The tasks that just got their answers mostly send the next request at once (a release after an acquire). They run before the next
            // trip is filled, or each of those requests would wait for the trip after it.
            behind_the_others().await;
        }
    }
}

impl Drop for BatchTrip {
    /// The runtime that drove it has ended before the trip. Those who wait in other runtimes find their channel closed, and ask by themselves.
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut state = self.batcher.state();
        if state.age != self.age {
            return;
        }
        state.trip_ended();
        let left = state.leave_nobody();
        drop(state);
        drop(left);
    }
}

/// Lets the tasks that are ready run first. Not by `yield_now`: a task that waits there cannot be taken over by another worker while its
/// own is busy.
async fn behind_the_others() {
    let mut again = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut again, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// What a request that goes with others waits on: the answer comes here.
#[derive(Debug)]
pub(crate) struct BatchTicket {
    told: oneshot::Receiver<Result<BatchOutcome, Trouble>>,
    /// How long the trip may take.
    usual: Duration,
}

impl BatchTicket {
    /// Waits for the answer. The trip that waits before ours and our own have a time-out each, and tell us of it; so with the usual limit this one
    /// ends later than both, and only when nobody drives the runtime of the trip. A caller with a shorter limit gives up by that.
    pub(crate) async fn answer(self, limit: Duration) -> Result<BatchOutcome, Trouble> {
        let limit = if limit < self.usual {
            limit
        } else {
            2 * self.usual
        };
        let told = timeout(limit, self.told).await;
        let told = told.map_err(|_| kit::no_answer(limit))?;
        told.unwrap_or_else(|_| {
            Err(Trouble::new(
                ErrorKind::Unreachable,
                "the runtime in which the request went has ended",
            )
            .breaking())
        })
    }
}
