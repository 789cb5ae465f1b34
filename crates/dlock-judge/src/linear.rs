//! Linearizability: is there an order of grants and ends, each at one moment between its question and its answer, that the lock allows?
//!
//! The search is that of [porcupine](https://docs.rs/porcupine-rs), which remembers what it has tried: many tasks that wait for one lock have more orders than
//! can be tried. Here are the model and the way from lines to calls:
//!
//! - A hold that was released ends between the release's question and its answer. Any other hold ends at some moment after its holder stopped believing in it,
//!   so its end is a call without an answer.
//! - An attempt of unknown outcome, and a wait that was given up, may have held for a while without anybody knowing. So may a hold that ended
//!   otherwise than by its release. A "busy" near one of these says nothing and is left out; any other "busy" needs a holder.
//! - A lock that lingers at its client is held by nobody and busy all the same.
//! - So may one who still asks: it may have got the lock, lost it with its connection, and asked again, all within one call. And a reader may be
//!   refused because a writer waits (C19). So a "busy" while others ask says nothing either.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use porcupine_rs::{CheckResult, Model, Operation, check_operations_timeout};

use crate::exclusion;
use crate::history::{History, Line, Mode, Op, Phase};
use crate::holds::{End, Hold, holds};
use crate::report::{Finding, Kind};

/// Beyond its lease, for this long an attempt of unknown outcome may explain a "busy".
const SLACK: u64 = 2_000_000_000;

/// A search that takes longer has met a history that it was not made for, and says so: nothing waits for it for ever.
const LONGEST_SEARCH: Duration = Duration::from_secs(60);

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

impl Lock {
    /// What it says to this call, and what it is then.
    fn answer(&mut self, call: Call) -> Answer {
        match call {
            Call::Take(who, mode) if self.admits(mode) => {
                self.holders.insert(who, (Mode2(mode), 1));
            }
            Call::Take(..) => return Answer::Busy,
            Call::Reenter(who) => match self.holders.get_mut(&who) {
                Some((_, count)) => *count += 1,
                None => return Answer::Busy,
            },
            Call::Downgrade(who) => match self.holders.get_mut(&who) {
                Some((mode, _)) => *mode = Mode2(Mode::Shared),
                None => return Answer::Busy,
            },
            Call::End(who) => {
                if let Some((_, count)) = self.holders.get_mut(&who) {
                    *count -= 1;
                    if *count == 0 {
                        self.holders.remove(&who);
                    }
                }
            }
        }
        Answer::Done
    }
}

impl Model for Lock {
    type State = Self;
    /// A call and what was answered; none: nobody knows what.
    type Op = (Call, Option<Answer>);
    type Metadata = ();

    fn init() -> Self {
        Self::default()
    }

    fn step(state: &Self, (call, told): &Self::Op) -> (bool, Self) {
        let mut next = state.clone();
        let answer = next.answer(*call);
        (told.is_none_or(|told| told == answer), next)
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
        let calls = calls(history, name, &own);
        let first = calls.iter().map(|call| call.begun).min().unwrap_or(0);
        if let Some(why) = try_order(&calls) {
            findings.push(Finding::new(Kind::NotLinearizable, name, first, why));
        }
    }
    findings
}

/// A call: when it was made, when and how it was answered, if it was.
#[derive(Debug, Clone, Copy)]
struct Timed {
    begun: u64,
    answer: Option<(u64, Answer)>,
    call: Call,
}

/// The calls of one lock.
fn calls(history: &History, name: &str, own: &[&Hold]) -> Vec<Timed> {
    let lease = history.setup().lease.saturating_mul(1_000_000);
    let mut doubts = doubts(history, name, own, lease);
    doubts.sort_unstable();
    let asks = asks(history, name);
    let mut asked: HashMap<(Who, Op2), &Line> = HashMap::new();
    let mut calls = Vec::new();
    for line in history.lines().iter().filter(|line| line.lock == name) {
        let who = (line.process, line.attempt);
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
                calls.push(Timed {
                    begun,
                    answer: Some((line.at, answer)),
                    call,
                });
            }
            // It may have let readers in, at any time from then on.
            Phase::Unknown if line.op == Op::Downgrade => {
                let begun = asked.remove(&key).map_or(line.at, |line| line.at);
                calls.push(Timed {
                    begun,
                    answer: None,
                    call,
                });
            }
            _ => {}
        }
    }
    calls.extend(own.iter().map(|hold| {
        let call = Call::End((hold.process, hold.attempt));
        let (begun, answer) = match hold.end {
            End::Released(from, to) => (from, Some((to, Answer::Done))),
            // It ended by itself, perhaps while its holder was asking something.
            End::Other => (hold.may_end_from(), None),
        };
        Timed {
            begun,
            answer,
            call,
        }
    }));
    calls
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
        .map(|hold| {
            (
                hold.may_end_from(),
                hold.until.saturating_add(lease + SLACK),
            )
        })
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
fn try_order(calls: &[Timed]) -> Option<String> {
    // At one moment answers come before questions: of two calls that only touch, the first one is the earlier.
    let mut moments: Vec<(u64, bool)> = Vec::new();
    for call in calls {
        moments.push((call.begun, true));
        moments.extend(call.answer.map(|(at, _)| (at, false)));
    }
    moments.sort_unstable();
    moments.dedup();
    let rank = |at, is_question| {
        let place = moments.partition_point(|moment| *moment < (at, is_question));
        i64::try_from(place).unwrap_or(i64::MAX)
    };
    let operations: Vec<Operation<Lock>> = calls
        .iter()
        .map(|call| Operation {
            client_id: None,
            call_time: rank(call.begun, true),
            return_time: call.answer.map_or(i64::MAX, |(at, _)| rank(at, false)),
            op: (call.call, call.answer.map(|(_, answer)| answer)),
            metadata: None,
        })
        .collect();
    match check_operations_timeout(&operations, LONGEST_SEARCH) {
        CheckResult::Ok => None,
        CheckResult::Illegal => Some(format!("{} calls have no order", calls.len())),
        CheckResult::Unknown => Some(format!(
            "whether {} calls have an order was not known after {LONGEST_SEARCH:?}",
            calls.len()
        )),
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
    fn a_hold_that_was_over_when_it_was_told_has_ended_at_any_time_before() {
        let history = |until| {
            let mut script = Script::new();
            script.ask(1, Op::Acquire, "m", Mode::Exclusive, 10);
            script.answer(100, Phase::Ok, Some(1), Some(until));
            script.hold(2, "m", Mode::Exclusive, 50, 2, Some(200));
            script.release(120, 130);
            script
        };
        assert!(!bad(&history(0)), "a process was stopped behind its grant");
        assert!(bad(&history(110)), "both held");
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

    /// A search that does not remember what it tried goes through every order of the readers, and does not come to an end.
    #[test]
    fn a_crowd_without_an_order_is_found() {
        let mut script = Script::new();
        for round in 0..20_u64 {
            for reader in 0..9_u64 {
                let begun = round * 1_000 + reader;
                let (process, token) = (u32::try_from(reader).unwrap_or(0) + 1, round * 9 + reader);
                script.ask(process, Op::Acquire, "r", Mode::Shared, begun);
                script.answer(
                    begun + 500,
                    Phase::Ok,
                    Some(token + 1),
                    Some(begun + 900_000),
                );
                script.release(begun + 600, begun + 700);
            }
        }
        assert!(!bad(&script));
        script.ask(10, Op::Try, "r", Mode::Exclusive, 21_000);
        script.answer(21_001, Phase::Fail, None, None);
        assert!(bad(&script), "nobody held");
    }
}
