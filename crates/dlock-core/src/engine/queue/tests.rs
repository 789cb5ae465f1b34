use super::*;
use crate::Error;
use futures::FutureExt;
use std::pin::pin;

const PATIENCE: Duration = Duration::from_secs(10);

fn name() -> Name {
    Name::new("a").expect("good")
}

fn at(second: u64) -> Moment {
    Moment::from_nanos(second * 1_000_000_000)
}

fn enter(queue: &Arc<Queue>, company: Company) -> Result<Turn, Waiter> {
    enter_for(queue, company, PATIENCE)
}

fn enter_for(queue: &Arc<Queue>, company: Company, patience: Duration) -> Result<Turn, Waiter> {
    match queue.enter(&name(), company, patience, None, false, at(1)) {
        Entered::Turn(turn) => Ok(turn),
        Entered::Waiter(waiter, None) => Err(waiter),
        other => panic!("nothing rests: {other:?}"),
    }
}

fn turn(waited: Result<Waited, Error>) -> Turn {
    match waited.expect("the turn") {
        Waited::Turn(turn) => turn,
        Waited::Held(guard) => panic!("nobody passed {guard:?} on"),
        Waited::Alone => panic!("a waiter was sent to the store without its turn"),
    }
}

#[tokio::test]
async fn turns_go_in_order_of_arrival() {
    let queue = Arc::new(Queue::default());
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
    let queue = Arc::new(Queue::default());
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
    let queue = Arc::new(Queue::default());
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
    let queue = Arc::new(Queue::default());
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
