//! The servers, and what each statement does there: all of it at once. In mode `session` a mark is changed by another connection than the one that has
//! the lock, so a change can be late; in mode `advisory` it is mostly the same one ([`Way`]), and a release frees the lock before its change of the mark is
//! committed, with the row of the mark locked from before the one until after the other ([`Clearing`]).

use crate::{Defect, Rules, VALID, Way};

/// How many want the lock.
pub(crate) const CLIENTS: usize = 2;
pub(crate) type Client = usize;
pub(crate) type Tick = u8;
pub(crate) type Stamp = u8;
pub(crate) type Fence = u8;

/// A connection that carries a hold, by its call sign: whose it is, and which one of its.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Connection {
    pub(crate) of: Client,
    pub(crate) number: u8,
    /// The server that it was opened to.
    pub(crate) server: usize,
}

/// Two servers: the second one is promoted in a switch-over. Marks are replicated, locks are not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Servers {
    pub(crate) primary: usize,
    /// Who has the lock of each server, and who waits for it there.
    pub(crate) locks: [Option<Connection>; 2],
    pub(crate) queues: [Vec<Waiter>; 2],
    /// The connections that the servers know.
    pub(crate) open: Vec<Connection>,
    pub(crate) mark: Mark,
    /// advisory: who has cleared the mark, and not committed that yet. It has the row of the mark locked.
    pub(crate) clearing: Option<Clearing>,
}

/// A release between the moment in which it frees the lock and its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Clearing {
    pub(crate) on: Connection,
    fence: Fence,
}

/// A connection in the server's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Waiter {
    pub(crate) on: Connection,
    /// The version of the mark, if it had no owner when the wait began.
    free_then: Option<Stamp>,
    /// Whether the server has told it that others have the lock: what it waits for is them then, and not a server that says nothing.
    pub(crate) is_told: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Mark {
    pub(crate) stamp: Stamp,
    pub(crate) fence: Fence,
    pub(crate) owner: Option<Client>,
    pub(crate) broken: bool,
    pub(crate) connection: Option<Connection>,
    pub(crate) claimed_at: Tick,
    /// When somebody began to count the time of an owner that did not leave in order.
    pub(crate) dead_at: Option<Tick>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Statement {
    // On the connection that carries the hold.
    Grab(Connection),
    /// advisory: takes the lock if it is free, tells at once whether it was, and waits for it otherwise.
    StandInLine(Connection),
    /// advisory: takes the lock if it is free and the mark has no owner, and makes the mark its own. Or, of one that has the lock, the latter alone.
    Take(Connection),
    Look(Connection),
    Prove(Connection, Fence),
    LetGo(Connection, Fence),
    /// Of a hold whose connection broke: to take the lock on a new one, without waiting, and to look at the mark.
    TakeAgain(Connection, Fence),
    // On any other connection.
    Count(Stamp),
    Claim(Connection, Stamp),
    End(Connection),
    Move(Connection, Stamp),
    Clear(Fence),
    Undo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// The lock is this connection's; with the version of a mark that had no owner, when it was read.
    Granted(Option<Stamp>),
    Seen(Seen),
    Proof(Proof),
    Claimed(Fence),
    /// The mark is another version than the statement named.
    Changed,
    Done,
    /// The connection has ended, or its server was demoted.
    Broken,
    /// Others have the lock, or the mark has an owner; the mark is as it was.
    Busy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Seen {
    pub(crate) stamp: Stamp,
    pub(crate) standing: Standing,
}

/// What a mark says to somebody who has the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Standing {
    LeftInOrder,
    Own(Fence),
    /// It did not leave in order: how much is left of the time in which it may believe to hold, if somebody counts.
    Other(Option<Tick>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Proof {
    Holds,
    Disturbed,
    Gone,
}

/// Answers to waiters in the server's queue: to whom, and what each of them knows about the mark.
pub(crate) type Grants = Vec<(Client, Option<Stamp>)>;

impl Servers {
    pub(crate) fn new() -> Self {
        Self {
            primary: 0,
            locks: [None; 2],
            queues: [const { Vec::new() }; 2],
            open: Vec::new(),
            mark: Mark {
                stamp: 0,
                fence: 0,
                owner: None,
                broken: false,
                connection: None,
                claimed_at: 0,
                dead_at: None,
            },
            clearing: None,
        }
    }

    pub(crate) fn is_open(&self, connection: Connection) -> bool {
        self.open.contains(&connection)
    }

    /// The server gives a lock to the next waiter the moment it is free, and nobody asks the one who had it.
    pub(crate) fn free(&mut self, rules: &Rules, connection: Connection) -> Grants {
        let server = connection.server;
        if self.locks[server] != Some(connection) {
            return Vec::new();
        }
        self.locks[server] = None;
        if self.queues[server].is_empty() {
            return Vec::new();
        }
        let next = self.queues[server].remove(0);
        self.locks[server] = Some(next.on);
        let peek = match rules.way {
            Way::PeeksWhenTheWaitBegins => next.free_then,
            Way::PeeksAtTheGrant => self.free_version(rules),
            Way::Takes => None,
        };
        vec![(next.on.of, peek)]
    }

    fn free_version(&self, rules: &Rules) -> Option<Stamp> {
        self.left_in_order(rules).then_some(self.mark.stamp)
    }

    /// A connection ends, and its lock with it.
    pub(crate) fn end(&mut self, rules: &Rules, connection: Connection) -> Grants {
        self.open.retain(|open| *open != connection);
        self.queues[connection.server].retain(|waiter| waiter.on != connection);
        // What it had not committed is undone.
        self.clearing = self.clearing.filter(|clearing| clearing.on != connection);
        self.free(rules, connection)
    }

    /// The evidence that whoever had the lock before does not believe to hold it: it has cleared its mark itself, in the request that frees the lock
    /// or after its connection was ended. This is the one rule that a clean release stands on.
    fn left_in_order(&self, rules: &Rules) -> bool {
        let lives = self.mark.connection.is_some_and(|one| self.is_open(one));
        self.mark.owner.is_none()
            || rules.has(Defect::NobodyWaits)
            || rules.has(Defect::LivesSoItLeftInOrder) && lives
    }

    fn standing(&self, rules: &Rules, me: Client, now: Tick) -> Standing {
        let mark = &self.mark;
        if mark.owner == Some(me) {
            return Standing::Own(mark.fence);
        }
        if self.left_in_order(rules) {
            return Standing::LeftInOrder;
        }
        let since = if rules.has(Defect::CountsFromTheClaim) {
            Some(mark.claimed_at)
        } else {
            mark.dead_at
        };
        Standing::Other(since.map(|since| (since + VALID).saturating_sub(now)))
    }

    /// Runs a statement: its answer, if it has one now, and whom the server has given the lock.
    pub(crate) fn run(
        &mut self,
        rules: &Rules,
        now: Tick,
        me: Client,
        statement: Statement,
    ) -> (Option<Answer>, Grants) {
        let mut grants = Vec::new();
        let answer = match statement {
            Statement::Grab(on) => return (self.grab(rules, now, on, true), grants),
            // In two halves: see `Rules::serve`.
            Statement::StandInLine(_) => return (None, grants),
            Statement::Take(on) => self.take(rules, now, on),
            Statement::Look(on) if self.is_open(on) => Answer::Seen(Seen {
                stamp: self.mark.stamp,
                standing: self.standing(rules, me, now),
            }),
            Statement::Prove(on, fence) => self.prove(rules, on, fence),
            // session: "{clear}; COMMIT". A server that was demoted refuses it.
            Statement::LetGo(on, fence) if self.is_open(on) && on.server == self.primary => {
                grants = self.free(rules, on);
                match rules.way {
                    _ if rules.has(Defect::FreesBeforeItClears) => {}
                    // advisory_release.sql: the answer comes with the commit.
                    Way::Takes if self.is_mark_of(fence) => {
                        self.clearing = Some(Clearing { on, fence });
                        return (None, grants);
                    }
                    _ => self.clear(fence),
                }
                Answer::Done
            }
            Statement::TakeAgain(on, fence) => self.take_again(on, fence),
            // mark_dead.sql: "WHERE id = ? AND stamp = ? AND dead_at IS NULL"
            Statement::Count(stamp) => {
                if self.mark.stamp == stamp {
                    self.mark.dead_at.get_or_insert(now);
                }
                Answer::Done
            }
            // mark_claim.sql: "WHERE id = ? AND stamp = ? AND {writable}"
            Statement::Claim(on, stamp)
                if self.mark.stamp == stamp || rules.has(Defect::ClaimsAnyVersion) =>
            {
                self.claim(now, on)
            }
            // "KILL IS_USED_LOCK(…)": the primary does not know the connections of another server.
            Statement::End(on) => {
                if on.server == self.primary {
                    grants = self.end(rules, on);
                }
                Answer::Done
            }
            // mark_move.sql
            Statement::Move(on, stamp) if self.mark.stamp == stamp => {
                self.mark.stamp += 1;
                self.mark.connection = Some(on);
                self.mark.dead_at = None;
                Answer::Done
            }
            Statement::Claim(..) | Statement::Move(..) => Answer::Changed,
            Statement::Clear(fence) => {
                self.clear(fence);
                Answer::Done
            }
            // mark_abandon.sql: "WHERE … owner = ?"
            Statement::Undo => {
                if self.mark.owner == Some(me) {
                    self.disown();
                }
                Answer::Done
            }
            Statement::Look(_) | Statement::LetGo(..) => Answer::Broken,
        };
        (Some(answer), grants)
    }

    fn takes_statements_of(&self, on: Connection) -> bool {
        self.is_open(on) && on.server == self.primary
    }

    /// wait.rs, the first half of the request: takes the lock if it is free, and tells whether it was. `None` when the server does not answer.
    pub(crate) fn take_if_free(&mut self, rules: &Rules, on: Connection) -> Option<bool> {
        if !self.takes_statements_of(on) {
            return None;
        }
        let is_free = self.locks[on.server].is_none();
        if is_free && !rules.has(Defect::LooksBeforeItWaits) {
            self.locks[on.server] = Some(on);
        }
        Some(is_free)
    }

    /// The second half: waits, unless the first has taken the lock. Other statements may have come in between.
    pub(crate) fn wait(
        &mut self,
        rules: &Rules,
        now: Tick,
        on: Connection,
        was_free: bool,
    ) -> Option<Answer> {
        if was_free && self.takes_statements_of(on) && !rules.has(Defect::LooksBeforeItWaits) {
            return Some(Answer::Granted(None));
        }
        self.grab(rules, now, on, !was_free)
    }

    fn grab(&mut self, rules: &Rules, now: Tick, on: Connection, is_told: bool) -> Option<Answer> {
        if !self.takes_statements_of(on) {
            return Some(Answer::Broken);
        }
        if self.locks[on.server].is_some() {
            let free_then = self.free_version(rules);
            let waiter = Waiter {
                on,
                free_then,
                is_told,
            };
            self.queues[on.server].push(waiter);
            return None;
        }
        self.locks[on.server] = Some(on);
        let in_order = self.standing(rules, on.of, now) == Standing::LeftInOrder;
        Some(Answer::Granted(in_order.then_some(self.mark.stamp)))
    }

    /// advisory_take.sql: the row of the mark is locked while the owner is looked at, the lock taken and the mark written.
    fn take(&mut self, rules: &Rules, now: Tick, on: Connection) -> Answer {
        if !self.is_open(on) || on.server != self.primary {
            return Answer::Broken;
        }
        let looks_at_the_owner = !rules.has(Defect::TakesWhateverTheMark);
        let others_have_it = self.locks[on.server].is_some_and(|lock| lock != on);
        if others_have_it || looks_at_the_owner && !self.left_in_order(rules) {
            return Answer::Busy;
        }
        self.locks[on.server] = Some(on);
        self.claim(now, on)
    }

    fn claim(&mut self, now: Tick, on: Connection) -> Answer {
        let fence = self.mark.fence + 1;
        self.mark = Mark {
            stamp: self.mark.stamp + 1,
            fence,
            owner: Some(on.of),
            broken: false,
            connection: Some(on),
            claimed_at: now,
            dead_at: None,
        };
        Answer::Claimed(fence)
    }

    /// "whether this connection has the lock on a server that takes writes, and whether the mark is ours"
    fn prove(&self, rules: &Rules, on: Connection, fence: Fence) -> Answer {
        if !self.is_open(on) {
            return Answer::Broken;
        }
        if rules.has(Defect::ProvesByTheConnectionAlone) {
            return Answer::Proof(Proof::Holds);
        }
        if on.server != self.primary {
            // It still has the lock of its own server, and the mark as that knows it.
            let takes_its_word = rules.has(Defect::ProvesByADemotedServer);
            return if takes_its_word {
                Answer::Proof(Proof::Holds)
            } else {
                Answer::Broken
            };
        }
        let has_lock = self.locks[on.server] == Some(on);
        let nobody_counts = self.mark.dead_at.is_none();
        Answer::Proof(match self.is_live(on.of, fence) {
            false => Proof::Gone,
            true if has_lock && nobody_counts => Proof::Holds,
            true => Proof::Disturbed,
        })
    }

    fn is_live(&self, owner: Client, fence: Fence) -> bool {
        self.mark.owner == Some(owner) && self.mark.fence == fence && !self.mark.broken
    }

    /// Grabs the lock without waiting, and looks at the mark.
    fn take_again(&mut self, on: Connection, fence: Fence) -> Answer {
        if on.server != self.primary {
            return Answer::Broken;
        }
        let is_live = self.is_live(on.of, fence);
        if !is_live {
            return Answer::Proof(Proof::Gone);
        }
        if self.locks[on.server].is_some() {
            return Answer::Busy;
        }
        self.open.push(on);
        self.open.sort();
        self.locks[on.server] = Some(on);
        Answer::Granted(Some(self.mark.stamp))
    }

    /// mark_clear.sql: "WHERE id = … AND fence = … AND owner IS NOT NULL AND broken = 0"
    fn clear(&mut self, fence: Fence) {
        if self.is_mark_of(fence) {
            self.disown();
        }
    }

    fn is_mark_of(&self, fence: Fence) -> bool {
        self.mark.fence == fence && self.mark.owner.is_some() && !self.mark.broken
    }

    /// The end of a release: the change of the mark is there for all, and the row is not locked any more.
    pub(crate) fn commit(&mut self, on: Connection) -> Answer {
        let Some(clearing) = self.clearing.filter(|clearing| clearing.on == on) else {
            return Answer::Broken;
        };
        self.clearing = None;
        if on.server != self.primary {
            return Answer::Broken;
        }
        self.clear(clearing.fence);
        Answer::Done
    }

    /// Whether a statement has to wait for the row of the mark, which a release has locked until its commit. A look does not.
    pub(crate) fn waits_for_the_row(&self, rules: &Rules, statement: Statement) -> bool {
        let has_it = |clearing: Clearing| clearing.on.server == self.primary;
        let changes_the_mark = match statement {
            Statement::Take(_) => !rules.has(Defect::TakesPastALockedRow),
            Statement::LetGo(..) | Statement::Count(_) | Statement::Claim(..) => true,
            Statement::Move(..) | Statement::Clear(_) | Statement::Undo => true,
            Statement::Grab(_) | Statement::StandInLine(_) => false,
            Statement::Look(_) | Statement::Prove(..) => false,
            Statement::TakeAgain(..) | Statement::End(_) => false,
        };
        changes_the_mark
            && !rules.has(Defect::FreesBeforeItHasTheRow)
            && self.clearing.is_some_and(has_it)
    }

    fn disown(&mut self) {
        self.mark.stamp += 1;
        self.mark.owner = None;
        self.mark.dead_at = None;
    }

    /// mark_break.sql, and the end of the connection that the mark names.
    pub(crate) fn break_lock(&mut self, rules: &Rules) -> Grants {
        let connection = self.mark.connection;
        if rules.has(Defect::BreakClearsTheMark) {
            self.disown();
        } else {
            self.mark.stamp += 1;
            self.mark.broken = true;
        }
        connection.map_or_else(Vec::new, |connection| self.end(rules, connection))
    }
}
