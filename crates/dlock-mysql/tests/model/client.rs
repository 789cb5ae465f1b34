//! What a client does, as `carried/*.rs` has it, and core above it.

use crate::server::{
    Answer, Client, Connection, Fence, Proof, Seen, Stamp, Standing, Statement, Tick,
};
use crate::{Defect, FRESH, Rules, State, VALID, Way};

/// How far an attempt is: see the diagram of `carried/mod.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Attempt {
    /// Has not asked yet.
    Idle,
    /// advisory: takes a lock that is free, or makes the mark of one that it has waited for its own.
    Takes(Request, Has),
    /// Asks for the lock, or stands in the server's queue.
    Asks(Request),
    /// Has the lock, and looks at the mark; it has waited for the owner of this version.
    Looks(Request, Option<Stamp>),
    /// Notes that it has begun to count.
    Counts(Request, Stamp),
    SitsOut {
        on: Connection,
        until: Tick,
        version: Stamp,
    },
    /// Makes the mark its own. The lock was its at the time of the last proof.
    Claims(Request, Tick),
    Holds(Hold),
    /// Asks whether it holds. It believes so meanwhile.
    Proves(Hold, Renewal),
    /// Its connection is ended, in case that the server does not know; then the lock is taken on another one, and the mark told.
    Ends(Hold, Renewal),
    TakesAgain(Hold, Renewal),
    Moves(Hold, Renewal),
    /// Gives the hold or the attempt up, and believes nothing any more.
    Leaves(Request, Leave),
    Ended,
    Dead,
}

/// What is under way: on behalf of which connection, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) on: Connection,
    pub(crate) sent: Tick,
}

/// Whether an attempt has the lock at the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Has {
    Nothing,
    TheLock,
}

/// Core counts from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Renewal {
    began: Tick,
    sent: Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    pub(crate) on: Connection,
    pub(crate) fence: Fence,
    pub(crate) valid_until: Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Leave {
    /// "Clears the mark and gives the lock back", on the connection itself.
    LetGo(Fence),
    /// The connection is ended first, and then the mark is cleared (of a hold) or undone (of an attempt that nobody was told about).
    End(Option<Fence>),
    Tidy(Option<Fence>),
}

impl Attempt {
    /// The hold that it believes in.
    pub(crate) fn hold(&self) -> Option<&Hold> {
        match self {
            Self::Holds(hold)
            | Self::Proves(hold, _)
            | Self::Ends(hold, _)
            | Self::TakesAgain(hold, _)
            | Self::Moves(hold, _) => Some(hold),
            _ => None,
        }
    }

    /// Since when it waits for an answer.
    pub(crate) fn awaits(&self) -> Option<Tick> {
        match self {
            Self::Takes(request, _)
            | Self::Asks(request)
            | Self::Looks(request, _)
            | Self::Counts(request, _)
            | Self::Claims(request, _)
            | Self::Leaves(request, _) => Some(request.sent),
            Self::Proves(_, renewal)
            | Self::Ends(_, renewal)
            | Self::TakesAgain(_, renewal)
            | Self::Moves(_, renewal) => Some(renewal.sent),
            _ => None,
        }
    }

    /// Whether it waits for a new connection to carry its hold.
    pub(crate) fn takes_again_on(&self, on: Connection) -> bool {
        matches!(self, Self::TakesAgain(hold, _) if hold.on == on)
    }

    /// The connection of an attempt that is not a hold yet.
    pub(crate) fn asks_on(&self) -> Option<Connection> {
        match self {
            Self::Takes(request, _)
            | Self::Asks(request)
            | Self::Looks(request, _)
            | Self::Counts(request, _)
            | Self::Claims(request, _) => Some(request.on),
            Self::SitsOut { on, .. } => Some(*on),
            _ => None,
        }
    }
}

impl State {
    fn request(&self, on: Connection) -> Request {
        let sent = self.now;
        Request { on, sent }
    }

    fn goes_on(&self, renewal: Renewal) -> Renewal {
        Renewal {
            sent: self.now,
            ..renewal
        }
    }

    fn go_to(&mut self, me: Client, next: Attempt, statement: Statement) {
        self.clients[me] = next;
        self.send(me, statement);
    }
}

impl Rules {
    /// In line: one that has reason to think that others have the lock.
    pub(crate) fn ask(&self, state: &mut State, me: Client, in_line: bool) {
        let on = Connection {
            of: me,
            number: 0,
            server: state.servers.primary,
        };
        state.servers.open.push(on);
        state.servers.open.sort();
        if in_line {
            let request = state.request(on);
            state.go_to(me, Attempt::Asks(request), Statement::StandInLine(on));
        } else if self.way == Way::Takes {
            self.take(state, me, on, Has::Nothing);
        } else {
            self.grab(state, me, on);
        }
    }

    fn take(&self, state: &mut State, me: Client, on: Connection, has: Has) {
        let request = state.request(on);
        state.go_to(me, Attempt::Takes(request, has), Statement::Take(on));
    }

    fn grab(&self, state: &mut State, me: Client, on: Connection) {
        let request = state.request(on);
        state.go_to(me, Attempt::Asks(request), Statement::Grab(on));
    }

    fn look(&self, state: &mut State, me: Client, on: Connection, waited_for: Option<Stamp>) {
        let request = state.request(on);
        state.go_to(me, Attempt::Looks(request, waited_for), Statement::Look(on));
    }

    /// "No longer than that": the time is over, and the mark is looked at again.
    pub(crate) fn look_again(&self, state: &mut State, me: Client) {
        if let Attempt::SitsOut { on, version, .. } = state.clients[me] {
            self.look(state, me, on, Some(version));
        }
    }

    fn claim(&self, state: &mut State, me: Client, on: Connection, stamp: Stamp, proved: Tick) {
        let request = state.request(on);
        state.go_to(
            me,
            Attempt::Claims(request, proved),
            Statement::Claim(on, stamp),
        );
    }

    pub(crate) fn prove(&self, state: &mut State, me: Client) {
        if let Attempt::Holds(hold) = state.clients[me] {
            let renewal = Renewal {
                began: state.now,
                sent: state.now,
            };
            let next = Attempt::Proves(hold, renewal);
            state.go_to(me, next, Statement::Prove(hold.on, hold.fence));
        }
    }

    pub(crate) fn release(&self, state: &mut State, me: Client) {
        if let Attempt::Holds(hold) = state.clients[me] {
            let request = state.request(hold.on);
            let next = Attempt::Leaves(request, Leave::LetGo(hold.fence));
            state.go_to(me, next, Statement::LetGo(hold.on, hold.fence));
        }
    }

    /// The connection is ended, and nothing stays of the attempt, or of a hold whose release has got no answer.
    fn end(&self, state: &mut State, me: Client, on: Connection, hold: Option<Fence>) {
        let request = state.request(on);
        let next = Attempt::Leaves(request, Leave::End(hold));
        state.go_to(me, next, Statement::End(on));
    }

    /// An attempt that failed, or that the caller has no patience for.
    pub(crate) fn abandon(&self, state: &mut State, me: Client) {
        if let Some(on) = state.clients[me].asks_on() {
            self.end(state, me, on, None);
        }
    }

    /// No answer, or one that says that the connection has broken.
    pub(crate) fn fail(&self, state: &mut State, me: Client) {
        match state.clients[me] {
            Attempt::Proves(hold, renewal) => {
                let next = Attempt::Ends(hold, state.goes_on(renewal));
                state.go_to(me, next, Statement::End(hold.on));
            }
            // "Renewal::Failed": it is as valid as before, and not longer.
            Attempt::Ends(hold, _) | Attempt::TakesAgain(hold, _) | Attempt::Moves(hold, _) => {
                state.clients[me] = Attempt::Holds(hold);
            }
            Attempt::Leaves(request, Leave::LetGo(fence)) => {
                self.end(state, me, request.on, Some(fence));
            }
            Attempt::Leaves(request, Leave::End(hold)) => self.end(state, me, request.on, hold),
            Attempt::Leaves(request, Leave::Tidy(hold)) => {
                self.tidy_up(state, me, request.on, hold);
            }
            _ => self.abandon(state, me),
        }
    }

    fn tidy_up(&self, state: &mut State, me: Client, on: Connection, hold: Option<Fence>) {
        let statement = hold.map_or(Statement::Undo, Statement::Clear);
        let request = state.request(on);
        state.go_to(me, Attempt::Leaves(request, Leave::Tidy(hold)), statement);
    }

    fn begin(&self, state: &mut State, me: Client, on: Connection, fence: Fence, proved: Tick) {
        let hold = Hold {
            on,
            fence,
            valid_until: self.valid_from(state, proved) + VALID,
        };
        if state.now >= hold.valid_until {
            return self.end(state, me, on, Some(fence));
        }
        state.token_fell |= fence <= state.seen;
        state.seen = state.seen.max(fence);
        state.clients[me] = Attempt::Holds(hold);
    }

    fn valid_from(&self, state: &State, sent: Tick) -> Tick {
        if self.has(Defect::ValidFromTheAnswer) {
            state.now
        } else {
            sent
        }
    }

    fn extend(&self, state: &mut State, me: Client, hold: Hold, renewal: Renewal) {
        let valid_until = self.valid_from(state, renewal.began) + VALID;
        state.clients[me] = Attempt::Holds(Hold {
            valid_until: hold.valid_until.max(valid_until),
            ..hold
        });
    }

    pub(crate) fn answered(&self, state: &mut State, me: Client, answer: Answer) {
        match (state.clients[me], answer) {
            (_, Answer::Broken) => self.fail(state, me),
            (Attempt::Takes(request, _), Answer::Claimed(fence)) => {
                self.begin(state, me, request.on, fence, request.sent);
            }
            (Attempt::Takes(request, Has::Nothing), _) => self.grab(state, me, request.on),
            (Attempt::Takes(request, Has::TheLock), _) => self.look(state, me, request.on, None),
            // The mark may have been read when the wait began: a claim compares the version. After a long wait it is looked at, as a hold is valid from
            // the sending of the last proof.
            (Attempt::Asks(request), Answer::Granted(version)) => match version {
                _ if request.on.server != state.servers.primary => self.abandon(state, me),
                Some(stamp) if state.now <= request.sent + FRESH => {
                    self.claim(state, me, request.on, stamp, request.sent);
                }
                None if self.way == Way::Takes => self.take(state, me, request.on, Has::TheLock),
                _ => self.look(state, me, request.on, None),
            },
            (Attempt::Looks(request, waited_for), Answer::Seen(seen)) => {
                self.looked(state, me, request, waited_for, seen);
            }
            (Attempt::Counts(request, version), Answer::Done) => {
                state.sat_out = true;
                state.clients[me] = Attempt::SitsOut {
                    on: request.on,
                    until: state.now + VALID,
                    version,
                };
            }
            (Attempt::Claims(request, proved), Answer::Claimed(fence)) => {
                self.begin(state, me, request.on, fence, proved);
            }
            (Attempt::Claims(request, _), Answer::Changed) => {
                self.look(state, me, request.on, None);
            }
            (Attempt::Proves(hold, renewal), Answer::Proof(proof)) => match proof {
                Proof::Holds => self.extend(state, me, hold, renewal),
                Proof::Disturbed => self.fail(state, me),
                Proof::Gone => self.lost(state, me, hold.on),
            },
            (Attempt::Ends(hold, renewal), Answer::Done) => {
                let on = Connection {
                    of: me,
                    number: hold.on.number + 1,
                    server: state.servers.primary,
                };
                let next = Attempt::TakesAgain(Hold { on, ..hold }, state.goes_on(renewal));
                state.go_to(me, next, Statement::TakeAgain(on, hold.fence));
            }
            (Attempt::TakesAgain(hold, renewal), Answer::Granted(Some(stamp))) => {
                let next = Attempt::Moves(hold, state.goes_on(renewal));
                state.go_to(me, next, Statement::Move(hold.on, stamp));
            }
            (Attempt::TakesAgain(hold, _), Answer::Proof(_)) => self.lost(state, me, hold.on),
            (Attempt::TakesAgain(..), _) => self.fail(state, me),
            (Attempt::Moves(hold, renewal), Answer::Done) => self.extend(state, me, hold, renewal),
            (Attempt::Moves(..), _) => self.fail(state, me),
            (Attempt::Leaves(request, Leave::End(hold)), Answer::Done) => {
                self.tidy_up(state, me, request.on, hold);
            }
            (Attempt::Leaves(request, Leave::LetGo(fence)), Answer::Done)
                if self.has(Defect::FreesBeforeItClears) =>
            {
                self.tidy_up(state, me, request.on, Some(fence));
            }
            (Attempt::Leaves(..), Answer::Done) => state.clients[me] = Attempt::Ended,
            _ => {}
        }
    }

    fn looked(
        &self,
        state: &mut State,
        me: Client,
        request: Request,
        waited_for: Option<Stamp>,
        seen: Seen,
    ) {
        let proved = request.sent;
        match seen.standing {
            Standing::LeftInOrder | Standing::Other(Some(0)) => {
                self.claim(state, me, request.on, seen.stamp, proved);
            }
            Standing::Own(fence) => self.begin(state, me, request.on, fence, proved),
            Standing::Other(_) if waited_for == Some(seen.stamp) => {
                self.claim(state, me, request.on, seen.stamp, proved);
            }
            Standing::Other(None) => {
                let request = state.request(request.on);
                let next = Attempt::Counts(request, seen.stamp);
                state.go_to(me, next, Statement::Count(seen.stamp));
            }
            Standing::Other(Some(left)) => {
                state.sat_out = true;
                state.clients[me] = Attempt::SitsOut {
                    on: request.on,
                    until: state.now + left.min(VALID),
                    version: seen.stamp,
                };
            }
        }
    }

    /// The mark is not its own: it holds no more, and shuts its connection.
    fn lost(&self, state: &mut State, me: Client, on: Connection) {
        state.clients[me] = Attempt::Ended;
        state.end_connection(self, on);
    }
}
