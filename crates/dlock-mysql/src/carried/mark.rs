//! The mark of a name: who held it last, and whether it left in order.
//!
//! The server frees a lock the moment its connection ends, and the holder learns of that with its next question. So a holder writes a mark, and
//! clears it just before it gives the lock back. Whoever gets the lock and finds the mark of another one waits until that one's last sign of
//! life, which must be older than the grant, is good no more ([C1](dlock_core::contract#c1)). Every change of a mark advances its stamp, and whoever
//! changes another's mark names the stamp it saw: a late request of one who has lost the lock changes nothing. An owner is counted as gone only by
//! who saw it *while it had the lock*; that there is none may have been seen before the grant, since the stamp proves that it is still so.

use std::time::Duration;

use dlock_core::backend::{AttemptId, Request};
use dlock_core::{Name, Released};

use crate::connect::{Answer, Arg};
use crate::error::Trouble;
use crate::fence::TURNS;
use crate::key::{hex, micros};
use crate::schema::statement;

/// What names a hold: its attempt, and the last of its tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct HoldKey {
    pub(super) attempt: AttemptId,
    pub(super) fence: u64,
}

/// A version of a mark, as somebody has seen it. The fence is the last token that was set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MarkVersion {
    id: u64,
    stamp: u64,
    fence: u64,
}

impl MarkVersion {
    /// The hold that a claim of this version makes.
    pub(super) fn claimed(self, attempt: AttemptId) -> HoldKey {
        HoldKey {
            attempt,
            fence: self.fence + u64::from(TURNS),
        }
    }
}

/// What `…_grab.sql` tells about a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkPeek {
    NeverUsed,
    Free(MarkVersion),
    /// The last holder may not have left in order.
    Owned,
}

impl MarkPeek {
    pub(super) fn parse(text: Option<&str>) -> Self {
        let Some(text) = text else {
            return Self::NeverUsed;
        };
        let mut numbers = text.split(' ').map_while(|number| number.parse().ok());
        match [(); 4].map(|()| numbers.next()) {
            [Some(id), Some(stamp), Some(fence), Some(1)] => {
                Self::Free(MarkVersion { id, stamp, fence })
            }
            _ => Self::Owned,
        }
    }
}

/// A mark as it was seen.
#[derive(Debug, Clone)]
pub(super) struct MarkRow {
    pub(super) version: MarkVersion,
    owner: Option<Vec<u8>>,
    pub(super) valid: Duration,
    broken: bool,
    /// The call sign of its connection.
    pub(super) connection: u64,
    /// What is left of the time after which the owner certainly holds no more; `None` when nobody has begun to count.
    pub(super) left: Option<Duration>,
    freed: u64,
    lost: u64,
}

impl MarkRow {
    /// As `mark_read.sql` tells it; `None` when the name was never used.
    pub(super) fn read(answer: &Answer) -> Result<Option<Self>, Trouble> {
        let Some(row) = answer.rows.first() else {
            return Ok(None);
        };
        let number = |column| {
            row.number(column)
                .ok_or_else(|| Trouble::unexpected_reply("a mark without a number"))
        };
        Ok(Some(Self {
            version: MarkVersion {
                id: number(0)?,
                stamp: number(1)?,
                fence: number(2)?,
            },
            owner: row.bytes(3).map(<[u8]>::to_vec),
            valid: Duration::from_micros(number(4)?),
            broken: number(5)? != 0,
            connection: number(6)?,
            left: row.number(7).map(Duration::from_micros),
            freed: number(8)?,
            lost: number(9)?,
        }))
    }

    pub(super) fn is_free(&self) -> bool {
        self.owner.is_none()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    pub(super) fn is_of(&self, attempt: AttemptId) -> bool {
        self.owner.as_deref() == Some(attempt.as_uuid().as_bytes())
    }

    /// The last token that was set aside.
    pub(super) fn fence(&self) -> u64 {
        self.version.fence
    }

    /// How a hold ended, if that is known.
    pub(super) fn end_of(&self, key: HoldKey) -> Option<Released> {
        if self.freed == key.fence {
            Some(Released::Freed)
        } else if self.lost == key.fence || self.version.fence == key.fence && self.broken {
            Some(Released::AlreadyLost)
        } else {
            None
        }
    }

    /// Whether a hold has not ended.
    pub(super) fn is_live(&self, key: HoldKey) -> bool {
        self.is_of(key.attempt) && self.version.fence == key.fence && !self.broken
    }

    pub(super) fn is_unchanged(&self, before: &Self) -> bool {
        (self.version.id, self.version.stamp) == (before.version.id, before.version.stamp)
    }
}

/// The statements on marks.
#[derive(Debug)]
pub(super) struct MarkStatements {
    pub(super) read: String,
    pub(super) claim: String,
    pub(super) go_on: String,
    pub(super) dead: String,
    pub(super) break_lock: String,
    pub(super) abandon: String,
    /// The same, of one connection alone.
    pub(super) abandon_of: String,
    pub(super) inspect: String,
    pub(super) list: String,
    clear: String,
}

impl MarkStatements {
    pub(super) fn new(prefix: &str, table: &str, writable: &str) -> Self {
        let one = |sql: &str| {
            statement(sql, prefix)
                .replace("{marks}", table)
                .replace("{writable}", writable)
        };
        let abandon = one(include_str!("../sql/mark_abandon.sql"));
        Self {
            abandon_of: format!("{abandon} AND connection = ?"),
            abandon,
            read: one(include_str!("../sql/mark_read.sql")),
            claim: one(include_str!("../sql/mark_claim.sql")),
            go_on: one(include_str!("../sql/mark_move.sql")),
            dead: one(include_str!("../sql/mark_dead.sql")),
            break_lock: one(include_str!("../sql/mark_break.sql")),
            clear: one(include_str!("../sql/mark_clear.sql")),
            inspect: one(include_str!("../sql/mark_inspect.sql")),
            list: one(include_str!("../sql/mark_list.sql")),
        }
    }

    /// The text that clears a mark: digits alone, whatever the name is. A waiter's place, a named lock, is given up with it.
    pub(super) fn clear(&self, name: &Name, key: HoldKey, place: Option<&str>) -> String {
        let leave = place.map_or_else(String::new, |place| {
            format!(" + 0 * COALESCE(RELEASE_LOCK('{place}'), 0)")
        });
        self.clear
            .replace("{leave}", &leave)
            .replace("{name}", &literal(name.as_str().as_bytes()))
            .replace("{owner}", &literal(key.attempt.as_uuid().as_bytes()))
            .replace("{fence}", &key.fence.to_string())
    }
}

/// Bytes as they stand in a text.
pub(super) fn literal(bytes: &[u8]) -> String {
    format!("x'{}'", hex(bytes))
}

pub(super) fn take_args<'a>(
    request: &'a Request,
    attempt: &'a AttemptId,
    valid: Duration,
    connection: u64,
    lock: &'a str,
) -> [Arg<'a>; 9] {
    [
        attempt.as_uuid().as_bytes().as_slice().into(),
        micros(valid).into(),
        connection.into(),
        request.label().into(),
        request.name().as_str().into(),
        lock.into(),
        lock.into(),
        lock.into(),
        lock.into(),
    ]
}

pub(super) fn claim_args<'a>(
    attempt: &'a AttemptId,
    valid: Duration,
    connection: u64,
    label: &'a str,
    version: MarkVersion,
) -> [Arg<'a>; 6] {
    [
        attempt.as_uuid().as_bytes().as_slice().into(),
        micros(valid).into(),
        connection.into(),
        label.into(),
        version.id.into(),
        version.stamp.into(),
    ]
}

pub(super) fn version_args(version: MarkVersion) -> [Arg<'static>; 2] {
    [version.id.into(), version.stamp.into()]
}

pub(super) fn move_args(connection: u64, version: MarkVersion) -> [Arg<'static>; 3] {
    [connection.into(), version.id.into(), version.stamp.into()]
}

pub(super) fn abandon_args<'a>(name: &'a Name, attempt: &'a AttemptId) -> [Arg<'a>; 2] {
    [
        name.as_str().into(),
        attempt.as_uuid().as_bytes().as_slice().into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_mark_without_an_owner_can_be_claimed_at_once() {
        let MarkPeek::Free(version) = MarkPeek::parse(Some("7 12 3 1")) else {
            panic!("nobody has it");
        };
        assert_eq!((version.id, version.stamp, version.fence), (7, 12, 3));
        let attempt = AttemptId::new();
        assert_eq!(version.claimed(attempt).fence, 3 + u64::from(TURNS));
        assert_eq!(MarkPeek::parse(Some("7 12 3 0")), MarkPeek::Owned);
        assert_eq!(MarkPeek::parse(Some("7 12")), MarkPeek::Owned);
        assert_eq!(MarkPeek::parse(None), MarkPeek::NeverUsed);
    }

    #[test]
    fn a_mark_is_cleared_by_digits_alone() {
        let key = HoldKey {
            attempt: AttemptId::new(),
            fence: 9,
        };
        let name = Name::new("a'b{fence}").expect("a good name");
        let sql = MarkStatements::new("p_", "`p_session_marks`", "TRUE").clear(&name, key, None);
        assert!(sql.starts_with("UPDATE `p_session_marks` SET"), "{sql}");
        assert!(
            sql.contains("WHERE name = x'6127627b66656e63657d' AND part = 1"),
            "{sql}"
        );
        assert!(sql.contains("AND fence = 9 AND"), "{sql}");
        assert!(!sql.contains(['{', '}', '?']), "{sql}");
    }
}
