//! What a room finds when it looks, and when it looks again.

use super::*;

#[test]
fn home_renews_what_is_due_soon_along_with_what_is_due_and_the_standby_does_not() {
    let settings = resolved(settings());
    for (post, now, renewed) in [
        // A quarter of the interval is 2.5 s.
        (Post::Home, 11_000, 2),
        (Post::Standby, 11_060, 1),
        // Nothing is due yet, so nothing is renewed early.
        (Post::Home, 10_999, 0),
    ] {
        let scene = Scene::new();
        for since in [1000, 3400, 3600] {
            scene.holds(&settings, Mode::Exclusive, at(since));
        }
        let work = scene.looks(post, at(now));
        assert_eq!(work.renew.len(), renewed, "{post:?} at {now}");
        assert!(work.renew_again.is_empty() && work.lost.is_empty());
    }
}

#[test]
fn a_renewal_under_way_is_not_begun_again_before_it_must_have_ended() {
    let scene = Scene::new();
    let settings = resolved(settings());
    scene.holds(&settings, Mode::Exclusive, at(1000));
    assert_eq!(scene.looks(Post::Home, at(11_000)).renew.len(), 1);
    let overdue = at(11_000) + settings.renewal_limit() + OVERDUE;
    // Another hold brings the room to look meanwhile, within a quarter of the interval before that.
    scene.holds(&settings, Mode::Exclusive, at(4000));
    assert_eq!(scene.looks(Post::Home, at(14_000)).renew.len(), 1);
    assert_eq!(scene.looks(Post::Home, overdue).renew.len(), 1);
}

#[test]
fn a_failed_renewal_is_tried_again_when_its_pause_is_over_and_apart_from_others() {
    let scene = Scene::new();
    let settings = resolved(settings());
    let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
    let work = scene.looks(Post::Home, at(11_000));
    let trip = work.renew.first().expect("due").1;
    scene.ledger.not_renewed(&entry, trip, at(12_000));
    scene.holds(&settings, Mode::Exclusive, at(1500));
    let work = scene.looks(Post::Home, at(11_500));
    assert_eq!((work.renew.len(), work.renew_again.len()), (1, 0));
    let work = scene.looks(Post::Home, at(12_000));
    assert_eq!((work.renew.len(), work.renew_again.len()), (0, 1));
}

#[test]
fn a_room_looks_when_the_next_is_due_and_not_at_once_where_it_has_done_all() {
    let scene = Scene::new();
    let settings = resolved(settings());
    assert_eq!(scene.looks(Post::Home, at(500)).next, Moment::NEVER);
    let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
    assert_eq!(scene.looks(Post::Home, at(10_995)).next, at(11_000));
    // The standby comes a little later for the same.
    assert_eq!(scene.looks(Post::Standby, at(10_995)).next, at(11_050));
    assert!(!scene.looks(Post::Standby, at(11_049)).home_is_late);
    // Both are in time for a loss.
    let loss = entry.loss_at();
    scene.ledger.lines().plan(&entry, loss);
    let work = scene.looks(Post::Standby, loss.earlier(millis(1)));
    assert_eq!((work.lost.len(), work.next), (0, loss));
    assert_eq!(scene.looks(Post::Standby, loss).lost.len(), 1);
}

#[test]
fn the_standby_comes_sooner_where_renewals_are_frequent() {
    let scene = Scene::new();
    let often = resolved(settings().lease(millis(900)).renew_every(millis(100)));
    let entry = scene.holds(&often, Mode::Exclusive, at(1000));
    assert_eq!(Post::Standby.lag(&entry, at(1100)), millis(25));
    assert_eq!(Post::Home.lag(&entry, at(1100)), Duration::ZERO);
    let never = resolved(settings().renewal(false));
    let entry = scene.holds(&never, Mode::Exclusive, at(1000));
    assert_eq!(Post::Standby.lag(&entry, at(1100)), LAG);
    assert_eq!(
        Post::Standby.lag(&entry, entry.loss_at()),
        Duration::ZERO,
        "a loss is declared in time by whoever lives"
    );
    assert_eq!(
        Post::Standby.lag(&entry, entry.valid_until()),
        LAG,
        "after the end it is home's before"
    );
}

#[test]
fn a_look_takes_what_the_room_has_place_for_and_comes_again_for_the_rest() {
    let scene = Scene::new();
    let settings = resolved(settings());
    for _ in 0..1200 {
        scene.holds(&settings, Mode::Exclusive, at(1000));
    }
    let capacity = Capacity {
        renew: 600,
        renew_again: 0,
        undo: 0,
    };
    let work = scene.looks_with(Post::Home, at(11_000), capacity);
    assert_eq!(work.renew.len(), 600);
    assert_eq!(work.next, at(11_010), "a short while later");
}

#[test]
fn whoever_finds_no_room_many_times_ends_its_look() {
    let scene = Scene::new();
    let settings = resolved(settings());
    // In trouble, so that they need the other kind of room; and behind them more than a look goes through without any.
    for _ in 0..700 {
        let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
        locked(&entry.life).in_trouble = true;
    }
    for _ in 0..100 {
        scene.holds(&settings, Mode::Exclusive, at(1000));
    }
    let capacity = Capacity {
        renew: 4096,
        renew_again: 0,
        undo: 0,
    };
    let work = scene.looks_with(Post::Home, at(11_000), capacity);
    assert_eq!(work.renew.len(), 0, "those behind 513 without room wait");
    // One fewer than that, and the rest is looked at.
    let scene = Scene::new();
    for _ in 0..400 {
        let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
        locked(&entry.life).in_trouble = true;
    }
    scene.holds(&settings, Mode::Exclusive, at(1000));
    let work = scene.looks_with(Post::Home, at(11_000), capacity);
    assert_eq!(work.renew.len(), 1);
}

#[test]
fn home_is_late_when_it_has_not_looked_in_time_and_there_was_something_to_do() {
    let scene = Scene::new();
    let settings = resolved(settings());
    assert!(!scene.looks(Post::Standby, at(500)).home_is_late);
    let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
    assert!(!scene.looks(Post::Home, at(1000)).home_is_late);
    locked(&entry.life).is_watched = true;
    // Home looks at 11 s at the latest.
    let work = scene.looks(Post::Standby, at(11_049));
    assert!(!work.home_is_late && work.watch.is_empty());
    let work = scene.looks(Post::Standby, at(11_050));
    assert!(work.home_is_late);
    assert_eq!(
        work.watch.len(),
        1,
        "who waits for it is listened to here too"
    );
    let work = scene.looks(Post::Standby, at(40_000));
    assert!(work.watch.is_empty(), "once");
}

#[test]
fn an_entry_whose_trip_was_dropped_is_due_at_once_unless_another_trip_is_under_way() {
    let scene = Scene::new();
    let settings = resolved(settings());
    let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
    let first = scene
        .looks(Post::Home, at(11_000))
        .renew
        .first()
        .expect("due")
        .1;
    let due = || locked(&entry.life).due;
    let planned = due();
    scene.ledger.dropped_trip(&entry, first + 1, at(12_000));
    assert_eq!(due(), planned, "that of another trip");
    scene.ledger.dropped_trip(&entry, first, at(12_000));
    assert_eq!(due(), at(12_000));
    scene.ledger.lines().plan(&entry, planned);
    scene.ledger.dropped_trip(&entry, first, at(12_500));
    assert_eq!(due(), planned, "it was not under way any more");
    locked(&entry.life).under_way = true;
    locked(&entry.life).phase = Phase::Releasing;
    scene.ledger.dropped_trip(&entry, first, at(13_000));
    assert_eq!(due(), planned, "its release is under way");
}

#[test]
fn an_undo_keeps_the_client_for_a_lease_and_ends_with_it_after_one_more_try() {
    let scene = Scene::new();
    let (entry, _) = scene.asks(&resolved(settings()), Mode::Exclusive);
    scene.ledger.in_doubt(&entry, &scene.client, at(1000));
    let down = Error::new(ErrorKind::Unreachable, "down");
    let work = scene.looks(Post::Home, at(1000));
    let trip = work.undo.first().expect("due").1;
    scene.ledger.not_undone(&entry, trip, &down, at(1000));
    assert!(scene.is_kept());
    // It was tried, and the lease is over: the store has forgotten it.
    let work = scene.looks(Post::Home, at(31_000));
    assert_eq!((work.given_up.len(), work.undo.len()), (1, 0));
    assert!(!scene.is_kept());
    assert_eq!(scene.ledger.counts().undoing, 0);
    // Of a session nothing is forgotten: it is tried on, but no longer keeps the client.
    let mut capabilities = Capabilities::new("test");
    capabilities.liveness = Liveness::Session {
        ttl: Duration::from_secs(30),
    };
    let scene = Scene::with(&capabilities);
    let (entry, _) = scene.asks(&resolved(settings()), Mode::Exclusive);
    scene.ledger.in_doubt(&entry, &scene.client, at(1000));
    let trip = scene
        .looks(Post::Home, at(1000))
        .undo
        .first()
        .expect("due")
        .1;
    scene.ledger.not_undone(&entry, trip, &down, at(1000));
    let work = scene.looks(Post::Home, at(30_999));
    assert!(scene.is_kept());
    let trip = work.undo.first().expect("due").1;
    scene.ledger.not_undone(&entry, trip, &down, at(30_999));
    let work = scene.looks(Post::Home, at(40_000));
    assert_eq!((work.given_up.len(), work.undo.len()), (0, 1));
    assert!(!scene.is_kept());
}

#[test]
fn a_release_that_nobody_drives_is_taken_over() {
    let scene = Scene::new();
    let settings = resolved(settings());
    let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
    let left = scene
        .ledger
        .leave(&entry, Leaving::Released, &scene.client, at(2000));
    assert!(matches!(left, Left::Releasing));
    let due = at(2000) + settings.trip_timeout + OVERDUE;
    assert!(
        scene
            .looks(Post::Home, due.earlier(millis(1)))
            .undo
            .is_empty()
    );
    assert_eq!(scene.looks(Post::Home, due).undo.len(), 1);
    let counts = scene.ledger.counts();
    assert_eq!((counts.releasing, counts.undoing), (0, 1));
    assert!(
        !scene.ledger.release_confirmed(&entry),
        "it is the room's now"
    );
}

#[test]
fn a_hold_that_nobody_listens_for_any_more_goes_to_the_next_room() {
    let scene = Scene::new();
    let settings = resolved(settings());
    let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
    scene.ledger.no_longer_watched(&entry, at(1100));
    // The standby leaves it to home for a while.
    assert!(scene.looks(Post::Standby, at(1100)).watch.is_empty());
    assert_eq!(scene.looks(Post::Standby, at(1150)).watch.len(), 1);
    scene.ledger.no_longer_watched(&entry, at(1200));
    assert_eq!(scene.looks(Post::Home, at(1200)).watch.len(), 1);
    let left = scene
        .ledger
        .leave(&entry, Leaving::Released, &scene.client, at(1300));
    assert!(matches!(left, Left::Releasing));
    scene.ledger.no_longer_watched(&entry, at(1400));
    assert!(scene.looks(Post::Home, at(1400)).watch.is_empty());
}

#[test]
fn an_answer_to_an_earlier_trip_ends_no_later_one() {
    let scene = Scene::new();
    let settings = resolved(settings());
    let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
    let ledger = &scene.ledger;
    let first = ledger.take_renewal(&entry, at(2000)).expect("held").1;
    let second = ledger.take_renewal(&entry, at(3000)).expect("held").1;
    ledger.renewed(&entry, first, at(2000), at(3500));
    assert!(locked(&entry.life).under_way);
    let planned = locked(&entry.life).due;
    ledger.not_renewed(&entry, first, at(3600));
    assert_eq!(locked(&entry.life).due, planned);
    ledger.renewed(&entry, second, at(3000), at(3700));
    assert!(!locked(&entry.life).under_way);
    assert_eq!(locked(&entry.life).due, at(13_000));
    let left = ledger.leave(&entry, Leaving::Dropped, &scene.client, at(4000));
    assert!(matches!(left, Left::Undoing));
    let due = locked(&entry.life).due;
    ledger.not_renewed(&entry, second, at(5000));
    assert_eq!(locked(&entry.life).due, due, "no renewal of what is over");
    assert!(ledger.take_renewal(&entry, at(5000)).is_none());
    // Nor does a late answer to an earlier try plan an undo.
    let trip = scene
        .looks(Post::Home, at(4000))
        .undo
        .first()
        .expect("due")
        .1;
    let due = locked(&entry.life).due;
    let down = Error::new(ErrorKind::Unreachable, "down");
    ledger.not_undone(&entry, trip - 1, &down, at(4500));
    assert_eq!(locked(&entry.life).due, due);
    let never = resolved(super::settings().renewal(false));
    let entry = scene.holds(&never, Mode::Exclusive, at(1000));
    assert!(ledger.take_renewal(&entry, at(2000)).is_some(), "by hand");
}

#[test]
fn a_release_that_settles_a_downgrade_may_take_two_trips() {
    for (downgrades, trips) in [(false, 1), (true, 2)] {
        let scene = Scene::new();
        let settings = resolved(settings());
        let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
        if downgrades {
            assert!(scene.ledger.downgrading(&entry));
            assert!(entry.is_downgrade_in_doubt());
        }
        let left = scene
            .ledger
            .leave(&entry, Leaving::Released, &scene.client, at(2000));
        assert!(matches!(left, Left::Releasing));
        let due = at(2000) + settings.trip_timeout * trips + OVERDUE;
        assert_eq!(locked(&entry.life).due, due);
    }
}

#[test]
fn a_room_is_rung_for_what_is_due_before_it_looks() {
    let scene = Scene::new();
    let settings = resolved(settings());
    let rung = |post| scene.ledger.rung(post).now_or_never().is_some();
    assert_eq!(scene.looks(Post::Home, at(500)).next, Moment::NEVER);
    assert_eq!(scene.looks(Post::Standby, at(500)).next, Moment::NEVER);
    assert!(!rung(Post::Home) && !rung(Post::Standby));
    let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
    assert!(rung(Post::Home) && rung(Post::Standby));
    scene.looks(Post::Home, at(1000));
    scene.looks(Post::Standby, at(1000));
    // As soon as that, and later: nobody has to be woken.
    scene.holds(&settings, Mode::Exclusive, at(1000));
    scene.holds(&settings, Mode::Exclusive, at(1001));
    assert!(!rung(Post::Home) && !rung(Post::Standby));
    scene.holds(&settings, Mode::Exclusive, at(999));
    assert!(rung(Post::Home) && rung(Post::Standby));
    // A release is over before it is due most often.
    scene.looks(Post::Home, at(1000));
    scene.looks(Post::Standby, at(1000));
    let left = scene
        .ledger
        .leave(&entry, Leaving::Released, &scene.client, at(1002));
    assert!(matches!(left, Left::Releasing));
    assert!(!rung(Post::Home) && !rung(Post::Standby));
}

#[test]
fn a_room_that_sees_something_new_or_left_comes_again_before_long() {
    let scene = Scene::new();
    let never = resolved(settings().renewal(false).lease(Duration::from_secs(300)));
    let entry = scene.holds(&never, Mode::Exclusive, at(1000));
    let often = |now| at(now) + AT_LEAST_EVERY;
    assert_eq!(scene.looks(Post::Home, at(1000)).next, often(1000));
    assert_eq!(scene.looks(Post::Home, at(2000)).next, often(2000));
    let left = scene
        .ledger
        .leave(&entry, Leaving::Released, &scene.client, at(2500));
    assert!(matches!(left, Left::Releasing));
    assert!(scene.ledger.release_confirmed(&entry));
    assert_eq!(scene.looks(Post::Home, at(3000)).next, Moment::NEVER);
    let (asking, _) = scene.asks(&never, Mode::Exclusive);
    assert_eq!(scene.looks(Post::Home, at(4000)).next, often(4000), "new");
    assert_eq!(scene.looks(Post::Standby, at(4000)).next, often(4000));
    scene.ledger.nothing_taken(&asking);
    assert_eq!(scene.looks(Post::Home, at(5000)).next, Moment::NEVER);
}

#[test]
fn a_home_that_has_never_looked_is_late_for_whatever_there_is_to_do() {
    let settings = resolved(settings());
    for kind in ["renewal", "renewal again", "undo"] {
        let scene = Scene::new();
        let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
        match kind {
            "renewal again" => locked(&entry.life).in_trouble = true,
            "undo" => {
                let how = Leaving::Dropped;
                let _ = scene.ledger.leave(&entry, how, &scene.client, at(1000));
            }
            _ => {}
        }
        let work = scene.looks(Post::Standby, at(11_050));
        let taken = work.renew.len() + work.renew_again.len() + work.undo.len();
        assert_eq!((taken, work.home_is_late), (1, true), "{kind}");
    }
    let scene = Scene::new();
    let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
    assert_eq!(scene.looks(Post::Home, at(1000)).next, at(11_000));
    let how = Leaving::Released;
    let _ = scene.ledger.leave(&entry, how, &scene.client, at(1000));
    assert!(scene.ledger.release_confirmed(&entry));
    scene.ledger.home_opens();
    let work = scene.looks(Post::Standby, at(20_000));
    assert!(!work.home_is_late, "a new home has not had its time");
}

#[test]
fn an_undo_under_way_is_looked_at_when_it_must_have_ended() {
    let scene = Scene::new();
    let settings = resolved(settings());
    let (entry, _) = scene.asks(&settings, Mode::Exclusive);
    scene.ledger.in_doubt(&entry, &scene.client, at(1000));
    assert_eq!(scene.looks(Post::Home, at(1000)).undo.len(), 1);
    let overdue = at(1000) + undo_limit(&entry) + OVERDUE;
    assert_eq!(locked(&entry.life).due, overdue);
}

#[test]
fn a_release_without_a_deadline_is_looked_at_before_long() {
    let mut capabilities = Capabilities::new("test");
    capabilities.liveness = Liveness::Process;
    let scene = Scene::with(&capabilities);
    let settings = Arc::new(settings().check(&capabilities).expect("good settings"));
    let rung = || scene.ledger.rung(Post::Home).now_or_never().is_some();
    assert_eq!(scene.looks(Post::Home, at(500)).next, Moment::NEVER);
    let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
    assert!(!rung(), "there is nothing to renew");
    let how = Leaving::Released;
    let left = scene.ledger.leave(&entry, how, &scene.client, at(2000));
    assert!(matches!(left, Left::Releasing));
    assert!(rung());
}
