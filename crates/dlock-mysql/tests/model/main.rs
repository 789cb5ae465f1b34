//! Holds that live on a connection (modes `session` and `advisory`), walked through state by state (C1, C5, C11; docs/decisions/0007).
//!
//! Clients want one lock of a server that gives it to one connection at a time, and to the next the moment that one ends. A connection may end, or lose its
//! lock alone; a statement may be late or its answer lost; a server may be demoted, and its connections live on; the lock may be broken by force; a client may
//! lose patience, or die. How many of these go together is the number of faults of a walk; each walk looks at every order of events that they leave open.
//! Then each rule is broken in turn ([`Defect`]), and the walk must find what that does: a rule whose breach goes unnoticed is not modelled.
//!
//! Time is a number of ticks, and goes on only when nothing is due. Left out are tries, the places of waiters, spare connections, and several tokens for a hold.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks, and says how much it has seen"
)]

mod client;
mod server;

use std::time::Instant;

use client::Attempt;
use server::{
    Answer, CLIENTS, Client, Connection, Fence, Grants, Servers, Statement, Tick, Waiter,
};
use stateright::{Checker, HasDiscoveries, Model, Property};

/// `session_validity`.
pub(crate) const VALID: Tick = 3;
/// How late a statement comes. An answer comes at once, but for a fault: a connection does one thing at a time.
const DELAY: Tick = 1;
/// When a client waits no longer for an answer.
const TRIP: Tick = 2;
/// How late a statement comes that is late.
const LATEST: Tick = 4;
/// By then everybody has asked.
const ASKED_BY: Tick = 1;

/// After a wait that took no longer, the mark is claimed without another look.
pub(crate) const FRESH: Tick = 1;

/// How whoever is granted the lock gets to know the mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// session: the grant tells the mark, as it was when the wait began.
    PeeksWhenTheWaitBegins,
    /// session: the grant tells the mark, as it is then. Which of the two it is depends on how a server carries out the statement.
    PeeksAtTheGrant,
    /// advisory: the lock and the mark are taken by one statement, if the mark has no owner.
    Takes,
}

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Whoever gets the lock holds it, whatever the mark says.
    NobodyWaits,
    /// "The connection of the mark lives, so its owner has given the lock back": a server takes locks away from connections that live.
    LivesSoItLeftInOrder,
    /// The time of the owner is counted from its claim, not from the grant to its heir.
    CountsFromTheClaim,
    /// An answer of the connection is a proof.
    ProvesByTheConnectionAlone,
    /// A server that was demoted still has the lock.
    ProvesByADemotedServer,
    ValidFromTheAnswer,
    /// A break by force frees the lock at once.
    BreakClearsTheMark,
    /// The lock is given back in one request, and the mark cleared in the next.
    FreesBeforeItClears,
    /// A claim does not compare the version of the mark that it has seen.
    ClaimsAnyVersion,
    /// One statement takes the lock and the mark, whoever owns that.
    TakesWhateverTheMark,
    /// That statement does not wait for a row that is locked, but looks at what was committed last.
    TakesPastALockedRow,
    /// A release frees the lock before it has the row of the mark.
    FreesBeforeItHasTheRow,
    /// Whoever stands in line is told whether the lock is free, and takes it by the next statement.
    LooksBeforeItWaits,
}

const ONE_HOLDER: &str = "one holder at a time";
const TOKENS_INCREASE: &str = "tokens increase";
const IN_ORDER_IS_PROMPT: &str = "who leaves in order costs nobody time";
const ALL_GET_IN: &str = "nobody waits for ever";
const WAITERS_KNOW: &str = "who waits was told that others have the lock";

#[derive(Debug, Clone)]
pub(crate) struct Rules {
    faults: u8,
    /// How often holders ask whether they hold.
    proofs: u8,
    /// By then everybody must have been in.
    end: Tick,
    /// Which faults there are.
    fault: fn(&Action) -> bool,
    defect: Option<Defect>,
    pub(crate) way: Way,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) now: Tick,
    pub(crate) servers: Servers,
    pub(crate) clients: [Attempt; CLIENTS],
    wire: Vec<Parcel>,
    faults: u8,
    proofs: u8,
    /// The highest token that a guard has had.
    pub(crate) seen: Fence,
    /// A guard had a token that is not above all before it.
    pub(crate) token_fell: bool,
    /// Somebody had to wait for the time of another.
    pub(crate) sat_out: bool,
}

/// Something under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Parcel {
    what: What,
    /// When it is there at the latest.
    due: Tick,
    is_late: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum What {
    Statement {
        of: Client,
        sent: Tick,
        statement: Statement,
    },
    Answer {
        to: Client,
        sent: Tick,
        answer: Answer,
    },
    /// advisory: of a release that has freed the lock.
    Commit {
        of: Client,
        sent: Tick,
        on: Connection,
    },
    /// advisory: of one that stands in line, and was told whether the lock was free.
    Wait {
        of: Client,
        sent: Tick,
        on: Connection,
        was_free: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Tick,
    Ask(Client),
    /// advisory: one that has reason to think that others have the lock stands in the server's queue at once.
    AskInLine(Client),
    LookAgain(Client),
    Prove(Client),
    Release(Client),
    TimeOut(Client),
    Deliver(usize),
    // Faults.
    EndConnection(Connection),
    /// The server takes the lock away and leaves the connection: a transaction that it rolls back, a named lock that somebody else releases.
    TakeLockAway(Connection),
    SwitchOver,
    Break,
    GiveUp(Client),
    /// With its connection.
    Die(Client),
    Delay(usize),
    LoseAnswer(usize),
    DelayAnswer(usize),
}

impl State {
    pub(crate) fn send(&mut self, of: Client, statement: Statement) {
        let sent = self.now;
        self.put(What::Statement {
            of,
            sent,
            statement,
        });
    }

    fn put(&mut self, what: What) {
        let delay = match what {
            What::Statement { .. } | What::Answer { .. } => DELAY,
            // Other things happen before it, but it has no way to go.
            What::Commit { .. } | What::Wait { .. } => 0,
        };
        self.wire.push(Parcel {
            what,
            due: self.now + delay,
            is_late: false,
        });
    }

    pub(crate) fn end_connection(&mut self, rules: &Rules, connection: Connection) {
        let grants = self.servers.end(rules, connection);
        self.grant(grants);
    }

    /// The waiters hear of it a moment later.
    fn grant(&mut self, grants: Grants) {
        for (to, peek) in grants {
            if let Some(sent) = self.clients[to].awaits() {
                let answer = Answer::Granted(peek);
                self.put(What::Answer { to, sent, answer });
            }
        }
    }

    /// What nobody hears makes no difference.
    fn tidy(&mut self) {
        let clients = &self.clients;
        self.wire.retain(|parcel| match parcel.what {
            What::Statement { .. } | What::Commit { .. } | What::Wait { .. } => true,
            What::Answer { to, sent, .. } => clients[to].awaits() == Some(sent),
        });
        self.wire.sort();
        for connection in self.servers.open.clone() {
            // A connection that its client has done with is kept for another attempt, or shut: it carries nothing.
            let has_ended = self.clients[connection.of] == Attempt::Ended;
            if has_ended && self.servers.locks[connection.server] != Some(connection) {
                self.servers.open.retain(|open| *open != connection);
            }
        }
    }

    fn is_out_of_time(&self, me: Client) -> bool {
        let late = |sent| self.now >= sent + TRIP;
        // A wait in the server's queue takes as long as it takes, while the server knows the connection: another one asks now and then.
        let is_known = |it: &Waiter| it.on.of == me && it.on.server == self.servers.primary;
        let waits = self.servers.queues.iter().flatten().any(is_known);
        !waits && self.clients[me].awaits().is_some_and(late)
    }

    fn is_over(&self) -> bool {
        let is_over = |client: &Attempt| matches!(client, Attempt::Ended | Attempt::Dead);
        self.clients.iter().all(is_over)
    }
}

impl Rules {
    fn new(way: Way, faults: u8, proofs: u8) -> Self {
        Self {
            faults,
            proofs,
            end: 16 + 10 * faults,
            fault: |_| true,
            defect: None,
            way,
        }
    }

    pub(crate) fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// What must happen before time goes on.
    fn is_due(&self, state: &State) -> bool {
        let now = state.now;
        let client_is_due = |(me, client): (Client, &Attempt)| match client {
            Attempt::Idle => now >= ASKED_BY,
            Attempt::Holds(hold) => now >= hold.valid_until,
            Attempt::SitsOut { until, .. } => now >= *until,
            _ => state.is_out_of_time(me),
        };
        let is_there =
            |parcel: &Parcel| now >= parcel.due && self.can_be_served(state, parcel.what);
        state.wire.iter().any(is_there) || state.clients.iter().enumerate().any(client_is_due)
    }

    /// Not a statement that waits for a row: that has to be committed first.
    fn can_be_served(&self, state: &State, what: What) -> bool {
        match what {
            What::Statement { statement, .. } => !state.servers.waits_for_the_row(self, statement),
            What::Answer { .. } | What::Commit { .. } | What::Wait { .. } => true,
        }
    }

    fn serve(&self, state: &mut State, what: What) -> Option<(Client, Tick, Answer)> {
        let (of, sent, statement) = match what {
            What::Statement {
                of,
                sent,
                statement,
            } => (of, sent, statement),
            What::Commit { of, sent, on } => return Some((of, sent, state.servers.commit(on))),
            What::Wait {
                of,
                sent,
                on,
                was_free,
            } => {
                let answer = state.servers.wait(self, state.now, on, was_free);
                return Some((of, sent, answer?));
            }
            What::Answer { .. } => return None,
        };
        // A new connection whose client has given it up is closed, and its lock goes with it.
        if let Statement::TakeAgain(on, _) = statement
            && !state.clients[of].takes_again_on(on)
        {
            return None;
        }
        if let Statement::StandInLine(on) = statement {
            let Some(was_free) = state.servers.take_if_free(self, on) else {
                return Some((of, sent, Answer::Broken));
            };
            state.put(What::Wait {
                of,
                sent,
                on,
                was_free,
            });
            return None;
        }
        let (answer, grants) = state.servers.run(self, state.now, of, statement);
        state.grant(grants);
        if let (Statement::LetGo(on, _), None) = (statement, answer) {
            state.put(What::Commit { of, sent, on });
        }
        Some((of, sent, answer?))
    }

    fn deliver(&self, state: &mut State, what: What) {
        let heard = match what {
            What::Statement { .. } | What::Commit { .. } | What::Wait { .. } => {
                self.serve(state, what)
            }
            What::Answer { to, sent, answer } => Some((to, sent, answer)),
        };
        if let Some((to, sent, answer)) = heard
            && state.clients[to].awaits() == Some(sent)
        {
            self.answered(state, to, answer);
        }
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        for connection in &state.servers.open {
            actions.push(Action::EndConnection(*connection));
            if state.servers.locks[connection.server] == Some(*connection) {
                actions.push(Action::TakeLockAway(*connection));
            }
        }
        if state.servers.primary == 0 {
            actions.push(Action::SwitchOver);
        }
        let is_row_free = state.servers.clearing.is_none();
        if state.servers.mark.owner.is_some() && !state.servers.mark.broken && is_row_free {
            actions.push(Action::Break);
        }
        for (me, client) in state.clients.iter().enumerate() {
            if client.asks_on().is_some() {
                actions.push(Action::GiveUp(me));
            }
            if !matches!(client, Attempt::Idle | Attempt::Ended | Attempt::Dead) {
                actions.push(Action::Die(me));
            }
        }
        for (index, parcel) in state.wire.iter().enumerate() {
            if !matches!(parcel.what, What::Answer { .. }) {
                if self.can_be_served(state, parcel.what) {
                    actions.push(Action::LoseAnswer(index));
                    actions.push(Action::DelayAnswer(index));
                }
                if !parcel.is_late {
                    actions.push(Action::Delay(index));
                }
            }
        }
    }

    fn go_wrong(&self, next: &mut State, fault: Action) {
        match fault {
            Action::EndConnection(connection) => next.end_connection(self, connection),
            Action::TakeLockAway(connection) => {
                let grants = next.servers.free(self, connection);
                next.grant(grants);
            }
            Action::SwitchOver => next.servers.primary = 1,
            Action::Break => {
                let grants = next.servers.break_lock(self);
                next.grant(grants);
            }
            Action::GiveUp(me) => self.abandon(next, me),
            Action::Die(me) => {
                next.clients[me] = Attempt::Dead;
                let its = |connection: &&Connection| connection.of == me;
                let its: Vec<_> = next.servers.open.iter().filter(its).copied().collect();
                for connection in its {
                    next.end_connection(self, connection);
                }
            }
            Action::Delay(index) => {
                let parcel = &mut next.wire[index];
                parcel.is_late = true;
                parcel.due = next.now + LATEST;
            }
            Action::LoseAnswer(index) => {
                let parcel = next.wire.remove(index);
                self.serve(next, parcel.what);
            }
            Action::DelayAnswer(index) => {
                let parcel = next.wire.remove(index);
                if let Some((to, sent, answer)) = self.serve(next, parcel.what) {
                    next.put(What::Answer { to, sent, answer });
                }
            }
            _ => {}
        }
    }
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            servers: Servers::new(),
            clients: [Attempt::Idle; CLIENTS],
            wire: Vec::new(),
            faults: self.faults,
            proofs: self.proofs,
            seen: 0,
            token_fell: false,
            sat_out: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (me, client) in state.clients.iter().enumerate() {
            match client {
                // In this order: who they are makes no difference.
                Attempt::Idle if me == 0 || state.clients[me - 1] != Attempt::Idle => {
                    actions.push(Action::Ask(me));
                    if self.way == Way::Takes {
                        actions.push(Action::AskInLine(me));
                    }
                }
                Attempt::SitsOut { until, .. } if state.now >= *until => {
                    actions.push(Action::LookAgain(me));
                }
                Attempt::Holds(hold) => {
                    actions.push(Action::Release(me));
                    if state.proofs > 0 && state.now < hold.valid_until {
                        actions.push(Action::Prove(me));
                    }
                }
                _ if state.is_out_of_time(me) => actions.push(Action::TimeOut(me)),
                _ => {}
            }
        }
        for (index, parcel) in state.wire.iter().enumerate() {
            if self.can_be_served(state, parcel.what) {
                actions.push(Action::Deliver(index));
            }
        }
        if state.faults > 0 {
            let mut faults = Vec::new();
            self.faults(state, &mut faults);
            actions.extend(faults.into_iter().filter(self.fault));
        }
        let goes_on = !state.is_over() || !state.wire.is_empty();
        if goes_on && state.now < self.end && !self.is_due(state) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Tick => next.now += 1,
            Action::Ask(me) => self.ask(&mut next, me, false),
            Action::AskInLine(me) => self.ask(&mut next, me, true),
            Action::LookAgain(me) => self.look_again(&mut next, me),
            Action::Prove(me) => {
                next.proofs -= 1;
                self.prove(&mut next, me);
            }
            Action::Release(me) => self.release(&mut next, me),
            Action::TimeOut(me) => self.fail(&mut next, me),
            Action::Deliver(index) => {
                let parcel = next.wire.remove(index);
                self.deliver(&mut next, parcel.what);
            }
            fault => {
                next.faults -= 1;
                self.go_wrong(&mut next, fault);
            }
        }
        next.tidy();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                let believes = |client: &&Attempt| {
                    client
                        .hold()
                        .is_some_and(|hold| state.now < hold.valid_until)
                };
                state.clients.iter().filter(believes).count() < 2
            }),
            Property::always(TOKENS_INCREASE, |_, state: &State| !state.token_fell),
            Property::always(IN_ORDER_IS_PROMPT, |rules: &Self, state: &State| {
                rules.faults > 0 || !state.sat_out
            }),
            Property::always(ALL_GET_IN, |rules: &Self, state: &State| {
                state.now < rules.end || state.is_over()
            }),
            Property::always(WAITERS_KNOW, |_, state: &State| {
                let waiters = state.servers.queues.iter().flatten();
                waiters.into_iter().all(|waiter| waiter.is_told)
            }),
        ]
    }
}

fn walk(rules: Rules) {
    let began = Instant::now();
    let checker = rules.checker().threads(2).spawn_dfs().join();
    println!(
        "{} states, {} of them different, in {:?}",
        checker.state_count(),
        checker.unique_state_count(),
        began.elapsed()
    );
    checker.assert_properties();
}

const WAYS: [Way; 3] = [
    Way::PeeksWhenTheWaitBegins,
    Way::PeeksAtTheGrant,
    Way::Takes,
];

#[test]
fn a_hold_on_a_connection_is_safe_without_faults() {
    for way in WAYS {
        walk(Rules::new(way, 0, 2));
    }
}

#[test]
fn a_hold_on_a_connection_is_safe_with_one_fault() {
    for way in WAYS {
        walk(Rules::new(way, 1, 1));
    }
}

/// Millions of states: `cargo test --release -p dlock-mysql --test model -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn a_hold_on_a_connection_is_safe_with_two_faults() {
    for way in WAYS {
        walk(Rules::new(way, 2, 1));
    }
}

/// Breaks a rule, and looks for what that does.
fn assert_found(defect: Defect, found_by: &'static str, rules: Rules) {
    let began = Instant::now();
    let way = rules.way;
    let rules = Rules {
        defect: Some(defect),
        ..rules
    };
    let checker = rules
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyOf([found_by].into()))
        .spawn_bfs()
        .join();
    println!(
        "{defect:?}: {} different states in {:?}",
        checker.unique_state_count(),
        began.elapsed()
    );
    assert!(
        checker.discovery(found_by).is_some(),
        "{defect:?} was not found by {found_by:?} ({way:?})"
    );
}

#[test]
fn each_rule_is_missed() {
    for (defect, found_by, faults) in [
        (Defect::NobodyWaits, ONE_HOLDER, 1),
        (Defect::LivesSoItLeftInOrder, ONE_HOLDER, 1),
        (Defect::CountsFromTheClaim, ONE_HOLDER, 1),
        (Defect::ProvesByTheConnectionAlone, ONE_HOLDER, 1),
        (Defect::ProvesByADemotedServer, ONE_HOLDER, 1),
        (Defect::BreakClearsTheMark, ONE_HOLDER, 1),
        (Defect::FreesBeforeItClears, IN_ORDER_IS_PROMPT, 0),
    ] {
        for way in WAYS {
            assert_found(defect, found_by, Rules::new(way, faults, 1));
        }
    }
}

/// What was read when the wait began may be long over.
#[test]
fn a_claim_names_the_version_that_it_has_seen() {
    let stale = Rules::new(Way::PeeksWhenTheWaitBegins, 1, 1);
    assert_found(Defect::ClaimsAnyVersion, ONE_HOLDER, stale);
}

#[test]
fn a_lock_is_taken_at_once_only_where_the_mark_has_no_owner() {
    let takes = Rules::new(Way::Takes, 1, 1);
    assert_found(Defect::TakesWhateverTheMark, ONE_HOLDER, takes);
}

/// A release frees the lock while its change of the mark is not committed yet. Whoever is granted the lock then waits for that, and for nothing else.
#[test]
fn a_release_has_the_row_of_the_mark_until_its_commit() {
    for defect in [Defect::TakesPastALockedRow, Defect::FreesBeforeItHasTheRow] {
        assert_found(defect, IN_ORDER_IS_PROMPT, Rules::new(Way::Takes, 0, 1));
    }
}

/// Else somebody takes it in between, and the waiter takes the silence of the server, which is that of a queue, for one that does not answer (C5).
#[test]
fn whoever_stands_in_line_takes_a_lock_that_is_free_as_it_looks() {
    let takes = Rules::new(Way::Takes, 0, 1);
    assert_found(Defect::LooksBeforeItWaits, WAITERS_KNOW, takes);
}

/// The answer to a question was late, and the connection ended meanwhile.
#[test]
fn a_hold_is_valid_from_the_sending() {
    for way in WAYS {
        let late = Rules {
            fault: |fault| matches!(fault, Action::DelayAnswer(_) | Action::EndConnection(_)),
            ..Rules::new(way, 2, 1)
        };
        assert_found(Defect::ValidFromTheAnswer, ONE_HOLDER, late);
    }
}
