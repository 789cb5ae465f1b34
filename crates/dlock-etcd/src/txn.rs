//! A transaction in our own words: `connect.rs` alone speaks the client's.

/// Keys from `start` up to, not including, `end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: Vec<u8>,
    /// Empty: the key `start` alone.
    pub(crate) end: Vec<u8>,
}

impl Range {
    pub(crate) fn new(start: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Self {
        Self {
            start: start.into(),
            end: end.into(),
        }
    }

    pub(crate) fn key(key: &[u8]) -> Self {
        Self::new(key, [])
    }

    /// All keys that start like this. Ours are ASCII or UTF-8, whose last byte is never 0xFF.
    pub(crate) fn prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let start = prefix.into();
        let mut end = start.clone();
        if let Some(last) = end.last_mut() {
            *last = last.saturating_add(1);
        }
        Self { start, end }
    }

    #[cfg(test)]
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        if self.end.is_empty() {
            return key == self.start;
        }
        (self.start.as_slice()..self.end.as_slice()).contains(&key)
    }
}

/// What must hold for the first branch.
#[derive(Debug, Clone)]
pub(crate) enum When {
    /// The key exists and was created at this revision.
    CreatedAt(Vec<u8>, i64),
    /// The key exists, and the first line of its value is this.
    FirstLine(Vec<u8>, String),
    /// No key is there.
    NoneIn(Range),
    /// No key was created after this revision.
    NoneSince(Range, i64),
}

/// One step.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
        lease: i64,
    },
    Delete(Vec<u8>),
    Get(About, Query),
}

/// What a question is about: its answer is found by this, not by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    /// An entry of our own.
    Own,
    /// The mark of an abandoned attempt.
    Mark,
    /// The nearest entries before our own that may stand in its way.
    Before,
    /// For a permit: the nearest entry before it that is none.
    Stranger,
    /// The permits of a semaphore.
    Permits,
    /// Entries of anybody.
    Entries,
}

/// A question for keys.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    pub(crate) range: Range,
    pub(crate) order: Order,
    /// 0: all.
    pub(crate) limit: i64,
    /// Only those created before this revision. 0: all.
    pub(crate) before: i64,
    pub(crate) want: Want,
}

/// What is told of each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    All,
    /// Everything but the value.
    Keys,
    /// Nothing: how many there are is enough.
    Count,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    OldestFirst,
    NewestFirst,
}

impl Query {
    /// The oldest few.
    pub(crate) fn oldest(range: Range, limit: i64) -> Self {
        Self {
            order: Order::OldestFirst,
            ..Self::newest(range, limit)
        }
    }

    /// How many there are.
    pub(crate) fn count(range: Range) -> Self {
        Self {
            want: Want::Count,
            ..Self::newest(range, 0)
        }
    }

    /// The newest few.
    pub(crate) fn newest(range: Range, limit: i64) -> Self {
        Self {
            range,
            order: Order::NewestFirst,
            limit,
            before: 0,
            want: Want::All,
        }
    }

    pub(crate) fn one(key: &[u8]) -> Self {
        Self::newest(Range::key(key), 1)
    }

    pub(crate) fn created_before(mut self, revision: i64) -> Self {
        self.before = revision;
        self
    }

    pub(crate) fn keys_only(mut self) -> Self {
        self.want = Want::Keys;
        self
    }
}

/// All or nothing: `then` when every condition holds, `or_else` otherwise.
#[derive(Debug, Clone, Default)]
pub(crate) struct Txn {
    pub(crate) when: Vec<When>,
    pub(crate) then: Vec<Step>,
    pub(crate) or_else: Vec<Step>,
    /// Questions may be answered by the asked server alone, from what it knows.
    pub(crate) local: bool,
}

impl Txn {
    pub(crate) fn of(steps: Vec<Step>) -> Self {
        Self {
            then: steps,
            ..Self::default()
        }
    }
}

/// A key that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) created: i64,
    /// When it was changed last: 0 in what the store never told.
    pub(crate) modified: i64,
    pub(crate) lease: i64,
}

/// What one question found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) about: About,
    pub(crate) rows: Vec<Row>,
    /// How many keys the range has in all, whatever else was asked.
    pub(crate) total: i64,
}

/// What came back.
#[derive(Debug, Clone, Default)]
pub(crate) struct TxnAnswer {
    /// Which branch was taken.
    pub(crate) succeeded: bool,
    /// The store's revision at that moment.
    pub(crate) revision: i64,
    /// For each question of the branch that was taken, what was found.
    pub(crate) found: Vec<Found>,
}

impl TxnAnswer {
    fn about(&self, about: About) -> Option<&Found> {
        self.found.iter().find(|found| found.about == about)
    }

    /// What the question about this found; nothing also if it was not asked.
    pub(crate) fn rows(&self, about: About) -> &[Row] {
        self.about(about).map_or(&[], |found| &found.rows)
    }

    /// How many keys there are in the range of this question.
    pub(crate) fn total(&self, about: About) -> i64 {
        self.about(about).map_or(0, |found| found.total)
    }

    /// Everything that was found.
    pub(crate) fn into_rows(self) -> impl Iterator<Item = Row> {
        self.found.into_iter().flat_map(|found| found.rows)
    }
}
