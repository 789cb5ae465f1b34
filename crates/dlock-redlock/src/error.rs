//! What the nodes said, in one error that names every one of them.

use std::time::Duration;

use dlock_core::{Error, ErrorKind, HeldNow};

use crate::stake::{Mask, bit};

/// What one node said, for people and for the kind of the error.
#[derive(Debug)]
pub(crate) enum Word {
    /// It did what was asked.
    Agreed(&'static str),
    /// It answered, but not what was hoped for.
    Against(&'static str),
    /// It answered, but does not count now, for this reason.
    Uncounted(String),
    Failed(Error),
}

/// The words of all nodes to one question.
#[derive(Debug)]
pub(crate) struct Words {
    said: Vec<Option<Word>>,
    /// How long was waited for those who have not said anything; `None` when the others had decided before.
    waited: Option<Duration>,
}

impl Words {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            said: std::iter::repeat_with(|| None).take(nodes).collect(),
            waited: None,
        }
    }

    pub(crate) fn note(&mut self, node: usize, word: Word) {
        if let Some(said) = self.said.get_mut(node) {
            *said = Some(word);
        }
    }

    /// What a node said is to be asked again.
    pub(crate) fn forget(&mut self, node: usize) {
        if let Some(said) = self.said.get_mut(node) {
            *said = None;
        }
    }

    /// Who has said nothing by now has let this time pass.
    pub(crate) fn time_up(&mut self, limit: Duration) {
        self.waited = Some(limit);
    }

    /// How many nodes did what was asked.
    pub(crate) fn agreed(&self) -> usize {
        self.count(|word| matches!(word, Word::Agreed(_)))
    }

    /// How many nodes answered something else.
    pub(crate) fn against(&self) -> usize {
        self.count(|word| matches!(word, Word::Against(_)))
    }

    /// The nodes that answered anything that counts.
    pub(crate) fn answered(&self) -> Mask {
        let said = self.said.iter().enumerate();
        let answered =
            said.filter(|(_, word)| matches!(word, Some(Word::Agreed(_) | Word::Against(_))));
        answered.fold(0, |all, (node, _)| all | bit(node))
    }

    fn count(&self, which: impl Fn(&Word) -> bool) -> usize {
        self.said
            .iter()
            .flatten()
            .filter(|word| which(word))
            .count()
    }

    /// One error for all. Its kind is that of the trouble; where nodes are in different trouble, the one that may pass. A node that
    /// was not waited for is in no trouble, for all we know.
    pub(crate) fn error<'a>(self, places: impl Iterator<Item = &'a str>, needed: usize) -> Error {
        let all = self.said.len();
        let agreed = self.agreed();
        let mut kind = None;
        let mut certain = true;
        let mut source = None;
        let mut said = Vec::with_capacity(all);
        for (place, word) in places.zip(self.said) {
            let (worst, text) = match word {
                Some(Word::Agreed(text)) => {
                    certain = false;
                    (None, text.to_owned())
                }
                Some(Word::Against(text)) => (None, text.to_owned()),
                Some(Word::Uncounted(text)) => {
                    certain = false;
                    (Some(ErrorKind::Unreachable), text)
                }
                Some(Word::Failed(error)) => {
                    certain &= error.held_now() == HeldNow::No;
                    let worst = Some(error.kind());
                    let text = error.message().to_owned();
                    source.get_or_insert(error);
                    (worst, text)
                }
                None => {
                    certain = false;
                    match self.waited {
                        Some(limit) => (
                            Some(ErrorKind::TimedOut),
                            format!("no answer within {limit:?}"),
                        ),
                        None => (None, "not waited for".to_owned()),
                    }
                }
            };
            kind = match (kind, worst) {
                (None, worst) => worst,
                (kind, None) => kind,
                (Some(a), Some(b)) => Some(milder(a, b)),
            };
            said.push(format!("{place}: {text}"));
        }
        let message = format!(
            "{agreed} of {all} nodes agreed, {needed} are needed ({})",
            said.join("; ")
        );
        let error = Error::new(kind.unwrap_or(ErrorKind::Store), message).with_held(if certain {
            HeldNow::No
        } else {
            HeldNow::Unknown
        });
        match source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}

/// Of two kinds of trouble, the one to report: what passes by itself before what does not, silence before a refusal.
fn milder(a: ErrorKind, b: ErrorKind) -> ErrorKind {
    let rank = |kind: ErrorKind| match kind {
        ErrorKind::TimedOut => 0,
        ErrorKind::Unreachable => 1,
        kind if kind.is_retryable() => 2,
        _ => 3,
    };
    if rank(b) < rank(a) { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    const LIMIT: Duration = Duration::from_millis(200);

    fn words(said: Vec<Option<Word>>, waited: Option<Duration>) -> Error {
        let mut words = Words::new(3);
        if let Some(limit) = waited {
            words.time_up(limit);
        }
        for (node, word) in said.into_iter().enumerate() {
            if let Some(word) = word {
                words.note(node, word);
            }
        }
        words.error(["a:1", "b:2", "c:3"].into_iter(), 2)
    }

    fn granted_failed_silent() -> Vec<Option<Word>> {
        vec![
            Some(Word::Agreed("granted")),
            failed(ErrorKind::Unreachable),
            None,
        ]
    }

    fn failed(kind: ErrorKind) -> Option<Word> {
        Some(Word::Failed(
            Error::new(kind, "it said no").with_held(HeldNow::No),
        ))
    }

    #[test]
    fn every_node_is_named_with_what_it_said() {
        let error = words(granted_failed_silent(), Some(LIMIT));
        assert_eq!(
            error.message(),
            "1 of 3 nodes agreed, 2 are needed (a:1: granted; b:2: it said no; c:3: no answer within 200ms)"
        );
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.held_now(), HeldNow::Unknown);
        assert!(error.source().is_some());
    }

    #[test]
    fn a_node_that_was_not_waited_for_is_in_no_trouble() {
        let error = words(granted_failed_silent(), None);
        assert!(error.message().ends_with("c:3: not waited for)"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        // It may have done what it was asked for all the same.
        let said = vec![failed(ErrorKind::Denied), failed(ErrorKind::Denied), None];
        let error = words(said, None);
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert_eq!(error.held_now(), HeldNow::Unknown);
    }

    #[test]
    fn the_kind_is_the_mildest_trouble() {
        use ErrorKind::{Denied, Store, TimedOut, Unreachable};
        for (kinds, expected) in [
            ([Denied, Denied, Denied], Denied),
            ([Denied, Store, Denied], Store),
            ([Denied, Unreachable, Store], Unreachable),
            ([Unreachable, Unreachable, TimedOut], TimedOut),
        ] {
            let error = words(kinds.map(failed).into_iter().collect(), None);
            assert_eq!(error.kind(), expected, "{kinds:?}");
            assert_eq!(error.held_now(), HeldNow::No);
        }
    }
}
