//! Which of a watch's events are news. Nobody else can make a [`Seen`], so no event passes by this.

/// What a watch tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    own: bool,
    revision: i64,
}

impl Seen {
    /// Whether it was our own key that ended, or something in the range.
    pub(crate) fn is_own(self) -> bool {
        self.own
    }

    pub(crate) fn revision(self) -> i64 {
        self.revision
    }
}

/// What was known before.
#[derive(Debug)]
pub(super) struct News {
    seen: i64,
    own: Vec<u8>,
}

impl News {
    /// Only what happened after this revision is news.
    pub(super) fn after(seen: i64, own: &[u8]) -> Self {
        Self {
            seen,
            own: own.to_vec(),
        }
    }

    /// From now on.
    pub(super) fn knows(&mut self, seen: i64) {
        self.seen = seen;
    }

    /// The first event that was not known before. A server that lags behind also tells of what was: of the end of an earlier entry with the
    /// same key, for example, and whoever took that for the end of the holder would be a second one.
    pub(super) fn first<'a>(
        &self,
        events: impl IntoIterator<Item = (&'a [u8], i64)>,
    ) -> Option<Seen> {
        let mut events = events.into_iter();
        let (key, revision) = events.find(|(_, revision)| *revision > self.seen)?;
        Some(Seen {
            own: key == self.own,
            revision,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_earlier_entry_with_the_same_key_is_no_news() {
        let event = |key: &'static str, revision| (key.as_bytes(), revision);
        let mut news = News::after(7, b"own");
        assert_eq!(news.first([event("a", 6), event("a", 7)]), None);
        let seen = news.first([event("own", 6), event("a", 8), event("own", 9)]);
        let seen = seen.expect("news");
        assert!(!seen.is_own() && seen.revision() == 8);
        let seen = news.first([event("own", 8), event("a", 9)]);
        assert!(seen.is_some_and(Seen::is_own));
        news.knows(8);
        assert_eq!(news.first([event("own", 8)]), None);
        news.knows(5);
        let seen = news.first([event("a", 6)]).expect("it is not known");
        assert_eq!(seen.revision(), 6);
    }
}
