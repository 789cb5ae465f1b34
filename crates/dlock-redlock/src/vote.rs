//! How the answers of the nodes become one: pure rules, without time and network, which the model checker uses too.

use std::time::Duration;

use crate::stake::{Mask, bit};

/// What one node said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Vote {
    /// The attempt holds the lock there, and the node's counter is this number, written by the attempt.
    Granted(u64),
    /// The same, from a node that does not count now.
    Uncounted,
    /// Others hold it there, with this counter; when asking again is worth it, if that is known.
    Others(u64, Option<Duration>),
    /// No answer, or an error.
    Failed,
}

/// What the answers so far mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// More answers are needed.
    Open,
    /// A quorum has given the lock, with one and the same counter: the token.
    Agreed(u64),
    /// A quorum has given the lock, with different counters: they must be raised.
    Apart,
    /// Others hold it.
    Others,
    /// Others hold it at single nodes, but nobody is known to have a quorum.
    Split,
    /// Too few nodes answered to know anything.
    Failed,
}

/// The answers of all nodes to one question.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ballot {
    quorum: usize,
    votes: Vec<Option<Vote>>,
    /// The highest counter that was found above what an attempt wanted to raise it to.
    above: u64,
}

/// More than half, also for even numbers.
pub(crate) fn quorum_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

impl Ballot {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            quorum: quorum_of(nodes),
            votes: vec![None; nodes],
            above: 0,
        }
    }

    pub(crate) fn cast(&mut self, node: usize, vote: Vote) {
        if let Some(place) = self.votes.get_mut(node) {
            *place = Some(vote);
        }
    }

    /// What a node said is to be asked again.
    pub(crate) fn withdraw(&mut self, node: usize) {
        if let Some(place) = self.votes.get_mut(node) {
            *place = None;
        }
    }

    /// The nodes that have answered.
    pub(crate) fn answered(&self) -> Mask {
        let votes = self.votes.iter().enumerate();
        let answered = votes.filter(|(_, vote)| !matches!(vote, None | Some(Vote::Failed)));
        answered.fold(0, |all, (node, _)| all | bit(node))
    }

    /// A node's counter was too high to be raised.
    pub(crate) fn found_above(&mut self, counter: u64) {
        self.above = self.above.max(counter);
    }

    /// Who has not answered is not waited for any longer.
    pub(crate) fn close(&mut self) {
        for vote in &mut self.votes {
            vote.get_or_insert(Vote::Failed);
        }
    }

    /// The same ballot with the nodes in another order.
    #[cfg(test)]
    pub(crate) fn reordered(&self, order: &[usize]) -> Self {
        let votes = order.iter().map(|node| self.votes[*node]).collect();
        Self {
            votes,
            ..self.clone()
        }
    }

    fn count(&self, which: impl Fn(&Vote) -> bool) -> usize {
        self.votes
            .iter()
            .flatten()
            .filter(|vote| which(vote))
            .count()
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let granted = self.granted().count();
        if granted >= self.quorum {
            return self.agreed().map_or(Verdict::Apart, Verdict::Agreed);
        }
        let open = self.votes.iter().filter(|vote| vote.is_none()).count();
        if granted + open >= self.quorum {
            return Verdict::Open;
        }
        // It is lost; whether to others, or for lack of nodes?
        let others = self.most_of_others();
        let answered = self.count(|vote| *vote != Vote::Failed);
        if others >= self.quorum {
            return Verdict::Others;
        }
        if open > 0 && answered + open >= self.quorum {
            return Verdict::Open;
        }
        if others == 0 || answered < self.quorum {
            Verdict::Failed
        } else {
            Verdict::Split
        }
    }

    /// How many nodes, at most, may be held by one and the same.
    fn most_of_others(&self) -> usize {
        let others = || {
            self.votes.iter().flatten().filter_map(|vote| match vote {
                Vote::Others(counter, _) => Some(*counter),
                _ => None,
            })
        };
        let same = |counter| others().filter(|other| *other == counter).count();
        others().map(same).max().unwrap_or(0)
    }

    fn granted(&self) -> impl Iterator<Item = u64> {
        self.votes.iter().flatten().filter_map(|vote| match vote {
            Vote::Granted(counter) => Some(*counter),
            _ => None,
        })
    }

    /// The counter that a quorum gave.
    fn agreed(&self) -> Option<u64> {
        self.granted()
            .find(|t| self.granted().filter(|c| c == t).count() >= self.quorum)
    }

    /// The token to raise the counters to: no lower than any that was given, and above what was in the way.
    pub(crate) fn target(&self) -> u64 {
        let highest = self.granted().max().unwrap_or(0);
        if self.above >= highest {
            self.above + 1
        } else {
            highest
        }
    }

    /// The nodes that gave the lock with another counter than `token`.
    pub(crate) fn to_raise(&self, token: u64) -> Vec<usize> {
        let votes = self.votes.iter().enumerate();
        votes
            .filter(|(_, vote)| matches!(vote, Some(Vote::Granted(counter)) if *counter != token))
            .map(|(node, _)| node)
            .collect()
    }

    /// When so many of those who hold now have ended that a quorum could be free.
    pub(crate) fn free_in(&self) -> Option<Duration> {
        let mut times: Vec<Duration> = self
            .votes
            .iter()
            .flatten()
            .filter_map(|vote| match vote {
                Vote::Others(_, free_in) => *free_in,
                _ => None,
            })
            .collect();
        times.sort_unstable();
        let needed = self.quorum.saturating_sub(self.granted().count()).max(1);
        times.get(needed - 1).or(times.last()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Vote::{Failed, Granted, Others, Uncounted};

    const BUSY: Vote = Others(3, None);

    fn ballot(votes: &[Option<Vote>]) -> Ballot {
        let mut ballot = Ballot::new(votes.len());
        for (node, vote) in votes.iter().enumerate() {
            if let Some(vote) = vote {
                ballot.cast(node, *vote);
            }
        }
        ballot
    }

    #[test]
    fn a_quorum_is_more_than_half() {
        let quorums: Vec<usize> = (1..=7).map(quorum_of).collect();
        assert_eq!(quorums, [1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn every_mix_of_answers_has_its_verdict() {
        let g = |n| Some(Granted(n));
        let (b, f, u) = (Some(BUSY), Some(Failed), Some(Uncounted));
        let other = |n| Some(Others(n, None));
        for (votes, expected) in [
            (vec![None, None, None], Verdict::Open),
            (vec![g(7), g(7), None], Verdict::Agreed(7)),
            (vec![g(7), g(9), None], Verdict::Apart),
            // A quorum that agrees is enough, whatever the others say.
            (vec![g(7), g(9), g(7)], Verdict::Agreed(7)),
            (vec![g(7), b, None], Verdict::Open),
            (vec![b, b, None], Verdict::Others),
            (vec![g(7), b, f], Verdict::Split),
            // Nobody says that others hold: too few nodes, not contention (C5).
            (vec![g(7), f, f], Verdict::Failed),
            (vec![f, f, b], Verdict::Failed),
            // It is lost, but whether to others is known only when the last has answered.
            (vec![f, None, b], Verdict::Open),
            (vec![f, f, None], Verdict::Failed),
            (vec![g(7), u, u], Verdict::Failed),
            (vec![g(7), u, b], Verdict::Split),
            (vec![g(1), g(1), b, b], Verdict::Split),
            (vec![g(1), b, other(4)], Verdict::Split),
            (
                vec![other(3), other(3), other(4), None, None],
                Verdict::Open,
            ),
            (
                vec![other(3), other(3), other(4), other(4), g(5)],
                Verdict::Split,
            ),
            (
                vec![other(3), other(3), other(4), other(4), f],
                Verdict::Split,
            ),
            (vec![g(1), g(1), g(1), b], Verdict::Agreed(1)),
            (vec![g(1), g(1), None, b], Verdict::Open),
            (vec![b, b, b, None, None], Verdict::Others),
            (vec![g(1), g(2), g(2), g(2), b], Verdict::Agreed(2)),
        ] {
            assert_eq!(ballot(&votes).verdict(), expected, "{votes:?}");
        }
    }

    #[test]
    fn who_is_silent_at_the_end_has_failed() {
        let mut open = ballot(&[Some(Granted(1)), None, None]);
        open.close();
        assert_eq!(open.verdict(), Verdict::Failed);
    }

    #[test]
    fn counters_are_raised_to_the_highest_or_above_what_is_in_the_way() {
        let mut apart = ballot(&[Some(Granted(7)), Some(Granted(9)), Some(BUSY)]);
        assert_eq!(apart.target(), 9);
        assert_eq!(apart.to_raise(9), [0]);
        apart.found_above(9);
        assert_eq!(apart.target(), 10);
        assert_eq!(apart.to_raise(10), [0, 1]);
    }

    #[test]
    fn asking_again_is_worth_it_when_a_quorum_could_be_free() {
        let ms = |n| Some(Others(3, Some(Duration::from_millis(n))));
        let busy = ballot(&[ms(30), ms(10), ms(20), ms(50), ms(40)]);
        assert_eq!(busy.free_in(), Some(Duration::from_millis(30)));
        let split = ballot(&[Some(Granted(1)), Some(Granted(1)), ms(30), ms(10), ms(20)]);
        assert_eq!(split.free_in(), Some(Duration::from_millis(10)));
        assert_eq!(ballot(&[Some(BUSY), None, None]).free_in(), None);
    }
}
