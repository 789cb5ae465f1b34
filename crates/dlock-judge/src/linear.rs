//! Linearizability: is there an order of grants and ends, each at one moment between its question and its answer, that the lock allows?
//!
//! The search is [stateright](https://docs.rs/stateright)'s; here are the models and the way from lines to calls:
//!
//! - A hold that was released ends between the release's question and its answer. Any other hold ends at some moment after its holder stopped believing in it,
//!   so its end is a call without an answer.
//! - An attempt of unknown outcome, and a wait that was given up, may have held for a while without anybody knowing. So may a hold that ended
//!   otherwise than by its release. A "busy" near one of these says nothing and is left out; any other "busy" needs a holder.
//! - A lock that lingers at its client is held by nobody and busy all the same.
//! - So may one who still asks: it may have got the lock, lost it with its connection, and asked again, all within one call. And a reader may be
//!   refused because a writer waits (C19). So a "busy" while others ask says nothing either.

use std::collections::{BTreeMap, HashMap};

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use crate::exclusion;
use crate::history::{History, Line, Mode, Op, Phase};
use crate::holds::{End, Hold, holds};
use crate::report::{Finding, Kind};

/// Beyond its lease, for this long an attempt of unknown outcome may explain a "busy".
const SLACK: u64 = 2_000_000_000;

/// Who: process, attempt.
type Who = (u32, u64);

/// A lock as it should be: mutex, reentrant mutex, read-write lock and semaphore in one, since the modes say which.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Lock {
    holders: BTreeMap<Who, (Mode2, u32)>,
}

/// [`Mode`] with an order, for the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Mode2(Mode);

/// What is asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// To hold.
    Take(Who, Mode),
    /// To hold once more.
    Reenter(Who),
    /// From alone to shared.
    Downgrade(Who),
    /// One hold less.
    End(Who),
}

/// What it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Done,
    /// Somebody else holds.
    Busy,
}

impl Lock {
    fn admits(&self, mode: Mode) -> bool {
        let others = || self.holders.values().map(|(mode, _)| mode.0);
        match mode {
            Mode::Exclusive => self.holders.is_empty(),
            Mode::Shared => others().all(|other| other == Mode::Shared),
            Mode::Permit(limit) => {
                let room = u32::try_from(self.holders.len()).is_ok_and(|count| count < limit);
                room && others().all(|other| matches!(other, Mode::Permit(_)))
            }
        }
    }
}

impl SequentialSpec for Lock {
    type Op = Call;
    type Ret = Answer;

    fn invoke(&mut self, call: &Call) -> Answer {
        match call {
            Call::Take(who, mode) if self.admits(*mode) => {
                self.holders.insert(*who, (Mode2(*mode), 1));
            }
            Call::Take(..) => return Answer::Busy,
            Call::Reenter(who) => match self.holders.get_mut(who) {
                Some((_, count)) => *count += 1,
                None => return Answer::Busy,
            },
            Call::Downgrade(who) => match self.holders.get_mut(who) {
                Some((mode, _)) => *mode = Mode2(Mode::Shared),
                None => return Answer::Busy,
            },
            Call::End(who) => {
                if let Some((_, count)) = self.holders.get_mut(who) {
                    *count -= 1;
                    if *count == 0 {
                        self.holders.remove(who);
                    }
                }
            }
        }
        Answer::Done
    }
}

/// Looks at every lock.
#[must_use]
pub fn check(history: &History) -> Vec<Finding> {
    let all = holds(history);
    let mut findings = Vec::new();
    let beside = exclusion::check(history);
    for name in history.locks() {
        // Two at once have no order, and the search would go through all of them to find that out.
        if let Some(two) = beside.iter().find(|finding| finding.lock == name) {
            let why = "two held at once, so there is no order";
            findings.push(Finding::new(Kind::NotLinearizable, name, two.at, why));
            continue;
        }
        let own: Vec<&Hold> = all.iter().filter(|hold| hold.lock == name).collect();
        let mut events = events(history, name, &own);
        // At one moment answers come before questions: of two calls that only touch, the first one is the earlier.
        events.sort_by_key(|event| (event.at, matches!(event.what, What::Ask(_))));
        let first = events.first().map_or(0, |event| event.at);
        if let Some(why) = try_order(&events) {
            findings.push(Finding::new(Kind::NotLinearizable, name, first, why));
        }
    }
    findings
}

#[derive(Debug, Clone, Copy)]
enum What {
    Ask(Call),
    Tell(Answer),
}

#[derive(Debug, Clone, Copy)]
struct Event {
    at: u64,
    /// Which sequence of calls: one task, until a call of it has no answer.
    thread: (u32, u32, u64),
    what: What,
}

/// When a call began, when and how it was answered, by which task, and what it was.
type Timed = (u64, Option<(u64, Answer)>, (u32, u32), Call);

/// The calls and answers of one lock.
fn events(history: &History, name: &str, own: &[&Hold]) -> Vec<Event> {
    let lease = history.setup().lease.saturating_mul(1_000_000);
    let mut events = Vec::new();
    // After a call without an answer its task goes on as another thread.
    let mut lives: HashMap<(u32, u32), u64> = HashMap::new();
    let mut doubts = doubts(history, name, own, lease);
    doubts.sort_unstable();
    let asks = asks(history, name);
    let mut asked: HashMap<(Who, Op2), &Line> = HashMap::new();
    let mut calls: Vec<Timed> = Vec::new();
    for line in history.lines().iter().filter(|line| line.lock == name) {
        let who = (line.process, line.attempt);
        let task = (line.process, line.task);
        let Some(call) = call_of(line, who) else {
            continue;
        };
        let key = (who, Op2(line.op as u8));
        match line.phase {
            Phase::Invoke => _ = asked.insert(key, line),
            Phase::Ok | Phase::Fail => {
                let Some(begun) = asked.remove(&key).map(|line| line.at) else {
                    continue;
                };
                let busy = line.phase == Phase::Fail;
                let near = |&&(from, to): &&(u64, u64)| from <= line.at && to >= begun;
                let beside = asks.iter().any(|(other, one)| *other != who && near(&one));
                if busy && (line.op != Op::Try || beside || doubts.iter().any(|one| near(&one))) {
                    continue;
                }
                let answer = if busy { Answer::Busy } else { Answer::Done };
                calls.push((begun, Some((line.at, answer)), task, call));
            }
            // It may have let readers in, at any time from then on.
            Phase::Unknown if line.op == Op::Downgrade => {
                let begun = asked.remove(&key).map_or(line.at, |line| line.at);
                calls.push((begun, None, task, call));
            }
            _ => {}
        }
    }
    for hold in own {
        let call = Call::End((hold.process, hold.attempt));
        let task = (hold.process, hold.task);
        calls.push(match hold.end {
            End::Released(from, to) => (from, Some((to, Answer::Done)), task, call),
            End::Other => (hold.until, None, task, call),
        });
    }
    calls.sort_by_key(|call| call.0);
    for (begun, answer, task, call) in calls {
        let life = lives.entry(task).or_default();
        let thread = match (answer, call) {
            // It ended by itself, perhaps while its holder was asking something.
            (None, Call::End((process, attempt))) => (process, u32::MAX, attempt),
            _ => (task.0, task.1, *life),
        };
        events.push(Event {
            at: begun,
            thread,
            what: What::Ask(call),
        });
        match answer {
            Some((at, answer)) => events.push(Event {
                at,
                thread,
                what: What::Tell(answer),
            }),
            None if thread.1 == task.1 => *life += 1,
            None => {}
        }
    }
    events
}

/// The kind of a line, as part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Op2(u8);

fn call_of(line: &Line, who: Who) -> Option<Call> {
    match line.op {
        Op::Acquire | Op::Try => Some(Call::Take(who, line.mode.unwrap_or(Mode::Exclusive))),
        Op::Reenter => Some(Call::Reenter(who)),
        Op::Leave => Some(Call::End(who)),
        Op::Downgrade => Some(Call::Downgrade(who)),
        _ => None,
    }
}

/// Times in which somebody asked.
fn asks(history: &History, name: &str) -> Vec<(Who, (u64, u64))> {
    let mut open = HashMap::new();
    let mut times = Vec::new();
    for line in history.lines().iter().filter(|line| line.lock == name) {
        if !matches!(line.op, Op::Acquire | Op::Try) {
            continue;
        }
        let who = (line.process, line.attempt);
        match line.phase {
            Phase::Invoke => _ = open.insert(who, line.at),
            _ => times.extend(open.remove(&who).map(|from| (who, (from, line.at)))),
        }
    }
    let never = open.into_iter().map(|(who, from)| (who, (from, u64::MAX)));
    times.extend(never);
    times
}

/// Times in which somebody may have held without anybody's knowing.
fn doubts(history: &History, name: &str, own: &[&Hold], lease: u64) -> Vec<(u64, u64)> {
    let mut doubts: Vec<_> = own
        .iter()
        .filter(|hold| hold.end == End::Other)
        .map(|hold| (hold.until, hold.until.saturating_add(lease + SLACK)))
        .collect();
    let linger = history.setup().linger.saturating_mul(1_000_000);
    if linger > 0 {
        // Its client may have kept it, and then it was given back, which may have been in doubt.
        let kept = own.iter().filter(|hold| hold.end != End::Other);
        doubts.extend(kept.map(|hold| (hold.until, hold.until.saturating_add(linger + lease))));
    }
    let mut asked = HashMap::new();
    let lines = history.lines().iter();
    for line in lines.filter(|line| line.lock == name) {
        let key = (line.process, line.attempt, line.op as u8);
        match (line.op, line.phase) {
            (Op::Acquire | Op::Try | Op::Downgrade, Phase::Invoke) => {
                asked.insert(key, line.at);
            }
            (Op::Try, Phase::Fail) | (Op::Acquire | Op::Try | Op::Downgrade, Phase::Ok) => {
                asked.remove(&key);
            }
            (Op::Acquire | Op::Try | Op::Downgrade, _) => {
                let from = asked.remove(&key).unwrap_or(line.at);
                doubts.push((from, line.at.saturating_add(lease + SLACK)));
            }
            _ => {}
        }
    }
    // Whoever was killed while it asked.
    doubts.extend(asked.into_values().map(|from| (from, u64::MAX)));
    doubts
}

/// Why there is no order, if there is none.
fn try_order(events: &[Event]) -> Option<String> {
    let mut tester = LinearizabilityTester::new(Lock::default());
    for event in events {
        let told = match event.what {
            What::Ask(call) => tester.on_invoke(event.thread, call).map(drop),
            What::Tell(answer) => tester.on_return(event.thread, answer).map(drop),
        };
        if let Err(why) = told {
            let short: String = why.chars().take(200).collect();
            return Some(format!("not a history: {short}"));
        }
    }
    // The search calls itself once for each call.
    let search = move || tester.is_consistent();
    let found = std::thread::Builder::new()
        .stack_size(256 << 20)
        .spawn(search)
        .map(|thread| thread.join().unwrap_or(false));
    match found {
        Ok(true) => None,
        Ok(false) => Some(format!("{} calls and answers have no order", events.len())),
        Err(error) => Some(format!("no thread for the search: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Script;

    fn bad(script: &Script) -> bool {
        !check(&script.history()).is_empty()
    }

    #[test]
    fn a_mutex_that_goes_round_is_good_and_two_grants_without_an_end_are_not() {
        let mut script = Script::new();
        for n in 1..=40_u64 {
            let process = u32::try_from(n % 3).unwrap_or(0) + 1;
            script.hold(process, "m", Mode::Exclusive, n * 10, n, Some(n * 10 + 100));
            script.release(n * 10 + 5, n * 10 + 7);
        }
        assert!(!bad(&script));
        script.hold(1, "m", Mode::Exclusive, 999, 90, Some(2_000));
        script.hold(2, "m", Mode::Exclusive, 1_005, 91, Some(2_000));
        assert!(bad(&script));
    }

    #[test]
    fn a_waiter_that_asks_early_and_gets_it_after_the_release_is_good() {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 1, Some(1_000));
        script.release(100, 120);
        script.ask(2, Op::Acquire, "m", Mode::Exclusive, 20);
        script.answer(110, Phase::Ok, Some(2), Some(1_000));
        assert!(!bad(&script));
        script.ask(3, Op::Acquire, "m", Mode::Exclusive, 30);
        script.answer(115, Phase::Ok, Some(3), Some(1_000));
        assert!(bad(&script), "the second one holds on");
    }

    #[test]
    fn a_lock_that_lingers_is_busy_for_so_long() {
        let busy_at = |at: u64, linger: u64| {
            let mut script = Script::new();
            script.setup_with(true, false, linger);
            script.hold(1, "m", Mode::Exclusive, 10, 1, Some(1_000));
            script.release(100, 120);
            script.ask(2, Op::Try, "m", Mode::Exclusive, at);
            script.answer(at + 10, Phase::Fail, None, None);
            bad(&script)
        };
        assert!(busy_at(200, 0), "nobody held");
        assert!(!busy_at(200, 50), "it may linger");
        // A second of lease for a release in doubt, and 50 ms.
        assert!(busy_at(1_051_000_000, 50), "not for so long");
    }

    #[test]
    fn busy_needs_a_holder() {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 1, Some(1_000));
        script.release(100, 120);
        script.ask(2, Op::Try, "m", Mode::Exclusive, 50);
        script.answer(60, Phase::Fail, None, None);
        assert!(!bad(&script));
        script.ask(2, Op::Try, "m", Mode::Exclusive, 200);
        script.answer(210, Phase::Fail, None, None);
        assert!(bad(&script), "nobody held");
        script.ask(3, Op::Acquire, "m", Mode::Exclusive, 150);
        script.answer(190, Phase::Unknown, None, None);
        assert!(!bad(&script), "somebody may have");
    }

    #[test]
    fn a_reentrant_mutex_is_free_after_its_last_end_and_not_before() {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 1, Some(1_000));
        script.pair(Op::Reenter, 20, 30);
        script.pair(Op::Leave, 40, 50);
        script.release(60, 70);
        script.hold(2, "m", Mode::Exclusive, 71, 2, Some(1_000));
        assert!(!bad(&script));
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 1, Some(1_000));
        script.pair(Op::Reenter, 20, 30);
        script.pair(Op::Leave, 40, 50);
        let last = script.history();
        script.hold(2, "m", Mode::Exclusive, 55, 2, Some(1_000));
        assert!(bad(&script), "{}", last.to_text());
    }

    #[test]
    fn readers_share_a_downgrade_lets_them_in_and_a_writer_waits() {
        let mut script = Script::new();
        script.hold(1, "r", Mode::Exclusive, 10, 1, Some(1_000));
        script.pair(Op::Downgrade, 20, 30);
        script.release(60, 70);
        script.hold(2, "r", Mode::Shared, 35, 2, Some(1_000));
        assert!(!bad(&script));
        script.hold(3, "r", Mode::Exclusive, 80, 3, Some(1_000));
        assert!(bad(&script), "a reader is still there");
    }

    #[test]
    fn one_who_still_asks_may_have_held_in_silence() {
        let mut script = Script::new();
        script.ask(2, Op::Try, "m", Mode::Exclusive, 30);
        script.answer(40, Phase::Fail, None, None);
        assert!(bad(&script), "nobody held");
        script.ask(1, Op::Acquire, "m", Mode::Exclusive, 20);
        script.answer(900, Phase::Ok, Some(2), Some(3_000));
        script.hold(3, "m", Mode::Exclusive, 100, 1, Some(1_000));
        script.release(200, 210);
        assert!(!bad(&script));
    }

    #[test]
    fn a_reader_may_be_refused_behind_a_writer_that_waits() {
        let mut script = Script::new();
        script.hold(1, "r", Mode::Shared, 10, 1, Some(1_000));
        script.ask(2, Op::Try, "r", Mode::Shared, 30);
        script.answer(40, Phase::Fail, None, None);
        assert!(bad(&script), "readers share");
        script.ask(3, Op::Acquire, "r", Mode::Exclusive, 20);
        script.answer(2_000, Phase::Ok, Some(2), Some(3_000));
        assert!(!bad(&script));
    }

    #[test]
    fn a_downgrade_of_unknown_outcome_may_let_readers_in() {
        let mut script = Script::new();
        script.hold(1, "r", Mode::Exclusive, 10, 1, Some(1_000));
        script.pair(Op::Downgrade, 20, 30);
        let mut lines = script.history().lines().to_vec();
        let last = lines.iter_mut().find(|line| line.at == 30);
        last.expect("the answer").phase = Phase::Unknown;
        let mut script = Script::new();
        lines.into_iter().for_each(|line| script.push(line));
        script.ask(2, Op::Try, "r", Mode::Shared, 40);
        script.answer(50, Phase::Ok, Some(2), Some(1_000));
        assert!(!bad(&script), "{:?}", check(&script.history()));
    }

    #[test]
    fn a_hold_may_end_while_its_downgrade_is_under_way() {
        let mut script = Script::new();
        script.hold(1, "r", Mode::Exclusive, 10, 1, Some(25));
        script.pair(Op::Downgrade, 20, 30);
        script.hold(1, "r", Mode::Exclusive, 50, 2, Some(1_000));
        assert!(!bad(&script), "{:?}", check(&script.history()));
    }

    #[test]
    fn a_semaphore_gives_what_it_has() {
        let mut script = Script::new();
        script.hold(1, "p", Mode::Permit(2), 10, 1, Some(1_000));
        script.hold(2, "p", Mode::Permit(2), 20, 2, Some(1_000));
        script.ask(3, Op::Try, "p", Mode::Permit(2), 30);
        script.answer(40, Phase::Fail, None, None);
        assert!(!bad(&script));
        script.hold(4, "p", Mode::Permit(2), 50, 3, Some(1_000));
        assert!(bad(&script), "one too many");
    }

    #[test]
    fn a_hold_that_expired_may_pass_on_and_not_before() {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 1, Some(100));
        script.hold(2, "m", Mode::Exclusive, 110, 2, Some(200));
        assert!(!bad(&script));
        script.hold(3, "m", Mode::Exclusive, 150, 3, Some(300));
        assert!(bad(&script));
    }
}
