//! Which nodes do not answer any more. A connection that is open at our side only never breaks by itself.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::call::RedisReply;
use super::motion::Outgoing;

/// After so many answers in a row that did not come, a connection counts as frozen: the client never replaces it by itself.
const FROZEN_AFTER: u32 = 2;
/// So does one that has answered nothing for so long while callers gave up waiting for it.
const SILENT_FOR: Duration = Duration::from_secs(1);
const SLOTS: u16 = 16384;

/// An answer that did not come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Missing {
    /// When its question was sent.
    pub(super) asked: Instant,
    /// It was waited for less long than answers usually are.
    pub(super) hasty: bool,
}

/// How many answers in a row each node has not given. Others that answer do not make up for one that does not.
#[derive(Debug)]
pub(super) struct Silence {
    /// In a cluster: the last slot of each range, and the place of its master below.
    ranges: Vec<(u16, usize)>,
    unanswered: Vec<AtomicU32>,
    /// When the last silence was counted.
    noticed: Mutex<Option<Instant>>,
    /// Since when nobody has answered, as callers saw that did not wait for long.
    given_up_since: Mutex<Option<Instant>>,
    is_given_up: AtomicBool,
}

impl Silence {
    pub(super) fn of_one() -> Self {
        Self {
            ranges: Vec::new(),
            unanswered: vec![AtomicU32::new(0)],
            noticed: Mutex::new(None),
            given_up_since: Mutex::new(None),
            is_given_up: AtomicBool::new(false),
        }
    }

    /// By the answer to `CLUSTER SLOTS`. Where the slots are moved later, what counts for one node may count for another.
    pub(super) fn of_cluster(slots: &RedisReply) -> Self {
        let masters = masters(slots);
        let place = |master| masters.iter().position(|known| *known == master);
        let mut ranges: Vec<(u16, usize)> = ranges(slots)
            .filter_map(|(last, master)| Some((last, place(master)?)))
            .collect();
        ranges.sort_unstable();
        Self {
            ranges,
            // One more for what goes to no known node.
            unanswered: (0..=masters.len()).map(|_| AtomicU32::new(0)).collect(),
            noticed: Mutex::new(None),
            given_up_since: Mutex::new(None),
            is_given_up: AtomicBool::new(false),
        }
    }

    fn counter(&self, what: Outgoing<'_>) -> Option<&AtomicU32> {
        if self.ranges.is_empty() {
            return self.unanswered.first();
        }
        let place = what.key().and_then(|key| {
            let slot = slot_of(key);
            let range = self.ranges.partition_point(|(last, _)| *last < slot);
            self.ranges.get(range).map(|(_, place)| *place)
        });
        match place {
            Some(place) => self.unanswered.get(place),
            None => self.unanswered.last(),
        }
    }

    /// An answer has come.
    pub(super) fn ended(&self, what: Outgoing<'_>) {
        if self.is_given_up.load(Ordering::Relaxed) {
            self.is_given_up.store(false, Ordering::Relaxed);
            *self.since() = None;
        }
        let any = |counter: &AtomicU32| counter.load(Ordering::Relaxed) != 0;
        if self.unanswered.iter().any(any)
            && let Some(counter) = self.counter(what)
        {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// A caller gave up that had asked at `asked`. Whether the connection counts as frozen now: a caller that always gives up before the
    /// time-out, as a vote that others have decided, would else keep it for ever.
    pub(super) fn given_up(&self, asked: Instant) -> bool {
        let mut since = self.since();
        self.is_given_up.store(true, Ordering::Relaxed);
        since.get_or_insert(asked).elapsed() >= SILENT_FOR
    }

    fn since(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.given_up_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer did not come. Whether the connection counts as frozen now.
    ///
    /// Signs of life of many waiters are under way at the same time, and are not waited for for long. Those that were sent before a silence was
    /// noticed tell no more than the first of them: else a moment that one waiter outlasts would cost a client with two of them its connection.
    pub(super) fn goes_on(&self, what: Outgoing<'_>, missing: Missing) -> bool {
        let mut noticed = self.noticed();
        let known = noticed.is_some_and(|noticed| missing.asked < noticed);
        let Some(counter) = self.counter(what) else {
            return false;
        };
        if missing.hasty && known && counter.load(Ordering::Relaxed) > 0 {
            return false;
        }
        *noticed = Some(Instant::now());
        counter.fetch_add(1, Ordering::Relaxed) + 1 >= FROZEN_AFTER
    }

    fn noticed(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.noticed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The masters in the answer to `CLUSTER SLOTS`.
pub(super) fn masters(slots: &RedisReply) -> Vec<(String, u16)> {
    let mut found: Vec<_> = ranges(slots).map(|(_, master)| master).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The last slot of each range and where its master is.
fn ranges(slots: &RedisReply) -> impl Iterator<Item = (u16, (String, u16))> {
    let ranges = match slots {
        RedisReply::List(ranges) => ranges.as_slice(),
        _ => &[],
    };
    ranges.iter().filter_map(|range| match range {
        RedisReply::List(range) => match range.as_slice() {
            [_, RedisReply::Number(last), RedisReply::List(node), ..] => match node.as_slice() {
                [RedisReply::Text(host), RedisReply::Number(port), ..] => Some((
                    u16::try_from(*last).ok()?,
                    (host.clone(), u16::try_from(*port).ok()?),
                )),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}

/// The slot of a key: CRC16 (XMODEM) of its hash tag, or of the whole key if it has none.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let tag = key
        .iter()
        .position(|byte| *byte == b'{')
        .and_then(|open| key.get(open + 1..))
        .and_then(|rest| {
            let close = rest.iter().position(|byte| *byte == b'}')?;
            rest.get(..close).filter(|tag| !tag.is_empty())
        });
    let mut crc = 0_u16;
    for byte in tag.unwrap_or(key) {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            let carry = crc & 0x8000 != 0;
            crc <<= 1;
            if carry {
                crc ^= 0x1021;
            }
        }
    }
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::ScriptCall;
    use crate::script::Script;

    #[test]
    fn slots_are_those_of_the_cluster() {
        for (key, slot) in [
            ("foo", 12182),
            ("123456789", 12739),
            ("x{foo}y", 12182),
            ("dlock:{foo}:q", 12182),
            ("{}foo", slot_of(b"{}foo")),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    fn missing(hasty: bool) -> Missing {
        Missing {
            asked: Instant::now(),
            hasty,
        }
    }

    /// The signs of life of two waiters, which are waited for only for a moment.
    #[test]
    fn hasty_questions_of_one_stall_are_one_silence() {
        let silence = Silence::of_one();
        let script = Script::many();
        let call = ScriptCall::on(&script, "p:{a}");
        let what = Outgoing::Script(&call);
        let (one, two) = (missing(true), missing(true));
        assert!(!silence.goes_on(what, one));
        assert!(!silence.goes_on(what, two), "sent in the same stall");
        assert!(silence.goes_on(what, missing(true)), "sent after it");
        silence.ended(what);
        let (one, two) = (missing(false), missing(false));
        assert!(!silence.goes_on(what, one));
        assert!(silence.goes_on(what, two), "both were patient");
    }

    #[test]
    fn answers_of_one_node_do_not_hide_the_silence_of_another() {
        let range = |first: i64, last: i64, port: i64| {
            RedisReply::List(vec![
                RedisReply::Number(first),
                RedisReply::Number(last),
                RedisReply::List(vec![
                    RedisReply::Text("127.0.0.1".to_owned()),
                    RedisReply::Number(port),
                ]),
            ])
        };
        let slots = RedisReply::List(vec![range(0, 8000, 1), range(8001, 16383, 2)]);
        let silence = Silence::of_cluster(&slots);
        let script = Script::many();
        let (low, high) = (
            ScriptCall::on(&script, "p:{b}"),
            ScriptCall::on(&script, "p:{foo}"),
        );
        assert!(slot_of(b"b") <= 8000 && slot_of(b"foo") > 8000);
        let (low, high) = (Outgoing::Script(&low), Outgoing::Script(&high));
        assert!(!silence.goes_on(low, missing(false)));
        silence.ended(high);
        assert!(
            silence.goes_on(low, missing(false)),
            "twice at the same node"
        );
        silence.ended(low);
        assert!(!silence.goes_on(low, missing(false)));
        assert!(!silence.goes_on(high, missing(false)));
    }
}
