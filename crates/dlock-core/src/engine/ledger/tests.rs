use std::time::Duration;

use futures::FutureExt;

use super::life::OVERDUE;
use super::*;
use crate::backend::{Lease, Request};
use crate::engine::entry::{Asker, Ending, Phase, Rest};
use crate::engine::keep_alive::{Finish, Keep};
use crate::engine::post::LAG;
use crate::engine::queue::{Company, Entered, Inherits, Queue};
use crate::lock::settings::ResolvedSettings;
use crate::{Mode, Settings, SystemClock};

mod ends;
mod looks;

/// A client that has a room, or has none.
struct Somebody(bool);

impl Finish for Somebody {
    fn can_finish(&self) -> bool {
        self.0
    }
}

struct Scene {
    ledger: Ledger,
    client: Arc<Somebody>,
}

const ROOM: Capacity = Capacity {
    renew: 4096,
    renew_again: 4096,
    undo: 64,
};

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn name() -> Name {
    Name::new("a").expect("good")
}

/// A lease of 30 s, renewed every 10 s.
fn settings() -> Settings {
    Settings::new()
}

fn resolved(settings: Settings) -> Arc<ResolvedSettings> {
    let mut capabilities = Capabilities::new("test");
    capabilities.turns = 64;
    Arc::new(settings.check(&capabilities).expect("good settings"))
}

impl Scene {
    fn new() -> Self {
        Self::with(&Capabilities::new("test"))
    }

    fn with(capabilities: &Capabilities) -> Self {
        Self {
            ledger: Ledger::new(capabilities),
            client: Arc::new(Somebody(true)),
        }
    }

    fn asks(&self, settings: &Arc<ResolvedSettings>, mode: Mode) -> (Arc<Entry>, Arc<Request>) {
        self.asks_as(settings, mode, None, true)
    }

    fn asks_as(
        &self,
        settings: &Arc<ResolvedSettings>,
        mode: Mode,
        owner: Option<Owner>,
        passes_on: bool,
    ) -> (Arc<Entry>, Arc<Request>) {
        let request = Arc::new(Request::new(name(), mode, Arc::new(SystemClock)));
        let asker = Asker {
            settings: settings.clone(),
            owner,
            span: Some("work"),
            passes_on,
        };
        let entry = self.ledger.ask(asker, request.clone()).expect("open");
        (entry, request)
    }

    fn holds(&self, settings: &Arc<ResolvedSettings>, mode: Mode, since: Moment) -> Arc<Entry> {
        let (entry, request) = self.asks(settings, mode);
        self.grant(&entry, &request, since);
        entry
    }

    fn grant(&self, entry: &Arc<Entry>, request: &Request, since: Moment) {
        let lease = Lease::new(request, since);
        let trip = millis(1);
        let granted = self.ledger.granted(entry, lease, None, trip, since);
        granted.expect("open");
    }

    /// A hold that rests, without a turn, from 1 s to 2 s.
    fn rests(&self, settings: &Arc<ResolvedSettings>) -> Arc<Entry> {
        let entry = self.holds(settings, Mode::Exclusive, at(1000));
        locked(&entry.life).rest = Some(Rest {
            until: at(2000),
            keeps: self.client.keep(),
        });
        self.ledger.lines().counts.held -= 1;
        entry
    }

    fn looks(&self, post: Post, now: Moment) -> Work {
        self.looks_with(post, now, ROOM)
    }

    fn looks_with(&self, post: Post, now: Moment, capacity: Capacity) -> Work {
        let client: &dyn Keep = &self.client;
        self.ledger.take_work(post, now, capacity, Some(client))
    }

    fn is_kept(&self) -> bool {
        Arc::strong_count(&self.client) > 1
    }
}

fn heir(settings: &Arc<ResolvedSettings>) -> Inherits {
    Inherits {
        settings: settings.clone(),
        owner: None,
        span: None,
    }
}

#[tokio::test]
async fn whoever_waits_for_an_earlier_doubt_hears_of_the_next_failure() {
    let scene = Scene::new();
    let (entry, _) = scene.asks(&resolved(settings()), Mode::Exclusive);
    scene.ledger.in_doubt(&entry, &scene.client, at(1000));
    let name = name();
    let mut waits = std::pin::pin!(scene.ledger.no_doubt(&name, at(1000)));
    assert!(waits.as_mut().now_or_never().is_none());
    let trip = scene
        .looks(Post::Home, at(1000))
        .undo
        .first()
        .expect("due")
        .1;
    let down = Error::new(ErrorKind::Unreachable, "down");
    scene.ledger.not_undone(&entry, trip, &down, at(1001));
    let told = waits.now_or_never().expect("told");
    assert_eq!(told.expect_err("down").kind(), ErrorKind::Unreachable);
    scene.ledger.undone(&entry);
    scene
        .ledger
        .no_doubt(&name, at(1002))
        .await
        .expect("no doubt is left");
}

#[tokio::test]
async fn a_client_is_quiet_when_nothing_is_asked_released_or_undone() {
    let scene = Scene::new();
    let settings = resolved(settings());
    let is_quiet = || scene.ledger.quiet().now_or_never().is_some();
    assert!(is_quiet());
    let held = scene.holds(&settings, Mode::Exclusive, at(1000));
    assert!(is_quiet(), "what is held is no work");
    let left = scene
        .ledger
        .leave(&held, Leaving::Released, &scene.client, at(1001));
    assert!(matches!(left, Left::Releasing));
    assert!(!is_quiet());
    let (asking, _) = scene.asks(&settings, Mode::Exclusive);
    assert!(!is_quiet(), "one asks, and one is released");
    assert!(scene.ledger.release_confirmed(&held));
    assert!(!is_quiet());
    scene.ledger.in_doubt(&asking, &scene.client, at(1002));
    assert!(!is_quiet());
    scene.ledger.undone(&asking);
    assert!(is_quiet());
}

#[test]
fn what_nobody_can_finish_does_not_keep_the_client() {
    let scene = Scene::new();
    let settings = resolved(settings());
    let (asking, _) = scene.asks(&settings, Mode::Exclusive);
    scene.ledger.in_doubt(&asking, &scene.client, at(1000));
    let resting = scene.rests(&settings);
    assert!(scene.is_kept());
    scene.ledger.orphan(at(1500));
    assert!(!scene.is_kept());
    assert_eq!(resting.ending(), Ending::LetGo);
    // Where there is no room, it is not kept in the first place.
    let nobody = Arc::new(Somebody(false));
    let (asking, _) = scene.asks(&settings, Mode::Exclusive);
    scene.ledger.in_doubt(&asking, &nobody, at(1600));
    assert_eq!(Arc::strong_count(&nobody), 1);
    let kept = nobody.keep();
    assert!(!kept.can_finish() && scene.client.keep().can_finish());
}

#[test]
fn a_hold_is_resumed_only_while_it_rests_and_is_good() {
    let settings = resolved(settings());
    let resumes = |now, change: &dyn Fn(&Entry)| {
        let scene = Scene::new();
        let entry = scene.rests(&settings);
        change(&entry);
        let resumed = scene.ledger.resume(&entry, &heir(&settings), now);
        assert_eq!(scene.is_kept(), !resumed, "an undo keeps the client");
        assert_eq!(scene.ledger.counts().held, usize::from(resumed));
        assert!(!scene.ledger.resume(&entry, &heir(&settings), now), "once");
        resumed
    };
    assert!(resumes(at(1999), &|_| ()));
    assert!(!resumes(at(2000), &|_| ()), "its rest is over");
    assert!(!resumes(at(1999), &Entry::set_wanted), "others wait");
    assert!(!resumes(at(1999), &Entry::is_not_passed_on));
    let scene = Scene::new();
    let (entry, request) = scene.asks_as(&settings, Mode::Exclusive, None, false);
    scene.grant(&entry, &request, at(1000));
    locked(&entry.life).rest = Some(Rest {
        until: at(2000),
        keeps: scene.client.keep(),
    });
    let heir_of_it = heir(&settings);
    assert!(
        !scene.ledger.resume(&entry, &heir_of_it, at(1999)),
        "a label of its own"
    );
    assert!(!resumes(at(1999), &|entry| entry.begins(at(1999))));
    assert!(!resumes(at(1999), &|entry| locked(&entry.life).in_trouble = true));
    let half = |left: u64| {
        let validity = settings.validity.expect("a lease");
        move |entry: &Entry| {
            locked(&entry.life).lease_until = at(1999) + validity / 2 + millis(left);
        }
    };
    assert!(!resumes(at(1999), &half(0)), "half of the lease is gone");
    assert!(resumes(at(1999), &half(1)));
}

#[test]
fn readers_join_only_a_reader_that_is_nobodys_and_may_be_passed_on() {
    let joinable = |mode, owner, passes_on| {
        let scene = Scene::new();
        let settings = resolved(settings().readers_join(true));
        let (entry, request) = scene.asks_as(&settings, mode, owner, passes_on);
        scene.grant(&entry, &request, at(1000));
        scene.ledger.lines().joinable.contains_key(&name())
    };
    assert!(joinable(Mode::Shared, None, true));
    assert!(!joinable(Mode::Exclusive, None, true));
    assert!(!joinable(Mode::Shared, Some(Owner::new()), true));
    assert!(!joinable(Mode::Shared, None, false));
    let scene = Scene::new();
    let alone = resolved(settings());
    let (entry, request) = scene.asks(&alone, Mode::Shared);
    scene.grant(&entry, &request, at(1000));
    assert!(
        scene.ledger.lines().joinable.is_empty(),
        "they were not told to"
    );
}

#[tokio::test]
async fn tasks_that_no_longer_wait_for_their_owner_leave_nothing() {
    let scene = Scene::new();
    let owner = Owner::new();
    let name = name();
    let one = scene
        .ledger
        .owner_gets_in(owner, &name, Mode::Exclusive, &SystemClock);
    let other = scene
        .ledger
        .owner_gets_in(owner, &name, Mode::Exclusive, &SystemClock);
    {
        let (mut one, mut other) = (Box::pin(one), Box::pin(other));
        assert!(one.as_mut().now_or_never().is_none());
        assert!(other.as_mut().now_or_never().is_none());
        drop(one);
        assert_eq!(scene.ledger.lines().owners_wait.len(), 1);
    }
    assert!(scene.ledger.lines().owners_wait.is_empty());
}

#[test]
fn what_has_ended_is_neither_extended_nor_begun_again() {
    let scene = Scene::new();
    let settings = resolved(settings());
    let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
    let end = entry.valid_until();
    assert!(entry.begins_again(end, end.earlier(millis(1))));
    assert!(!entry.begins_again(end + millis(9), end));
    assert!(
        !entry.extend(at(2000), Moment::NEVER, end),
        "its time was up"
    );
    assert!(entry.extend(at(2000), Moment::NEVER, end.earlier(millis(1))));
    let end = entry.valid_until();
    assert!(entry.is_held(end.earlier(millis(1))));
    assert!(!entry.is_held(end), "not at its end");
    for now in [0, 2500] {
        assert!(!entry.extend(at(3000), Moment::NEVER, at(now)));
        assert!(!entry.begins_again(end + millis(9), at(now)));
    }
    assert!(!entry.is_held(at(0)));
}

#[test]
fn a_loss_is_declared_only_of_what_is_over_and_was_held() {
    let scene = Scene::new();
    let settings = resolved(settings());
    let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
    let loses = |now| scene.ledger.lose_to_the_clock(&entry, &scene.client, now);
    assert_eq!(loses(entry.loss_at().earlier(millis(1))), None, "renewed");
    assert_eq!(entry.taken_in(), Some("work"));
    let loss_at = entry.loss_at();
    assert!(entry.is_held(loss_at));
    assert!(loses(loss_at).is_some(), "a little before the end");
    assert_eq!(loses(loss_at), None, "once");
    assert!(matches!(entry.ending(), Ending::Lost(_)));
    assert_eq!(
        crate::engine::client::reason_of(&entry),
        crate::LossReason::Expired
    );
    let gone = scene.holds(&settings, Mode::Exclusive, at(1000));
    gone.ends(Ending::Lost(crate::LossReason::Gone));
    assert_eq!(
        crate::engine::client::reason_of(&gone),
        crate::LossReason::Gone
    );
}

#[test]
fn a_hold_that_is_kept_for_the_next_is_found_by_whoever_comes_and_by_nobody_twice() {
    let queue = Arc::new(Queue::<Entry>::default());
    let scene = Scene::new();
    let settings = resolved(settings());
    let entry = scene.holds(&settings, Mode::Exclusive, at(1000));
    let turn = queue.try_enter(&name(), Company::Alone).expect("free");
    assert!(turn.rests(&entry));
    assert!(Arc::ptr_eq(
        &queue.resting(&name()).expect("it rests"),
        &entry
    ));
    assert!(queue.resting(&name()).is_none());
    let past = queue.past_the_line(&name(), Company::Alone, false);
    assert!(!turn.rests(&entry), "somebody asks past the line");
    drop(past);
    assert!(turn.rests(&entry));
    drop(turn);
    assert!(queue.resting(&name()).is_none());
}
