//! Whether a server tells the events of a watch at once.
//!
//! A watch "from now on" can begin behind the store. The server reads its revision, and then enters the watch as one that begins with the next; a
//! write that ends between these two steps makes it a watch of the past, which a loop serves that runs every 100 ms (etcd before 3.4.38,
//! 3.5.22 and 3.6.2; on a store that is written to all the time one watch in some hundred). Later servers do both in one step, and are not asked. Nothing in the answer says so. But the progress of the stream, asked for in the same breath, tells:
//!
//! ```text
//!  sent:      watch, progress
//!  server:    reads the revision: 7 · enters the watch from 8 on · reads the revision for the progress
//!  answered:  watch at 7, progress at 7: nothing was written meanwhile, the watch is told at once
//!             watch at 7, progress at 8: perhaps it was entered late                     ─┐
//!             watch at 7, no progress: it was (servers from 3.4.25, 3.5.8 and 3.6 on)    ─┴► another watch in its place
//! ```

use std::time::Duration;

use tokio::time::Instant;

use super::asking::Asking;

/// How often a watch is put in the place of one that may be late. One that is late for good is so for 100 ms.
const TRIES: u8 = 3;

/// How much later than the watch's own answer another may come, beside the time of two trips. For the progress twice as much with each further try, so that a server
/// that stalls is asked by its waiters ever more rarely.
const SILENCE: Duration = Duration::from_millis(10);

/// How much later than another answer one may come that was asked for in the same breath.
pub(super) fn time_to_answer(trip: Duration) -> Duration {
    trip.saturating_mul(2).saturating_add(SILENCE)
}

/// What is known about the newest watcher of a stream.
#[derive(Debug)]
pub(super) struct Promptness {
    /// The newest watcher and the revision after which it tells; `None` while it is asked for.
    watcher: Option<(i64, i64)>,
    /// A progress that came before the watcher's own answer: two queues of the server lead to the stream.
    early: Option<i64>,
    /// Questions for the progress that nobody has answered.
    open: u8,
    /// Those whose place it took.
    replaced: Vec<i64>,
    tries: u8,
    /// How long a trip to the server takes.
    trip: Duration,
    /// Whether any question was answered.
    answered: bool,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The progress is asked for, and should be there by then.
    Asked(Instant),
    Prompt,
    /// Perhaps late: another watch is due.
    Late,
    /// It may be late, and nothing more is done about it.
    Unknown,
}

impl Promptness {
    /// Nothing is asked and nothing replaced.
    pub(super) fn not_asked() -> Self {
        Self {
            watcher: None,
            early: None,
            open: 0,
            replaced: Vec::new(),
            tries: 0,
            trip: Duration::ZERO,
            answered: false,
            state: State::Unknown,
        }
    }

    /// Of the first watcher, for which progress is asked now. A trip to the server takes this long.
    pub(super) fn asked(watcher: i64, since: i64, trip: Duration) -> Self {
        let mut asked = Self {
            watcher: Some((watcher, since)),
            open: 1,
            trip,
            ..Self::not_asked()
        };
        asked.state = State::Asked(asked.until());
        asked
    }

    /// The same if the store has moved on since the waiter looked: another watch is put there at once, together with the question.
    pub(super) fn late(watcher: i64, since: i64, trip: Duration) -> Self {
        Self {
            open: 0,
            state: State::Late,
            ..Self::asked(watcher, since, trip)
        }
    }

    /// When the answer to a question of now should be there.
    fn until(&self) -> Instant {
        Instant::now() + self.time_to_answer()
    }

    fn time_to_answer(&self) -> Duration {
        time_to_answer(self.trip).saturating_mul(1 << self.tries)
    }

    #[cfg(test)]
    fn is_prompt(&self) -> bool {
        self.state == State::Prompt
    }

    /// Until when the progress should have come.
    pub(super) fn patience(&self) -> Option<Instant> {
        match self.state {
            State::Asked(until) if self.watcher.is_some() => Some(until),
            _ => None,
        }
    }

    /// The watcher to replace, if it is time to; from now on another one is asked for.
    pub(super) fn take_late(&mut self) -> Option<i64> {
        if self.state != State::Late {
            return None;
        }
        let (watcher, _) = self.watcher.filter(|_| self.tries < TRIES)?;
        self.watcher = None;
        self.early = None;
        self.open += 1;
        self.replaced.push(watcher);
        self.tries += 1;
        self.state = State::Asked(Instant::now());
        Some(watcher)
    }

    /// No progress was told: a server of today is silent while the watch is late.
    pub(super) fn was_silent(&mut self) {
        self.is_late();
    }

    /// Whether nothing more is asked, and no question was ever answered.
    pub(super) fn asked_in_vain(&self) -> bool {
        self.state == State::Unknown && !self.answered
    }

    fn is_late(&mut self) {
        self.state = if self.tries < TRIES {
            State::Late
        } else {
            State::Unknown
        };
    }

    /// The watcher that was asked for is there.
    pub(super) fn created(&mut self, watcher: i64, since: i64) {
        self.watcher = Some((watcher, since));
        // Answers to earlier questions came before this one, if they come at all.
        self.open = self.open.min(1);
        if let State::Asked(_) = self.state {
            self.state = State::Asked(self.until());
        }
        if let Some(progress) = self.early.take() {
            self.progressed(progress);
        }
    }

    /// A progress is told, which is an answer of the server, whenever it comes and whatever it says.
    pub(super) fn progress(&mut self, revision: i64, asking: &Asking) {
        asking.has_answered();
        self.progressed(revision);
    }

    fn progressed(&mut self, revision: i64) {
        self.answered = true;
        let answers_an_earlier_one = self.open > 1;
        self.open = self.open.saturating_sub(1);
        if !matches!(self.state, State::Asked(_)) || answers_an_earlier_one {
            return;
        }
        match self.watcher {
            None => self.early = Some(revision),
            Some((_, since)) if since == revision => self.state = State::Prompt,
            Some(_) => self.is_late(),
        }
    }

    /// Whether this watcher's end is our own doing.
    pub(super) fn is_replaced(&self, watcher: i64) -> bool {
        self.replaced.contains(&watcher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Promptness {
        Promptness::asked(1, 7, Duration::ZERO)
    }

    #[test]
    fn progress_at_its_own_revision_tells_that_a_watch_is_prompt() {
        let mut prompt = asked();
        assert!(!prompt.is_prompt() && prompt.patience().is_some());
        prompt.progressed(7);
        assert!(prompt.is_prompt() && prompt.patience().is_none());
        assert_eq!(prompt.take_late(), None);
        // What is told unasked changes nothing.
        prompt.progressed(9);
        assert!(prompt.is_prompt());
    }

    #[test]
    fn a_watch_that_may_be_late_is_replaced_a_few_times() {
        let mut prompt = asked();
        prompt.progressed(8);
        for watcher in 1..=i64::from(TRIES) {
            assert!(!prompt.is_prompt());
            assert_eq!(prompt.take_late(), Some(watcher));
            assert!(prompt.is_replaced(watcher) && !prompt.is_replaced(watcher + 1));
            assert_eq!(prompt.take_late(), None, "one is on its way");
            assert!(prompt.patience().is_none(), "its answer will come");
            prompt.created(watcher + 1, 10);
            prompt.progressed(11);
        }
        assert_eq!(prompt.take_late(), None);
        assert!(!prompt.is_prompt() && prompt.patience().is_none());
    }

    #[test]
    fn silence_tells_that_a_watch_is_late() {
        let mut prompt = asked();
        prompt.was_silent();
        assert_eq!(prompt.take_late(), Some(1));
    }

    #[test]
    fn each_try_has_two_trips_of_time_and_more_than_the_one_before() {
        const TRIP: Duration = Duration::from_millis(40);
        let begun = Instant::now();
        let mut prompt = Promptness::asked(1, 7, TRIP);
        for tries in 0..=u32::from(TRIES) {
            let patience = (TRIP * 2 + SILENCE) * 2_u32.pow(tries);
            assert_eq!(prompt.time_to_answer(), patience);
            assert!(
                prompt
                    .patience()
                    .is_some_and(|until| until >= begun + patience)
            );
            assert!(!prompt.asked_in_vain());
            prompt.was_silent();
            if prompt.take_late().is_some() {
                prompt.created(i64::from(tries) + 2, 7);
            }
        }
        assert!(prompt.patience().is_none() && prompt.asked_in_vain());
        prompt.progressed(7);
        assert!(!prompt.asked_in_vain());
    }

    #[test]
    fn who_does_not_ask_replaces_nothing() {
        let mut prompt = Promptness::not_asked();
        prompt.progressed(9);
        assert!(prompt.patience().is_none() && prompt.take_late().is_none());
    }

    #[test]
    fn progress_may_overtake_the_answer() {
        let mut prompt = Promptness::late(1, 7, Duration::ZERO);
        assert_eq!(prompt.take_late(), Some(1));
        prompt.progressed(9);
        prompt.created(2, 9);
        assert!(prompt.is_prompt());
    }

    #[test]
    fn the_answer_to_an_earlier_question_tells_nothing() {
        let mut prompt = asked();
        prompt.was_silent();
        assert_eq!(prompt.take_late(), Some(1));
        // It was slow, and is from before the second watch was entered.
        prompt.progressed(9);
        prompt.created(2, 9);
        assert!(!prompt.is_prompt());
        prompt.progressed(9);
        assert!(prompt.is_prompt());
    }

    #[test]
    fn what_was_answered_in_time_closes_the_earlier_questions() {
        let mut prompt = asked();
        prompt.was_silent();
        assert_eq!(prompt.take_late(), Some(1));
        prompt.created(2, 9);
        // The first question was never answered, and this is about the second.
        prompt.progressed(9);
        assert!(prompt.is_prompt());
    }

    #[test]
    fn progress_is_an_answer_of_the_server_whoever_reads_it() {
        let asking = Asking::default();
        asking.was_silent();
        asking.was_silent();
        assert!(asking.is_silent());
        let mut prompt = asked();
        prompt.progress(7, &asking);
        assert!(prompt.is_prompt());
        assert!(!asking.is_silent(), "somebody was answered");
    }
}
