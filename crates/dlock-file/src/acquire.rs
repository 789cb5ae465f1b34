//! One attempt, and its undo. Everything here runs behind the lock's gate, on a thread that may block.

use dlock_core::backend::{AttemptId, Request};
use dlock_core::{Mode, Name, Result, kit};

use crate::connect::Store;
use crate::fence::now_micros;
use crate::key::Key;
use crate::life::ClientId;
use crate::origin::Origin;
use crate::record::{Holder, LockRecord, WAITER_LEASE, Waiter};

/// A waiter says that it is alive this often at least.
const SAY_HELLO: u64 = WAITER_LEASE.as_micros() as u64 / 4;

/// What a request asks for, as a thread can own it.
#[derive(Debug, Clone)]
pub(crate) struct LockSpec {
    pub(crate) name: Name,
    pub(crate) mode: Mode,
    pub(crate) attempt: AttemptId,
    pub(crate) label: String,
}

impl LockSpec {
    pub(crate) fn of(request: &Request) -> Self {
        Self {
            name: request.name().clone(),
            mode: request.mode(),
            attempt: request.attempt(),
            label: request.label().to_owned(),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Held { token: u64 },
    Busy { first: bool },
}

impl Store {
    /// Takes the lock if it is this attempt's turn. With a bell it also stands in the line, and keeps its place.
    pub(crate) fn try_acquire(&self, spec: &LockSpec, bell: Option<&str>) -> Result<Taken> {
        let me = self.me()?;
        let key = Key::of(&spec.name);
        let gate = self.gate(&key)?;
        kit::refuse_abandoned(spec.attempt)?;
        let mut page = self.page(&key, &spec.name)?;
        let record = &mut page.record;
        if let Some(holder) = record.holders.iter().find(|h| h.attempt == spec.attempt) {
            // The same attempt twice is one hold (C15).
            return Ok(Taken::Held {
                token: holder.token,
            });
        }
        let now = monotonic_micros();
        let mut changed = false;
        if !record.lets_in(spec.attempt, spec.mode) || many(record) {
            changed = record.sweep(now, me, |id, origin| self.is_alive(id, origin))?;
        }
        record.check_limit(spec.mode)?;
        if record.lets_in(spec.attempt, spec.mode) {
            self.note_line(me, spec.attempt)?;
            let token = gate.next_token(spec.mode)?;
            record
                .waiters
                .retain(|waiter| waiter.attempt != spec.attempt);
            record.holders.push(Holder {
                attempt: spec.attempt,
                client: me,
                mode: spec.mode,
                token,
                origin: Origin::ours(),
                since: now_micros(),
                label: spec.label.clone(),
            });
            page.write()?;
            // Readers and permits go in one after the other.
            self.wake_next(&page.record);
            return Ok(Taken::Held { token });
        }
        if let Some(bell) = bell {
            self.note_line(me, spec.attempt)?;
            changed |= stand_in_line(record, spec, me, bell, now);
        }
        if changed {
            page.write()?;
            self.wake_next(&page.record);
        }
        let first = page.record.waiters.first();
        Ok(Taken::Busy {
            first: first.is_some_and(|waiter| waiter.attempt == spec.attempt),
        })
    }

    /// Removes whatever the attempt left, and makes sure that nothing of it comes later ([C13](dlock_core::contract#c13)).
    pub(crate) fn abandon(&self, spec: &LockSpec) -> Result<()> {
        self.leave(spec, true)
    }

    /// Leaves the line; the attempt may come again.
    pub(crate) fn leave_line(&self, spec: &LockSpec) -> Result<()> {
        self.leave(spec, false)
    }

    fn leave(&self, spec: &LockSpec, for_good: bool) -> Result<()> {
        let key = Key::of(&spec.name);
        let _gate = self.gate(&key)?;
        if for_good {
            // Behind the gate: a late thread of it comes before this, and is seen below, or after, and is refused (C13).
            kit::remember_abandoned(spec.attempt);
        }
        let mut page = self.page(&key, &spec.name)?;
        let record = &mut page.record;
        let before = (record.holders.len(), record.waiters.len());
        record
            .holders
            .retain(|holder| holder.attempt != spec.attempt);
        record
            .waiters
            .retain(|waiter| waiter.attempt != spec.attempt);
        if before != (record.holders.len(), record.waiters.len()) {
            page.write()?;
            self.wake_next(&page.record);
        }
        self.strike_line(spec.attempt);
        Ok(())
    }
}

/// Readers that overlap for ever would never be swept: look at them when there are 8, 16, 32 …
fn many(record: &LockRecord) -> bool {
    record.holders.len() >= 8 && record.holders.len().is_power_of_two()
}

/// `true` when something has to be written.
fn stand_in_line(
    record: &mut LockRecord,
    spec: &LockSpec,
    me: ClientId,
    bell: &str,
    now: u64,
) -> bool {
    let place = record
        .waiters
        .iter_mut()
        .find(|w| w.attempt == spec.attempt);
    match place {
        Some(waiter) if now.saturating_sub(waiter.seen) < SAY_HELLO => false,
        Some(waiter) => {
            waiter.seen = now;
            true
        }
        None => {
            record.waiters.push(Waiter {
                attempt: spec.attempt,
                client: me,
                mode: spec.mode,
                seen: now,
                bell: bell.to_owned(),
                label: spec.label.clone(),
            });
            true
        }
    }
}

/// The same for all processes of the host; stands still while nobody can look.
pub(crate) fn monotonic_micros() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds
        .saturating_mul(1_000_000)
        .saturating_add(nanos / 1000)
}

#[cfg(test)]
mod tests {
    use dlock_core::SystemClock;

    use super::*;

    fn spec() -> LockSpec {
        let name = Name::new("a").expect("good");
        let clock = std::sync::Arc::new(SystemClock);
        LockSpec::of(&Request::new(name, Mode::Shared, clock))
    }

    fn client() -> ClientId {
        "1".parse().expect("good")
    }

    #[test]
    fn readers_are_looked_at_when_they_have_doubled() {
        let spec = spec();
        let mut record = LockRecord::new(spec.name.clone());
        let mut looked_at = Vec::new();
        for n in 1..=33 {
            record.holders.push(Holder {
                attempt: AttemptId::new(),
                client: client(),
                mode: spec.mode,
                token: n,
                origin: Origin::ours(),
                since: 0,
                label: String::new(),
            });
            if many(&record) {
                looked_at.push(n);
            }
        }
        assert_eq!(looked_at, [8, 16, 32]);
    }

    #[test]
    fn a_waiter_says_that_it_is_alive_now_and_then() {
        let spec = spec();
        let mut record = LockRecord::new(spec.name.clone());
        let mut stands = |now| {
            let changed = stand_in_line(&mut record, &spec, client(), "-", now);
            let [waiter] = record.waiters.as_slice() else {
                panic!("one place: {:?}", record.waiters);
            };
            (changed, waiter.seen)
        };
        assert_eq!(stands(1000), (true, 1000));
        assert_eq!(stands(1000 + SAY_HELLO - 1), (false, 1000));
        assert_eq!(stands(1000 + SAY_HELLO), (true, 1000 + SAY_HELLO));
        assert_eq!(stands(1001 + SAY_HELLO), (false, 1000 + SAY_HELLO));
    }

    #[test]
    fn time_goes_on_by_microseconds() {
        let first = monotonic_micros();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(monotonic_micros() - first >= 20_000);
    }
}
