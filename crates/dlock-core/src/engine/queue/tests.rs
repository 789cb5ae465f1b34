use super::*;
use crate::Error;
use crate::engine::entry::Entry;
use futures::FutureExt;
use std::pin::pin;

const PATIENCE: Duration = Duration::from_secs(10);

fn name() -> Name {
    Name::new("a").expect("good")
}

fn at(second: u64) -> Moment {
    Moment::from_nanos(second * 1_000_000_000)
}

fn enter(queue: &Arc<Queue<Entry>>, company: Company) -> Result<Turn<Entry>, Waiter<Entry>> {
    enter_for(queue, company, PATIENCE)
}

fn enter_for(
    queue: &Arc<Queue<Entry>>,
    company: Company,
    patience: Duration,
) -> Result<Turn<Entry>, Waiter<Entry>> {
    match queue.enter(&name(), company, patience, None, false, at(1)) {
        Entered::Turn(turn) => Ok(turn),
        Entered::Waiter(waiter, None) => Err(waiter),
        other => panic!("nothing rests: {other:?}"),
    }
}

fn turn(waited: Result<Waited<Entry>, Error>) -> Turn<Entry> {
    match waited.expect("the turn") {
        Waited::Turn(turn) => turn,
        Waited::Held(guard) => panic!("nobody passed {guard:?} on"),
        Waited::Alone => panic!("a waiter was sent to the store without its turn"),
    }
}

#[tokio::test]
async fn turns_go_in_order_of_arrival() {
    let queue = Arc::new(Queue::<Entry>::default());
    let first = enter(&queue, Company::Alone).expect("the first");
    let mut second = enter(&queue, Company::Alone).expect_err("a waiter");
    let mut third = enter(&queue, Company::Alone).expect_err("a waiter");
    let (mut second, mut third) = (pin!(second.turn()), pin!(third.turn()));
    assert!(second.as_mut().now_or_never().is_none());
    assert!(third.as_mut().now_or_never().is_none());
    assert!(queue.try_enter(&name(), Company::Alone).is_none());
    drop(first);
    assert!(third.as_mut().now_or_never().is_none());
    let turn = turn(second.await);
    assert_eq!(turn.passed(), 1);
    drop(turn);
    drop(third.await);
    assert!(locked(&queue.lines).is_empty(), "nothing is left");
}

#[tokio::test]
async fn a_dropped_waiter_leaves_and_a_dropped_grantee_passes_on() {
    let queue = Arc::new(Queue::<Entry>::default());
    let first = enter(&queue, Company::Alone).expect("the first");
    let mut gives_up = enter(&queue, Company::Alone).expect_err("a waiter");
    let mut granted = enter(&queue, Company::Alone).expect_err("a waiter");
    let mut last = enter(&queue, Company::Alone).expect_err("a waiter");
    assert!(gives_up.turn().now_or_never().is_none());
    assert!(granted.turn().now_or_never().is_none());
    assert!(last.turn().now_or_never().is_none());
    drop(gives_up);
    assert_eq!(queue.waiting(&name()), 2);
    drop(first); // the turn is on its way to `granted` ...
    drop(granted); // ... which does not live to use it
    drop(last.turn().await);
    assert!(locked(&queue.lines).is_empty(), "nothing is left");
}

#[tokio::test]
async fn those_who_can_hold_it_together_go_together_but_never_past_others() {
    let queue = Arc::new(Queue::<Entry>::default());
    let first = enter(&queue, Company::Together).expect("a turn");
    let second = enter(&queue, Company::Together).expect("a turn beside it");
    let mut alone = enter(&queue, Company::Alone).expect_err("a waiter");
    let mut late = enter(&queue, Company::Together).expect_err("behind the one alone");
    let mut later = enter(&queue, Company::Together).expect_err("behind the one alone");
    drop(first);
    assert!(alone.turn().now_or_never().is_none());
    drop(second);
    let turn = alone.turn().now_or_never().expect("its turn");
    assert!(late.turn().now_or_never().is_none());
    drop(turn);
    let turns = (late.turn().now_or_never(), later.turn().now_or_never());
    assert!(turns.0.is_some() && turns.1.is_some());
    drop(turns);
    assert!(locked(&queue.lines).is_empty(), "nothing is left");
}

#[tokio::test]
async fn trouble_is_one_patience_for_the_line() {
    let queue = Arc::new(Queue::<Entry>::default());
    let first = enter(&queue, Company::Alone).expect("the first");
    let mut second = enter(&queue, Company::Alone).expect_err("a waiter");
    let mut patient = enter_for(&queue, Company::Alone, PATIENCE * 2).expect_err("a waiter");
    let error = Error::new(crate::ErrorKind::Unreachable, "down");
    assert_eq!(first.failed(&error, at(1)), at(1));
    assert!(second.turn().now_or_never().is_none());
    assert_eq!(first.failed(&error, at(11)), at(1));
    let told = second.turn().now_or_never().expect("told");
    assert_eq!(
        told.expect_err("the trouble").kind(),
        crate::ErrorKind::Unreachable
    );
    drop(first);
    let turn = turn(patient.turn().await);
    assert_eq!(turn.failed(&error, at(12)), at(1), "the trouble goes along");
}

/// A clock that stands still, for what a request says of itself.
#[derive(Debug)]
struct Stopped(Moment);

impl crate::Clock for Stopped {
    fn now(&self) -> Moment {
        self.0
    }

    fn sleep_until(&self, _: Moment) -> futures::future::BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

fn request(now: Moment) -> Arc<Request> {
    let request = Request::new(name(), Mode::Exclusive, Arc::new(Stopped(now)));
    Arc::new(request)
}

const TRIP: Duration = Duration::from_secs(5);

#[tokio::test]
async fn those_in_line_know_that_the_lock_is_busy_from_the_one_that_asks() {
    let queue = Arc::new(Queue::<Entry>::default());
    let first = enter(&queue, Company::Alone).expect("the first");
    let waiter = enter(&queue, Company::Alone).expect_err("a waiter");
    assert!(!waiter.is_contended(at(2), TRIP), "nobody has said so");
    let asks = request(at(2));
    first.asks(&asks, at(2));
    assert!(!waiter.is_contended(at(2), TRIP), "not answered yet");
    asks.mark_contended();
    assert!(waiter.is_contended(at(2), TRIP));
    assert!(!first.says_busy(at(1), at(2), TRIP), "it has not come back");
    // Its future is dropped while the store's word stands: the next knows it, and so do those behind.
    let behind = enter(&queue, Company::Alone).expect_err("a waiter");
    drop(first);
    drop(asks);
    assert!(behind.is_contended(at(3), TRIP));
    let mut waiter = waiter;
    let next = turn(waiter.turn().await);
    assert!(next.says_busy(at(1), at(3), TRIP));
    assert!(!next.says_busy(at(3), at(4), TRIP), "that was before");
}

#[tokio::test]
async fn a_dropped_question_says_nothing_after_a_failure_or_without_an_answer() {
    for (contended, failed, held_together) in [
        (false, false, false),
        (true, true, false),
        (true, false, true),
    ] {
        let queue = Arc::new(Queue::<Entry>::default());
        let company = if held_together {
            Company::Together
        } else {
            Company::Alone
        };
        let first = enter(&queue, company).expect("the first");
        let waiter = enter(&queue, Company::Alone).expect_err("a waiter");
        let asks = request(at(2));
        if failed {
            let error = Error::new(crate::ErrorKind::Unreachable, "down");
            first.failed(&error, at(2));
        }
        first.asks(&asks, at(2));
        if contended {
            asks.mark_contended();
        }
        drop(first);
        drop(asks);
        assert!(!waiter.is_contended(at(3), TRIP), "{contended} {failed}");
    }
}

#[test]
fn a_turn_that_was_tried_for_counts_as_one() {
    let queue = Arc::new(Queue::<Entry>::default());
    let first = queue.try_enter(&name(), Company::Together).expect("free");
    let second = queue.try_enter(&name(), Company::Together);
    assert!(second.is_some(), "beside it");
    assert!(queue.try_enter(&name(), Company::Alone).is_none());
    drop(first);
    assert!(queue.try_enter(&name(), Company::Alone).is_none());
    assert_eq!(
        locked(&queue.lines).get(&name()).map(|line| line.turns),
        Some(1)
    );
    drop(second);
    assert!(queue.try_enter(&name(), Company::Alone).is_some());
}

#[test]
fn no_more_than_so_many_go_side_by_side() {
    let queue = Arc::new(Queue::<Entry>::default());
    let enters = || enter(&queue, Company::Together);
    let mut turns: Vec<_> = (0..SIDE_BY_SIDE).map(|_| enters().expect("room")).collect();
    let waiters: Vec<_> = (0..2).map(|_| enters().expect_err("a waiter")).collect();
    drop(turns.pop());
    assert_eq!(queue.waiting(&name()), 1, "one follows one");
    drop(waiters);
    drop(turns);
    assert!(locked(&queue.lines).is_empty(), "nothing is left");
}

#[test]
fn tasks_past_the_line_are_known_while_they_ask() {
    let queue = Arc::new(Queue::<Entry>::default());
    let waits = |held| queue.past.waits(&name(), held);
    let goes = |company, waits| queue.past_the_line(&name(), company, waits);
    assert!(!queue.past.has_any(&name()));
    let tries = goes(Company::Alone, false);
    assert!(queue.past.has_any(&name()));
    assert!(!waits(Company::Alone) && !waits(Company::Together));
    let reads = goes(Company::Together, true);
    assert!(waits(Company::Alone), "a writer is waited for by a reader");
    assert!(
        !waits(Company::Together),
        "readers do not wait for each other"
    );
    let writes = goes(Company::Alone, true);
    assert!(waits(Company::Alone) && waits(Company::Together));
    drop(reads);
    assert!(waits(Company::Alone) && waits(Company::Together));
    assert!(queue.is_waited_for(&name(), Mode::Exclusive));
    drop(writes);
    assert!(!waits(Company::Alone) && !waits(Company::Together));
    assert!(queue.past.has_any(&name()), "the one that tries");
    drop(tries);
    assert!(!queue.past.has_any(&name()), "nothing is left");
}

#[test]
fn a_store_that_says_busy_is_heard_along_the_line() {
    let queue = Arc::new(Queue::<Entry>::default());
    let first = enter(&queue, Company::Alone).expect("the first");
    let waiter = enter(&queue, Company::Together).expect_err("a waiter");
    assert!(!waiter.could_ask_beside(), "a writer has the turn");
    assert!(!waiter.is_contended(at(2), TRIP));
    first.busy(at(2));
    assert!(waiter.is_contended(at(2), TRIP));
}

#[tokio::test]
async fn turns_count_anew_when_others_have_had_their_chance() {
    let queue = Arc::new(Queue::<Entry>::default());
    let first = enter(&queue, Company::Alone).expect("the first");
    let mut second = enter(&queue, Company::Alone).expect_err("a waiter");
    let mut third = enter(&queue, Company::Alone).expect_err("a waiter");
    drop(first);
    let second = turn(second.turn().await);
    assert_eq!(second.passed(), 1);
    second.counts_anew();
    drop(second);
    assert_eq!(turn(third.turn().await).passed(), 1, "not the second one");
}

/// A hold of which nothing matters here but the guard.
#[derive(Debug)]
struct Plain(Arc<ResolvedSettings>);

impl Hold for Plain {
    type Guard = &'static str;

    fn settings(&self) -> &Arc<ResolvedSettings> {
        &self.0
    }

    fn is_held(&self, _: Moment) -> bool {
        true
    }

    fn others_came(&self) {}
}

#[test]
fn an_heir_that_has_gone_away_gives_the_guard_back() {
    let capabilities = crate::Capabilities::new("test");
    let settings = crate::Settings::new().check(&capabilities);
    let inherits = Inherits {
        settings: Arc::new(settings.expect("good settings")),
        owner: None,
        span: None,
    };
    let place = || Place::<Plain>::new(Company::Alone, PATIENCE, Some(inherits.clone()));
    let (gone, told) = place();
    let heir = gone.inherits().expect("it can use a hold");
    drop(told);
    assert_eq!(heir.take("the guard"), Err("the guard"));
    let (stays, _told) = place();
    let heir = stays.inherits().expect("it can use a hold");
    assert_eq!(heir.take("the guard"), Ok(()));
}
