//! What a waiter waits for, and how it sees that nothing has changed.

use std::collections::HashMap;

use crate::acquire::Entry;
use crate::txn::{Range, Row};

/// What a waiter waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) range: Range,
    until: Until,
    /// Whether nobody else is before us: when it ends, we hold. Nobody can come before us later.
    pub(crate) last: bool,
}

/// What the waiter saw, and which change of it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The end of the one key, which was created at this revision.
    Ends(i64),
    /// A new value of the one key, which had its present one since this revision, or its end.
    Changes(i64),
    /// The end of any of several keys.
    OneEnds,
}

impl Watched {
    fn of(row: &Row, until: Until) -> Self {
        Self {
            range: Range::key(&row.key),
            until,
            last: false,
        }
    }

    pub(crate) fn end_of(row: &Row) -> Self {
        Self::of(row, Until::Ends(row.created))
    }

    /// The end of an entry of which this is known.
    pub(crate) fn end_of_key(key: &[u8], created: i64) -> Self {
        Self {
            range: Range::key(key),
            until: Until::Ends(created),
            last: false,
        }
    }

    pub(crate) fn end_of_last(row: &Row) -> Self {
        Self {
            last: true,
            ..Self::end_of(row)
        }
    }

    pub(crate) fn change_of(row: &Row) -> Self {
        Self::of(row, Until::Changes(row.modified))
    }

    pub(crate) fn end_in(range: Range) -> Self {
        Self {
            range,
            until: Until::OneEnds,
            last: false,
        }
    }

    /// Whether a new value counts too, or only the end.
    pub(crate) fn puts(&self) -> bool {
        matches!(self.until, Until::Changes(_))
    }

    /// What tells without a look at the whole queue that an entry stands where it stood; `None` if only that look tells.
    pub(crate) fn sight(&self, entry: &Entry) -> Option<Sight> {
        (self.until != Until::OneEnds).then(|| Sight {
            own: entry.key.clone(),
            created: entry.created,
            watched: self.range.start.clone(),
            until: self.until,
        })
    }
}

/// The two keys that a waiter looks at: its own, and the one that it watches.
#[derive(Debug, Clone)]
pub(crate) struct Sight {
    own: Vec<u8>,
    created: i64,
    watched: Vec<u8>,
    until: Until,
}

impl Sight {
    /// An entry, and one that must stay as it was created.
    pub(crate) fn of_two(entry: &Entry, watched: &[u8], created: i64) -> Self {
        Self {
            own: entry.key.clone(),
            created: entry.created,
            watched: watched.to_vec(),
            until: Until::Ends(created),
        }
    }

    pub(crate) fn keys(&self) -> [&[u8]; 2] {
        [&self.own, &self.watched]
    }

    /// Whether both are as they were, by what was found.
    pub(crate) fn is_unchanged(&self, found: &HashMap<&[u8], &Row>) -> bool {
        let find = |key: &Vec<u8>| found.get(key.as_slice());
        let own = find(&self.own).is_some_and(|row| row.created == self.created);
        let watched = find(&self.watched).is_some_and(|row| match self.until {
            Until::Ends(created) => row.created == created,
            Until::Changes(modified) => row.modified == modified,
            Until::OneEnds => false,
        });
        own && watched
    }
}

/// What was found, by key.
pub(crate) fn by_key(rows: &[Row]) -> HashMap<&[u8], &Row> {
    rows.iter().map(|row| (row.key.as_slice(), row)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sight_of(own: &str, watched: &str) -> Sight {
        Sight {
            own: own.into(),
            created: 5,
            watched: watched.into(),
            until: Until::Ends(3),
        }
    }

    pub(crate) fn row(key: &str, created: i64, modified: i64) -> Row {
        Row {
            key: key.into(),
            value: Vec::new(),
            created,
            modified,
            lease: 1,
        }
    }

    fn sight(until: Until) -> Sight {
        Sight {
            own: b"own".to_vec(),
            created: 5,
            watched: b"first".to_vec(),
            until,
        }
    }

    fn unchanged(sight: &Sight, rows: &[Row]) -> bool {
        sight.is_unchanged(&by_key(rows))
    }

    #[test]
    fn what_counts_is_seen_and_nothing_else() {
        let (own, first) = (row("own", 5, 9), row("first", 3, 4));
        for until in [Until::Ends(3), Until::Changes(4)] {
            let sight = sight(until);
            assert!(unchanged(&sight, &[own.clone(), first.clone()]));
            // Gone, or another entry with the same key.
            assert!(!unchanged(&sight, std::slice::from_ref(&own)));
            assert!(!unchanged(&sight, &[own.clone(), row("first", 7, 7)]));
            assert!(!unchanged(&sight, std::slice::from_ref(&first)));
            assert!(!unchanged(&sight, &[row("own", 6, 6), first.clone()]));
        }
        let rings = [own, row("first", 3, 8)];
        assert!(unchanged(&sight(Until::Ends(3)), &rings));
        assert!(!unchanged(&sight(Until::Changes(4)), &rings));
    }
}
