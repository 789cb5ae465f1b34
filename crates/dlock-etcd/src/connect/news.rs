//! Which of a watch's events are news. Nobody else can make a [`Seen`], so no event passes by this.

/// What a watch tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    what: What,
    revision: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Own,
    Watched,
    /// Nothing, perhaps: the watch begins again after this revision, and what happened before is to be looked at.
    Anew,
}

impl Seen {
    /// Whether it was our own key that ended, or something in the range.
    pub(crate) fn is_own(self) -> bool {
        self.what == What::Own
    }

    /// Whether it is no event, but another watch in the place of one that may be late: everything after the revision is told by it, and a
    /// look must tell what happened before.
    pub(crate) fn is_anew(self) -> bool {
        self.what == What::Anew
    }

    pub(super) fn anew(revision: i64) -> Self {
        Self {
            what: What::Anew,
            revision,
        }
    }

    pub(crate) fn revision(self) -> i64 {
        self.revision
    }
}

/// What was known before.
#[derive(Debug)]
pub(super) struct News {
    seen: i64,
    /// The store's revision at the last look.
    looked: i64,
    own: Vec<u8>,
}

impl News {
    /// Only what happened after this revision is news.
    pub(super) fn after(seen: i64, own: &[u8]) -> Self {
        Self {
            seen,
            looked: seen,
            own: own.to_vec(),
        }
    }

    /// From now on.
    pub(super) fn knows(&mut self, seen: i64) {
        self.seen = seen;
    }

    /// A look has told what happened up to this revision. It may be lower than that of the look before, where an old copy of the store was
    /// restored: what is written then has numbers that were used before.
    pub(super) fn looked_at(&mut self, revision: i64) {
        self.looked = revision;
    }

    /// Whether something may have happened between the last look and this revision.
    pub(super) fn is_unseen(&self, revision: i64) -> bool {
        revision > self.looked
    }

    /// The first event that was not known before. A server that lags behind also tells of what was: of the end of an earlier entry with the
    /// same key, for example, and whoever took that for the end of the holder would be a second one.
    pub(super) fn first<'a>(
        &self,
        events: impl IntoIterator<Item = (&'a [u8], i64)>,
    ) -> Option<Seen> {
        let mut events = events.into_iter();
        let (key, revision) = events.find(|(_, revision)| *revision > self.seen)?;
        let what = if key == self.own {
            What::Own
        } else {
            What::Watched
        };
        Some(Seen { what, revision })
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

    #[test]
    fn after_a_restore_what_the_last_look_did_not_tell_is_looked_at() {
        let mut news = News::after(7, b"");
        assert!(news.is_unseen(8) && !news.is_unseen(7));
        news.looked_at(9);
        assert!(!news.is_unseen(9));
        // The store is an old copy now.
        news.looked_at(3);
        assert!(news.is_unseen(4) && !news.is_unseen(3));
    }
}
