use std::sync::Arc;

use dlock_core::{Mode, SystemClock};

use super::*;
use crate::key::Keys;

fn attempts() -> Attempts {
    Attempts::new(Duration::from_secs(600))
}

fn request() -> Request {
    let name = Name::new("a").expect("a name");
    Request::new(name, Mode::Exclusive, Arc::new(SystemClock))
}

fn seat(attempts: &Attempts, request: &Request, lease: i64) -> Result<Vec<u8>, Trouble> {
    let lock = Keys::new("p").lock(request.name());
    attempts
        .seat(request, &lock, lease)
        .map(|seated| seated.key)
}

#[test]
fn abandoned_attempts_are_refused() {
    let attempts = attempts();
    let (first, other) = (request(), request());
    kit::remember_abandoned(first.attempt());
    assert!(seat(&attempts, &first, 1).is_err());
    assert!(seat(&attempts, &other, 1).is_ok());
}

#[test]
fn locks_that_others_want_are_remembered_and_not_without_end() {
    let attempts = attempts();
    let name = |n: usize| Name::new(n.to_string()).expect("a name");
    attempts.wanted(&name(0), true);
    assert!(attempts.is_wanted(&name(0)) && !attempts.is_wanted(&name(1)));
    attempts.wanted(&name(0), false);
    assert!(!attempts.is_wanted(&name(0)));
    for n in 0..=REMEMBERED {
        attempts.wanted(&name(n), true);
    }
    assert!(attempts.known().wanted.len() <= REMEMBERED);
    assert!(attempts.is_wanted(&name(REMEMBERED)));
}

#[test]
fn marks_of_past_leases_are_forgotten_and_young_ones_stay() {
    let attempts = attempts();
    attempts.marked(1, b"a".to_vec());
    attempts.marked(2, b"b".to_vec());
    assert!(attempts.old_marks(2, 9).is_empty());
    assert_eq!(attempts.known().marks.len(), 1);
    let attempts = Attempts::new(Duration::ZERO);
    for mark in [b"a", b"b", b"c"] {
        attempts.marked(1, mark.to_vec());
    }
    let old = attempts.old_marks(1, 2);
    assert_eq!(old, [b"a", b"b"]);
    assert_eq!(attempts.old_marks(1, 2), old, "they are there yet");
    attempts.unmarked(&old);
    assert_eq!(attempts.old_marks(1, 2), [b"c"]);
}

#[test]
fn a_ring_is_owed_until_it_is_rung() {
    let (attempts, request) = (attempts(), request());
    let id = request.attempt();
    seat(&attempts, &request, 7).expect("a seat");
    assert!(!attempts.owes_ring(id));
    attempts.owe_ring(id);
    assert!(attempts.owes_ring(id));
    attempts.rung(id);
    assert!(!attempts.owes_ring(id));
}

#[test]
fn only_keys_without_an_attempt_are_unknown() {
    let (attempts, request) = (attempts(), request());
    let key = seat(&attempts, &request, 7).expect("a seat");
    let keys = vec![key.clone(), b"other".to_vec()];
    assert_eq!(attempts.unknown(7, keys.clone()), [b"other"]);
    assert_eq!(attempts.unknown(8, keys), [key, b"other".to_vec()]);
}

#[test]
fn doubt_lasts_until_it_is_settled() {
    let (attempts, request) = (attempts(), request());
    let id = request.attempt();
    seat(&attempts, &request, 7).expect("a seat");
    assert!(!attempts.sending(id));
    assert!(attempts.sending(id));
    assert_eq!(attempts.doubt(id), Some(7));
    attempts.settled(id);
    assert_eq!(attempts.doubt(id), None);
}

#[test]
fn a_key_is_used_again_when_its_attempt_is_over_and_not_before() {
    let attempts = attempts();
    let (first, second, third) = (request(), request(), request());
    let key = seat(&attempts, &first, 7).expect("a seat");
    assert_eq!(seat(&attempts, &first, 7).expect("the same"), key);
    let other = seat(&attempts, &second, 7).expect("a seat");
    assert_ne!(other, key);
    attempts.over(first.attempt());
    assert_eq!(attempts.key(first.attempt()), None);
    assert_eq!(seat(&attempts, &third, 7).expect("a seat"), key);
    // The end of an attempt, told a second time after its key was given to another, does not take the key away.
    attempts.over(first.attempt());
    assert_eq!(attempts.key(third.attempt()), Some(key));
    attempts.over(second.attempt());
    attempts.over(third.attempt());
    assert!(attempts.known().seats.is_empty() && attempts.known().slots.is_empty());
}

#[test]
fn a_key_that_a_late_delete_could_meet_is_given_to_nobody() {
    let attempts = attempts();
    let (first, second, third) = (request(), request(), request());
    let key = seat(&attempts, &first, 7).expect("a seat");
    attempts.sending(first.attempt());
    assert!(!attempts.delete(first.attempt()), "it is in doubt");
    attempts.settled(first.attempt());
    assert!(attempts.delete(first.attempt()));
    assert!(!attempts.delete(first.attempt()), "one may be under way");
    attempts.over(first.attempt());
    assert!(!attempts.delete(first.attempt()), "it is over");
    let other = seat(&attempts, &second, 7).expect("a seat");
    assert_ne!(other, key);
    // Answered, so the next one may have it.
    assert!(attempts.delete(second.attempt()));
    attempts.deleted(second.attempt());
    attempts.over(second.attempt());
    assert_eq!(seat(&attempts, &third, 7).expect("a seat"), other);
    attempts.over(third.attempt());
}

#[test]
fn a_key_is_given_again_when_no_late_delete_can_come_any_more() {
    // However short the limit for entries is.
    let mut attempts = Attempts::new(Duration::from_secs(1));
    assert_eq!(attempts.late_delete_limit, LATE_DELETES);
    assert_eq!(
        Attempts::new(2 * LATE_DELETES).late_delete_limit,
        2 * LATE_DELETES
    );
    // Every request is too late at once.
    attempts.late_delete_limit = Duration::ZERO;
    let keys: HashSet<Vec<u8>> = (0..100)
        .map(|_| {
            let request = request();
            let key = seat(&attempts, &request, 7).expect("a seat");
            assert!(attempts.delete(request.attempt()));
            attempts.over(request.attempt());
            key
        })
        .collect();
    // One that was retired is given back when the next one is, so two are in use in turn.
    assert!(keys.len() <= 2, "{} keys", keys.len());
    assert!(attempts.known().retired.len() <= 1);
}

#[test]
fn a_thread_that_comes_late_with_an_old_lease_frees_no_key_of_the_new_one() {
    let attempts = attempts();
    let (holds, retired, stale, next) = (request(), request(), request(), request());
    let held = seat(&attempts, &holds, 8).expect("a seat");
    let given_up = seat(&attempts, &retired, 8).expect("a seat");
    assert!(attempts.delete(retired.attempt()));
    attempts.over(retired.attempt());
    // It asked for a session before the new one was there.
    seat(&attempts, &stale, 7).expect("a seat");
    let next = seat(&attempts, &next, 8).expect("a seat");
    assert!(next != held && next != given_up);
}

#[test]
fn an_attempt_never_has_entries_under_two_leases() {
    let (attempts, request) = (attempts(), request());
    seat(&attempts, &request, 7).expect("a seat");
    let trouble = seat(&attempts, &request, 8).expect_err("another lease");
    assert!(trouble.is_sent(), "the first entry may be there");
    attempts.over(request.attempt());
    assert!(seat(&attempts, &request, 8).is_ok());
}
