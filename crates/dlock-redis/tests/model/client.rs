//! What a client does, as `wait.rs`, `acquire.rs` and `release.rs` have it, and core above them.

use crate::store::{Answer, Attempt, Letter, Request, Tick, Token};
use crate::{Defect, LEASE, PATIENCE, RECENT, Rules, SIGN, STAYS, State};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// Has not asked yet.
    Idle,
    /// A request is under way.
    Asks(Wait),
    /// Others hold it: it waits for a message, and for its next sign of life.
    Stands(Wait),
    Holds(Hold),
    /// It frees its hold, or gives its attempt up, until the store confirms that.
    Leaves {
        sent: Tick,
        by: Request,
    },
    /// The store has confirmed it: released, abandoned, or refused before anything was done.
    Ended,
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Wait {
    /// When the last request was sent.
    pub(crate) sent: Tick,
    /// The last question that was answered "others hold it": when it was sent, and the last token then.
    asked: Option<(Tick, Token)>,
    /// A request may still be under way, though nobody waits for its answer.
    stray: bool,
    /// The message that came last.
    granted: Option<Token>,
    woken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    pub(crate) token: Token,
    pub(crate) began: Tick,
    pub(crate) valid_until: Tick,
    /// Until its time has passed.
    pub(crate) stays: bool,
    stray: bool,
}

impl Hold {
    pub(crate) fn leaves_at(&self) -> Tick {
        if self.stays {
            self.valid_until
        } else {
            self.began + STAYS
        }
    }
}

impl Client {
    /// Whether it waits for the answer to what it sent then.
    pub(crate) fn awaits(&self) -> Option<Tick> {
        match self {
            Self::Asks(wait) => Some(wait.sent),
            Self::Leaves { sent, .. } => Some(*sent),
            _ => None,
        }
    }

    /// Whether it has a place in its inbox.
    pub(crate) fn has_inbox(&self) -> bool {
        matches!(self, Self::Asks(_) | Self::Stands(_))
    }

    /// "Whatever was said to the second request, the first one may still come."
    pub(crate) fn sends_again(&mut self) {
        if let Self::Asks(wait) = self {
            wait.stray = true;
        }
    }

    /// When the next sign of life is due.
    pub(crate) fn look_at(&self) -> Option<Tick> {
        match self {
            Self::Stands(wait) => Some(wait.sent + SIGN),
            _ => None,
        }
    }
}

impl Rules {
    /// The first request, or a sign of life.
    pub(crate) fn ask(&self, state: &mut State, me: Attempt) {
        let sent = state.now;
        let wait = match state.clients[me] {
            Client::Asks(wait) | Client::Stands(wait) => Wait {
                sent,
                woken: false,
                ..wait
            },
            _ => Wait {
                sent,
                asked: None,
                stray: false,
                granted: None,
                woken: false,
            },
        };
        // `self.hear().await` comes before each question.
        state.store.listens[me] = true;
        state.clients[me] = Client::Asks(wait);
        state.send(me, Request::Acquire);
    }

    pub(crate) fn leave(&self, state: &mut State, me: Attempt, by: Request) {
        let sent = state.now;
        state.clients[me] = Client::Leaves { sent, by };
        state.send(me, by);
    }

    /// The caller has no patience any more. When every request was answered, nothing need be remembered.
    pub(crate) fn give_up(&self, state: &mut State, me: Attempt) {
        let remembered = match state.clients[me] {
            Client::Stands(wait) => wait.stray,
            _ => true,
        };
        self.leave(state, me, Request::Abandon { remembered });
    }

    /// "A request may still be under way: the release must keep it from taking effect" (C13).
    pub(crate) fn release(&self, state: &mut State, me: Attempt) {
        let Client::Holds(hold) = state.clients[me] else {
            return;
        };
        let by = if hold.stray {
            Request::Abandon { remembered: true }
        } else {
            Request::Release
        };
        self.leave(state, me, by);
    }

    /// No answer came in time.
    pub(crate) fn time_out(&self, state: &mut State, me: Attempt) {
        match state.clients[me].clone() {
            // "The place in the queue outlives a frozen connection that is replaced in time."
            Client::Asks(wait) if wait.asked.is_some_and(|(at, _)| wait.sent < at + PATIENCE) => {
                state.clients[me] = Client::Asks(Wait {
                    stray: true,
                    ..wait
                });
                self.ask(state, me);
            }
            // It is in doubt, and core abandons it.
            Client::Asks(_) => self.leave(state, me, Request::Abandon { remembered: true }),
            Client::Leaves { by, .. } => self.leave(state, me, by),
            _ => {}
        }
    }

    /// A guard, if there is time for one; what came too late is undone.
    fn begin(&self, state: &mut State, me: Attempt, token: Token, from: Tick, stray: bool) {
        let from = if self.has(Defect::LeaseFromTheAnswer) {
            state.now
        } else {
            from
        };
        let valid_until = from + LEASE;
        if state.now >= valid_until {
            return self.leave(state, me, Request::Abandon { remembered: true });
        }
        state.token_fell |= token <= state.seen;
        state.seen = state.seen.max(token);
        state.clients[me] = Client::Holds(Hold {
            token,
            began: state.now,
            valid_until,
            stays: false,
            stray,
        });
    }

    /// "Takes a grant at its word": its token is higher than the one seen with the last answer, so it was made after that question.
    fn accept(&self, state: &mut State, me: Attempt, wait: Wait) -> bool {
        let (Some((asked, last)), Some(token)) = (wait.asked, wait.granted) else {
            return false;
        };
        let newer = token > last || self.has(Defect::TakesAnOldGrant);
        let recent = state.now - asked <= RECENT;
        if newer && recent {
            self.begin(state, me, token, asked, wait.stray);
        }
        newer && recent
    }

    pub(crate) fn heard(&self, state: &mut State, letter: Letter) {
        let me = letter.to;
        match state.clients[me].clone() {
            Client::Asks(wait) => {
                state.clients[me] = Client::Asks(Wait {
                    granted: letter.token,
                    woken: true,
                    ..wait
                });
            }
            Client::Stands(wait) => {
                let wait = Wait {
                    granted: letter.token,
                    ..wait
                };
                state.clients[me] = Client::Stands(wait);
                if !self.accept(state, me, wait) {
                    self.ask(state, me);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn answered(&self, state: &mut State, me: Attempt, sent: Tick, answer: Answer) {
        if let (Client::Holds(hold), Answer::Renewed) = (&mut state.clients[me], answer) {
            let from = if self.has(Defect::LeaseFromTheAnswer) {
                state.now
            } else {
                sent
            };
            if state.now < hold.valid_until {
                hold.valid_until = hold.valid_until.max(from + LEASE);
            }
            return;
        }
        if state.clients[me].awaits() != Some(sent) {
            return;
        }
        match (state.clients[me].clone(), answer) {
            (Client::Asks(wait), Answer::Held(token)) => {
                self.begin(state, me, token, sent, wait.stray);
            }
            (Client::Asks(wait), Answer::Others(last)) => {
                let wait = Wait {
                    asked: Some((sent, last)),
                    ..wait
                };
                state.clients[me] = Client::Stands(wait);
                if !self.accept(state, me, wait) && wait.woken {
                    self.ask(state, me);
                }
            }
            // What was sent before has left a place in the queue, which may still be given the lock.
            (Client::Asks(wait), Answer::Refused) if wait.stray || wait.asked.is_some() => {
                self.leave(state, me, Request::Abandon { remembered: true });
            }
            (Client::Asks(_), Answer::Refused) => state.clients[me] = Client::Ended,
            (Client::Leaves { .. }, Answer::Done) => state.clients[me] = Client::Ended,
            // A release that was refused goes again when its answer would have been late.
            _ => {}
        }
    }
}
