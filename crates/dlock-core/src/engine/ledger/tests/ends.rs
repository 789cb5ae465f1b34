//! How a hold is shared, changed and given back.

use super::*;

#[test]
fn a_downgrade_makes_a_reader_of_the_hold() {
    let scene = Scene::new();
    let entry = scene.holds(&resolved(settings()), Mode::Exclusive, at(1000));
    assert!(entry.was_taken_to_write());
    assert!(scene.ledger.downgrading(&entry));
    assert_eq!(entry.mode(), Mode::Shared, "from the call on");
    let store_knows = || entry.lease().expect("held").mode();
    assert_eq!(store_knows(), Mode::Exclusive);
    scene.ledger.downgraded(&entry);
    assert_eq!(store_knows(), Mode::Shared);
    assert!(!entry.is_downgrade_in_doubt() && entry.was_taken_to_write());
}

#[test]
fn nobody_joins_a_hold_that_has_ended_or_is_old() {
    let scene = Scene::new();
    let settings = resolved(settings().readers_join(true).local_time(millis(10)));
    let (entry, request) = scene.asks(&settings, Mode::Shared);
    scene.grant(&entry, &request, at(1000));
    let joins = |now| scene.ledger.join(&name(), &settings, at(now));
    assert!(joins(1009).is_some());
    assert!(joins(1010).is_none(), "others have waited long enough");
    // A later hold of the client stays when an earlier one ends.
    let (later, request) = scene.asks(&settings, Mode::Shared);
    scene.grant(&later, &request, at(1005));
    for left in 0..2 {
        let how = scene
            .ledger
            .leave(&entry, Leaving::Released, &scene.client, at(1006));
        assert_eq!(matches!(how, Left::Releasing), left == 1);
    }
    let joined = joins(1007).expect("the later one");
    assert_eq!(joined.id, later.id);
    for _ in 0..2 {
        let _ = scene
            .ledger
            .leave(&later, Leaving::Released, &scene.client, at(1008));
    }
    assert!(scene.ledger.lines().joinable.is_empty());
}

#[test]
fn an_attempt_in_doubt_is_known_by_its_name_until_it_is_undone() {
    let scene = Scene::new();
    let (entry, _) = scene.asks(&resolved(settings()), Mode::Exclusive);
    let other = Name::new("b").expect("good");
    assert!(!scene.ledger.is_in_doubt(&name()));
    scene.ledger.in_doubt(&entry, &scene.client, at(1000));
    assert!(scene.ledger.is_in_doubt(&name()));
    assert!(!scene.ledger.is_in_doubt(&other));
    let other = scene.ledger.no_doubt(&other, at(1000)).now_or_never();
    assert!(other.expect("at once").is_ok());
    scene.ledger.undone(&entry);
    assert!(!scene.ledger.is_in_doubt(&name()));
}

#[tokio::test]
async fn a_hold_whose_rest_has_ended_is_given_back_when_the_store_says_so_or_fails() {
    let settings = resolved(settings());
    for confirmed in [true, false] {
        let scene = Scene::new();
        let queue = Arc::new(Queue::<Entry>::default());
        let entry = scene.rests(&settings);
        locked(&entry.life).turn = queue.try_enter(&name(), Company::Alone);
        scene.ledger.end_rest(&entry, at(1500));
        let mut given_back = std::pin::pin!(scene.ledger.given_back(&entry));
        assert!(given_back.as_mut().now_or_never().is_none());
        let trip = scene
            .looks(Post::Home, at(1500))
            .undo
            .first()
            .expect("due")
            .1;
        assert!(given_back.as_mut().now_or_never().is_none());
        if confirmed {
            scene.ledger.undone(&entry);
        } else {
            let down = Error::new(ErrorKind::Unreachable, "down");
            scene.ledger.not_undone(&entry, trip, &down, at(1501));
        }
        assert!(given_back.now_or_never().is_some());
        assert!(queue.try_enter(&name(), Company::Alone).is_some());
    }
}

#[test]
fn whoever_comes_takes_a_hold_that_rests_only_with_the_same_settings() {
    let (same, others) = (resolved(settings()), resolved(settings()));
    for (settings, finds) in [(&same, true), (&others, false)] {
        let queue = Arc::new(Queue::<Entry>::default());
        let scene = Scene::new();
        let entry = scene.holds(&same, Mode::Exclusive, at(1000));
        let mut turn = queue.try_enter(&name(), Company::Alone).expect("free");
        turn.held_by(&entry, at(1000));
        assert!(turn.rests(&entry));
        let changed = entry.change();
        let patience = millis(1);
        let heir = Some(heir(settings));
        let entered = queue.enter(&name(), Company::Alone, patience, heir, false, at(1100));
        match entered {
            Entered::Resting(hold) => assert!(finds && hold.id == entry.id),
            Entered::Waiter(_, unusable) => {
                assert!(!finds && unusable.is_some_and(|hold| hold.id == entry.id));
                assert!(changed.now_or_never().is_some(), "the holder hears of it");
            }
            Entered::Turn(_) => panic!("it is held"),
        }
        assert!(queue.resting(&name()).is_none(), "it is offered once");
    }
}

#[test]
fn a_line_goes_on_with_one_for_one_unless_the_lock_has_room() {
    let settings = resolved(settings());
    for (granted, follow) in [(false, 1), (true, 2)] {
        let scene = Scene::new();
        let queue = Arc::new(Queue::<Entry>::default());
        let enter = || {
            let together = Company::Together;
            match queue.enter(&name(), together, millis(1), None, false, at(1000)) {
                Entered::Turn(turn) => Ok(turn),
                Entered::Waiter(waiter, _) => Err(waiter),
                Entered::Resting(hold) => panic!("{hold:?} does not rest"),
            }
        };
        let mut first = enter().expect("the first");
        let second = enter().expect("beside it");
        // It was told to wait: who comes now would wait at the store too.
        let (_, asks) = scene.asks(&settings, Mode::Shared);
        asks.mark_contended();
        second.asks(&asks, at(1000));
        let waiters: Vec<_> = (0..2).map(|_| enter().expect_err("a waiter")).collect();
        if granted {
            let entry = scene.holds(&settings, Mode::Shared, at(1000));
            first.held_by(&entry, at(1000));
        }
        drop(first);
        assert_eq!(queue.waiting(&name()), 2 - follow, "granted: {granted}");
        assert!(waiters.iter().all(|waiter| !waiter.could_ask_beside()));
        drop((second, waiters));
        assert!(queue.try_enter(&name(), Company::Alone).is_some());
    }
}

/// A hold with a turn, as a task has it that asked through the line.
fn holds_with_a_turn(
    scene: &Scene,
    queue: &Arc<Queue<Entry>>,
    settings: &Arc<ResolvedSettings>,
) -> Arc<Entry> {
    let entry = scene.holds(settings, Mode::Exclusive, at(1000));
    locked(&entry.life).turn = queue.try_enter(&name(), Company::Alone);
    entry
}

#[test]
fn a_rest_is_as_long_as_the_lease_and_not_as_the_longest_hold() {
    let scene = Scene::new();
    let queue = Arc::new(Queue::<Entry>::default());
    let longest = millis(2000);
    let settings = resolved(settings().linger(millis(60_000)).max_hold(longest));
    let entry = holds_with_a_turn(&scene, &queue, &settings);
    assert_eq!(entry.valid_until(), at(3000));
    let left = scene
        .ledger
        .leave(&entry, Leaving::Released, &scene.client, at(1500));
    assert!(matches!(left, Left::Resting));
    let lease_until = at(1000) + settings.validity.expect("a lease");
    assert_eq!(entry.valid_until(), lease_until);
    let heir = heir(&settings);
    assert!(scene.ledger.resume(&entry, &heir, at(4000)));
    assert_eq!(entry.valid_until(), at(6000), "another stay");
}

#[test]
fn all_rests_of_a_hold_are_one_where_nobody_tells_of_others() {
    let settings = resolved(settings().linger(millis(100)));
    for (left_at, rests) in [(1599, true), (1600, false)] {
        let scene = Scene::new();
        let queue = Arc::new(Queue::<Entry>::default());
        let entry = holds_with_a_turn(&scene, &queue, &settings);
        let leave = |now| {
            let now = at(now);
            let how = Leaving::Released;
            scene.ledger.leave(&entry, how, &scene.client, now)
        };
        assert!(matches!(leave(1500), Left::Resting));
        let heir = heir(&settings);
        assert!(scene.ledger.resume(&entry, &heir, at(1550)));
        assert_eq!(matches!(leave(left_at), Left::Resting), rests);
    }
}

#[test]
fn an_owner_takes_a_lock_anew_that_it_has_lost() {
    let scene = Scene::new();
    let owner = Owner::new();
    let settings = resolved(settings());
    let (entry, request) = scene.asks_as(&settings, Mode::Exclusive, Some(owner), true);
    scene.grant(&entry, &request, at(1000));
    let reenters = |now| {
        let ledger = &scene.ledger;
        ledger.reenter(owner, &name(), Mode::Exclusive, now)
    };
    assert!(reenters(at(1500)).expect("no conflict").is_some());
    let over = entry.valid_until();
    assert!(reenters(over).expect("no conflict").is_none());
}

#[test]
fn what_keeps_a_client_says_no_more_than_that() {
    let scene = Scene::new();
    assert_eq!(format!("{:?}", scene.client.keep()), "KeptAlive(..)");
}

#[test]
fn only_what_the_store_may_still_have_is_undone_after_a_loss() {
    use crate::LossReason;
    for (reason, undone) in [
        (LossReason::Gone, 0),
        (LossReason::SessionEnded, 0),
        (LossReason::Expired, 1),
        (LossReason::MaxHold, 1),
        (LossReason::Closed, 1),
    ] {
        let scene = Scene::new();
        let entry = scene.holds(&resolved(settings()), Mode::Exclusive, at(1000));
        let _ = scene.ledger.lose(&entry, reason, &scene.client, at(2000));
        assert_eq!(entry.ending(), Ending::Lost(reason));
        assert_eq!(scene.ledger.counts().undoing, undone, "{reason}");
        let undo = scene.looks(Post::Home, at(2000)).undo;
        assert_eq!(undo.len(), undone, "{reason}");
    }
}
