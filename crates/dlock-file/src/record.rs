//! What is written about one lock: holders, and waiters in order of arrival. Nothing in here touches a file.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use dlock_core::backend::AttemptId;
use dlock_core::{Mode, Name, Result, kit};
use uuid::Uuid;

use crate::life::ClientId;
use crate::origin::Origin;

/// A waiter that was not seen for this long is passed over: its process is stopped, or its future leaked ([C18](dlock_core::contract#c18)).
pub(crate) const WAITER_LEASE: Duration = Duration::from_secs(2);

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LockRecord {
    pub(crate) name: Name,
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: Vec<Waiter>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) attempt: AttemptId,
    pub(crate) client: ClientId,
    pub(crate) mode: Mode,
    pub(crate) token: u64,
    pub(crate) origin: Origin,
    /// Microseconds since 1970, for people.
    pub(crate) since: u64,
    pub(crate) label: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) attempt: AttemptId,
    pub(crate) client: ClientId,
    pub(crate) mode: Mode,
    /// When it last looked, on the host's monotonic clock.
    pub(crate) seen: u64,
    /// What wakes it: its client, a dot, and the bell's number; `-` when it has none.
    pub(crate) bell: String,
    pub(crate) label: String,
}

impl LockRecord {
    pub(crate) fn new(name: Name) -> Self {
        Self {
            name,
            holders: Vec::new(),
            waiters: Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }

    /// Whether a holder in `mode` fits to those who hold now.
    pub(crate) fn admits(&self, mode: Mode) -> bool {
        kit::admits(self.holders.iter().map(|holder| holder.mode), mode)
    }

    /// Whether it is this attempt's turn: the holders admit it, and nobody waits before it.
    pub(crate) fn lets_in(&self, attempt: AttemptId, mode: Mode) -> bool {
        let first = self.waiters.first();
        first.is_none_or(|waiter| waiter.attempt == attempt) && self.admits(mode)
    }

    /// The waiter to wake now, if it can go on.
    pub(crate) fn next(&self) -> Option<&Waiter> {
        self.waiters
            .first()
            .filter(|waiter| self.admits(waiter.mode))
    }

    /// Everybody must give the same limit while a semaphore is in use ([C19](dlock_core::contract#c19)).
    pub(crate) fn check_limit(&self, mode: Mode) -> Result<()> {
        let holders = self.holders.iter().map(|holder| holder.mode);
        let waiters = self.waiters.iter().map(|waiter| waiter.mode);
        kit::check_limit(holders.chain(waiters), mode)
    }

    /// Removes dead holders, and those at the head of the line who are dead or gone quiet: only they stand in the way.
    pub(crate) fn sweep(
        &mut self,
        now: u64,
        me: ClientId,
        alive: impl Fn(ClientId, Option<&Origin>) -> Result<bool>,
    ) -> Result<bool> {
        let mut changed = retain(&mut self.holders, |h| alive(h.client, Some(&h.origin)))?;
        while let Some(head) = self.waiters.first() {
            let quiet = now.saturating_sub(head.seen) > micros(WAITER_LEASE);
            if head.client == me || (!quiet && alive(head.client, None)?) {
                break;
            }
            self.waiters.remove(0);
            changed = true;
        }
        Ok(changed)
    }

    /// Removes everybody who is dead.
    pub(crate) fn sweep_all(
        &mut self,
        alive: impl Fn(ClientId, Option<&Origin>) -> Result<bool>,
    ) -> Result<bool> {
        let holders = retain(&mut self.holders, |h| alive(h.client, Some(&h.origin)))?;
        let waiters = retain(&mut self.waiters, |w| alive(w.client, None))?;
        Ok(holders || waiters)
    }

    /// Reads what [`Display`](fmt::Display) wrote; `None` when it was cut short or is something else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix("end\n")?.lines();
        if lines.next()? != "dlock 2" {
            return None;
        }
        let name = Name::new(lines.next()?.strip_prefix("name ")?).ok()?;
        let mut record = Self::new(name);
        for line in lines {
            match line.split_once(' ')? {
                ("hold", rest) => record.holders.push(parse_holder(rest)?),
                ("wait", rest) => record.waiters.push(parse_waiter(rest)?),
                _ => return None,
            }
        }
        Some(record)
    }
}

/// The label comes last: it may hold spaces. No name or label holds a line break.
impl fmt::Display for LockRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "dlock 2\nname {}", self.name)?;
        for h in &self.holders {
            let mode = ModeText(h.mode);
            writeln!(
                f,
                "hold {} {} {mode} {} {} {} {}",
                h.attempt, h.client, h.token, h.origin, h.since, h.label
            )?;
        }
        for w in &self.waiters {
            let mode = ModeText(w.mode);
            writeln!(
                f,
                "wait {} {} {mode} {} {} {}",
                w.attempt, w.client, w.seen, w.bell, w.label
            )?;
        }
        f.write_str("end\n")
    }
}

fn parse_holder(rest: &str) -> Option<Holder> {
    let mut parts = rest.splitn(7, ' ');
    Some(Holder {
        attempt: parse_attempt(parts.next()?)?,
        client: parts.next()?.parse().ok()?,
        mode: parts.next()?.parse::<ModeText>().ok()?.0,
        token: parts.next()?.parse().ok()?,
        origin: parts.next()?.parse().ok()?,
        since: parts.next()?.parse().ok()?,
        label: parts.next()?.to_owned(),
    })
}

fn parse_waiter(rest: &str) -> Option<Waiter> {
    let mut parts = rest.splitn(6, ' ');
    Some(Waiter {
        attempt: parse_attempt(parts.next()?)?,
        client: parts.next()?.parse().ok()?,
        mode: parts.next()?.parse::<ModeText>().ok()?.0,
        seen: parts.next()?.parse().ok()?,
        bell: parts.next()?.to_owned(),
        label: parts.next()?.to_owned(),
    })
}

fn parse_attempt(text: &str) -> Option<AttemptId> {
    Uuid::parse_str(text).ok().map(AttemptId::from)
}

struct ModeText(Mode);

impl fmt::Display for ModeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Mode::Exclusive => f.write_str("x"),
            Mode::Shared => f.write_str("s"),
            Mode::Permit { limit } => write!(f, "p{limit}"),
            _ => f.write_str("x"),
        }
    }
}

impl FromStr for ModeText {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let mode = match text {
            "x" => Mode::Exclusive,
            "s" => Mode::Shared,
            _ => Mode::Permit {
                limit: text
                    .strip_prefix('p')
                    .and_then(|n| n.parse().ok())
                    .ok_or(())?,
            },
        };
        Ok(Self(mode))
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// `Vec::retain` with a question that can fail; `true` when something was removed.
fn retain<T>(items: &mut Vec<T>, keep: impl Fn(&T) -> Result<bool>) -> Result<bool> {
    let before = items.len();
    let mut failure = None;
    items.retain(|item| {
        keep(item).unwrap_or_else(|error| {
            failure = Some(error);
            true
        })
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(items.len() < before),
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::ErrorKind;

    use super::*;

    const PERMIT: Mode = Mode::Permit { limit: 2 };

    fn client(n: u64) -> ClientId {
        format!("{n:x}").parse().expect("good")
    }

    fn record() -> LockRecord {
        LockRecord::new(Name::new("a b").expect("good"))
    }

    fn holder(mode: Mode) -> Holder {
        Holder {
            attempt: AttemptId::new(),
            client: client(1),
            mode,
            token: 7,
            origin: Origin::ours(),
            since: 1_000_000,
            label: "job @host: 42".to_owned(),
        }
    }

    fn waiter(mode: Mode, of: ClientId, seen: u64) -> Waiter {
        Waiter {
            attempt: AttemptId::new(),
            client: of,
            mode,
            seen,
            bell: "-".to_owned(),
            label: String::new(),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut written = record();
        written.holders.push(holder(PERMIT));
        written.holders.push(holder(Mode::Shared));
        written.waiters.push(waiter(Mode::Exclusive, client(2), 5));
        let text = written.to_string();
        assert_eq!(LockRecord::parse(&text), Some(written));
    }

    #[test]
    fn a_file_that_was_cut_short_is_not_believed() {
        let mut written = record();
        written.holders.push(holder(Mode::Exclusive));
        let text = written.to_string();
        for length in 0..text.len() {
            assert_eq!(LockRecord::parse(&text[..length]), None, "{length}");
        }
    }

    #[test]
    fn modes_fit_together_as_the_contract_says() {
        for (held, asked, fits) in [
            (Mode::Exclusive, Mode::Shared, false),
            (Mode::Shared, Mode::Exclusive, false),
            (Mode::Shared, Mode::Shared, true),
            (Mode::Shared, PERMIT, false),
            (PERMIT, Mode::Shared, false),
            (PERMIT, PERMIT, true),
        ] {
            let mut record = record();
            record.holders.push(holder(held));
            assert_eq!(record.admits(asked), fits, "{held} then {asked}");
        }
        let mut full = record();
        full.holders = vec![holder(PERMIT), holder(PERMIT)];
        assert!(!full.admits(PERMIT));
        let other = full.check_limit(Mode::Permit { limit: 3 });
        assert_eq!(other.expect_err("other limit").kind(), ErrorKind::Conflict);
    }

    #[test]
    fn nobody_overtakes_the_first_waiter() {
        let mut record = record();
        record.holders.push(holder(Mode::Shared));
        record.waiters.push(waiter(Mode::Exclusive, client(2), 0));
        assert!(
            !record.lets_in(AttemptId::new(), Mode::Shared),
            "a writer waits"
        );
        record.holders.clear();
        let first = record.waiters[0].attempt;
        assert!(record.lets_in(first, Mode::Exclusive));
        assert_eq!(record.next().map(|waiter| waiter.attempt), Some(first));
    }

    #[test]
    fn the_dead_and_the_quiet_do_not_stand_in_the_way() {
        let now = 10_000_000;
        let mut record = record();
        record.holders.push(holder(Mode::Exclusive));
        record.waiters.push(waiter(Mode::Shared, client(2), now)); // dead
        record.waiters.push(waiter(Mode::Shared, client(3), 0)); // quiet
        record.waiters.push(waiter(Mode::Shared, client(4), now));
        let changed = record.sweep(now, client(9), |id, _| {
            Ok(id == client(3) || id == client(4))
        });
        assert!(changed.expect("no failure"));
        assert!(record.holders.is_empty());
        assert_eq!(record.waiters.len(), 1);
        assert_eq!(record.waiters[0].client, client(4));
    }
}
