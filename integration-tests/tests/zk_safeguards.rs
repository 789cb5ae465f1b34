//! Each test makes the one situation for which a safeguard exists, and fails without it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where it breaks"
)]

mod zk_support;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backend, Outcome, Renewal, Request};
use dlock_core::{Clock, Mode, Name, Order, Released, Settings, SystemClock};
use integration_tests::{Direction, FaultProxy, ZooKeeper, ZooKeeperEnsemble, ZooKeeperServer};
use tokio::time::{sleep, timeout};
use zk_support::*;

#[tokio::test]
async fn lock_whose_node_was_made_anew_is_not_taken_for_the_old_one() {
    const CYCLES: usize = 5;
    let server = ZooKeeperServer::start().await.expect("zookeeper");
    let (a, b) = (client(&server.url()).await, client(&server.url()).await);
    let admin = Admin::connect(&server.url()).await;
    let cycles = async |locks, count: usize| {
        for _ in 0..count {
            let guard = lock(locks, "x").await;
            assert_eq!(guard.release().await.expect("release"), Released::Freed);
        }
    };
    // It knows that nobody else wants the lock, and which number its next place will have if that is still so.
    cycles(&a, CYCLES).await;
    admin.0.delete("/dlock/x", None).await.expect("delete");
    // In the new node the numbers begin again: the next place has the expected number, and it is not alone.
    cycles(&b, CYCLES - 1).await;
    let held = lock(&b, "x").await;
    let number = format!("{:010}", CYCLES - 1);
    let queue = admin.queue("/dlock/x").await;
    assert!(queue.len() == 1 && queue[0].ends_with(&number), "{queue:?}");
    let tried = a.mutex("x").expect("a name").try_lock().await.expect("try");
    assert!(tried.is_none(), "two hold");
    assert_eq!(held.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn place_of_another_session_is_not_taken_for_our_own() {
    let url = shared().await;
    let (first, second) = (backend(&url).await, backend(&url).await);
    let name = Name::new("two-sessions").expect("a name");
    let request = Request::new(name, Mode::Exclusive, Arc::new(SystemClock));
    // One attempt, asked through two sessions, as if the first one had ended here and not yet at the server.
    let held = first.acquire(&request).await.expect("an answer");
    assert!(matches!(held, Outcome::Held(_)), "{held:?}");
    let Outcome::Held(lease) = second.acquire(&request).await.expect("an answer") else {
        panic!("its own attempt is in its way");
    };
    first.close().await.expect("close");
    let renewed = second.renew(&[Arc::new(lease)]).await;
    assert!(
        matches!(renewed[..], [Renewal::Extended]),
        "the hold ended with another session: {renewed:?}"
    );
}

#[tokio::test]
async fn create_of_a_session_that_was_given_up_is_not_carried_out_later() {
    // The server ends sessions only every 20 s, so it knows this one longer than the client does.
    let mut settings = ZooKeeper::default();
    settings.tick = 20_000;
    settings.config.push("minSessionTimeout=1000".to_owned());
    let server = ZooKeeperServer::start_with(settings)
        .await
        .expect("zookeeper");
    let (slow, good) = (
        FaultProxy::start(server.addr()).await.expect("a proxy"),
        FaultProxy::start(server.addr()).await.expect("a proxy"),
    );
    good.refuse();
    let hosts = format!("{},{}", slow.addr(), good.addr());
    let url = format!("zk://{hosts}?session=1s&connect_timeout=20s");
    let locks = client(&url).await;
    let admin = Admin::connect(&server.url()).await;
    assert_eq!(
        lock(&locks, "a").await.release().await.expect("release"),
        Released::Freed
    );
    // The create is on its way, and stays there.
    slow.pause(Direction::ToServer);
    slow.refuse();
    let mutex = locks.mutex("a").expect("a name");
    let waited = mutex.lock_within(Duration::from_millis(200)).await;
    assert!(waited.is_err(), "{waited:?}");
    // Past the moment at which the client gives the session up.
    sleep(Duration::from_secs(2)).await;
    good.accept();
    undone(&locks, SOON).await.expect("the attempt is undone");
    slow.resume();
    slow.connections_are(0).await;
    assert_eq!(
        admin.queue("/dlock/a").await,
        Vec::<String>::new(),
        "carried out after it was undone"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create_that_is_not_committed_yet_is_undone_when_it_is() {
    let mut settings = with_quick_clean_up();
    settings.config.push("syncLimit=100".to_owned());
    let ensemble = ZooKeeperEnsemble::start_with(settings, 4)
        .await
        .expect("an ensemble");
    let leader = ensemble.leader().await.expect("a leader");
    let followers: Vec<_> = ensemble
        .members()
        .iter()
        .filter(|member| member.port() != leader.port())
        .collect();
    let (at_leader, at_follower) = (
        FaultProxy::start(leader.addr()).await.expect("a proxy"),
        FaultProxy::start(followers[0].addr())
            .await
            .expect("a proxy"),
    );
    at_follower.refuse();
    let url = format!("zk://{},{}", at_leader.addr(), at_follower.addr());
    let settings = Settings::new().trip_timeout(Duration::from_secs(1));
    let locks = client_with(&url, settings).await;
    assert_eq!(
        lock(&locks, "a").await.release().await.expect("release"),
        Released::Freed
    );
    // The leader and one follower are no majority of four: the create waits.
    followers[1..].iter().for_each(|member| member.freeze());
    let mutex = locks.mutex("a").expect("a name");
    let waited = mutex.lock_within(Duration::from_millis(500)).await;
    assert!(waited.is_err(), "{waited:?}");
    // The session moves to the follower, which does not have the node yet. That is no proof that it will never be.
    at_leader.refuse();
    at_leader.reset_all().await;
    at_follower.accept();
    at_follower.connections_are(1).await;
    let early = undone(&locks, Duration::from_secs(3)).await;
    followers[1..].iter().for_each(|member| member.thaw());
    undone(&locks, SOON).await.expect("the attempt is undone");
    let admin = Admin::connect(&leader.url()).await;
    assert_eq!(
        admin.queue("/dlock/a").await,
        Vec::<String>::new(),
        "carried out after it was undone: {early:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_whose_place_was_deleted_during_a_cut_does_not_hold_without_it() {
    const BETWEEN: usize = 500;
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = client(&server.url()).await;
    let settings = Settings::new().order(Order::Strict);
    let readers = client_with(&format!("zk://{}?session=30s", proxy.addr()), settings).await;
    let admin = Admin::connect(&server.url()).await;
    let write = holder.rw_lock("a").expect("a name");
    let write = write.write().await.expect("the lock");
    let read = |name: String| {
        let lock = readers.rw_lock(name).expect("a name");
        tokio::spawn(async move { lock.read().await.expect("the lock") })
    };
    // Two readers watch the writer. The session names its watches again in the order in which they were first set: the writer's comes with the
    // first reader's, and the second reader's own long after it, in another request.
    let first = read("a".to_owned());
    watched(&server, 2).await;
    let name = |number: usize| format!("{number:04}-{}", "x".repeat(200));
    let mut others = Vec::new();
    for number in 0..BETWEEN {
        let other = holder.rw_lock(name(number)).expect("a name");
        others.push(other.write().await.expect("the lock"));
    }
    let waits: Vec<_> = (0..BETWEEN).map(|number| read(name(number))).collect();
    watched(&server, 2 + 2 * BETWEEN as u64).await;
    let second = read("a".to_owned());
    watched(&server, 3 + 2 * BETWEEN as u64).await;
    let queue = queue_of(&admin, "/dlock/a", 3).await;

    proxy.refuse();
    proxy.reset_all().await;
    for node in [&queue[2], &queue[0]] {
        let path = format!("/dlock/a/{node}");
        admin.0.delete(&path, None).await.expect("delete");
    }
    proxy.accept();
    for guard in [first, second] {
        let guard = timeout(SOON, guard).await.expect("soon").expect("it holds");
        let places = admin.queue("/dlock/a").await;
        let id = guard.owner_id();
        let mine = |node: &&String| node.replace('-', "").starts_with(&format!("_c_{id}"));
        assert!(
            places.iter().any(|node| mine(&node)),
            "it holds without a place: {id} in {places:?}"
        );
        drop(guard);
    }
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    drop((write, others));
}

/// Resolves when a proxy has received this many bytes more than then, one way or the other.
async fn received(what: &str, bytes: impl Fn() -> u64, then: u64, more: u64) {
    integration_tests::until(what, SOON, || async {
        match bytes() - then {
            n if n >= more => Ok(()),
            n => Err(integration_tests::Error::answer("bytes", n.to_string())),
        }
    })
    .await
    .expect("it passes by");
}

/// Two that are before us leave, one after the other, and our own node goes in between: the watch on it was set for the first of the two and
/// has told, but nobody has listened since. The second one is gone when it is to be watched.
async fn waiter_whose_place_goes_unheard(is_written_before: bool) {
    let server = server().await;
    // The waiter's requests are held in the first, and the answers in the second.
    let answers = FaultProxy::start(server.addr()).await.expect("a proxy");
    let requests = FaultProxy::start(answers.addr()).await.expect("a proxy");
    let url = server.url() + "?session=30s";
    let (holder, middle) = (client(&url).await, client(&url).await);
    let waiter = client(&format!("zk://{}?session=30s", requests.addr())).await;
    let admin = Admin::connect(&server.url()).await;
    let held = lock(&holder, "a").await;
    let wait = |locks: &dlock_core::Locks| {
        let mutex = locks.mutex("a").expect("a name");
        tokio::spawn(async move { mutex.lock().await.expect("the lock") })
    };
    let between = wait(&middle);
    watched(&server, 2).await;
    let ours = wait(&waiter);
    // Each of the two watches itself and the one before.
    watched(&server, 4).await;
    let queue = queue_of(&admin, "/dlock/a", 3).await;

    // It hears that the one before it has left, and looks: the server sees it and the holder, and its answer is on the way.
    requests.pause(Direction::ToServer);
    let sent = requests.received().to_server;
    between.abort();
    queue_of(&admin, "/dlock/a", 2).await;
    // More than a heartbeat, which is 12 bytes.
    received("the look", || requests.received().to_server, sent, 40).await;
    answers.pause(Direction::ToClient);
    let told = answers.received().to_client;
    requests.resume();
    // At least the names of the two.
    received("the queue", || answers.received().to_client, told, 120).await;
    let told = answers.received().to_client;
    if is_written_before {
        let path = format!("/dlock/a/{}", queue[2]);
        admin
            .0
            .set_data(&path, b"by hand", None)
            .await
            .expect("set");
    }
    for node in [&queue[2], &queue[0]] {
        let path = format!("/dlock/a/{node}");
        admin.0.delete(&path, None).await.expect("delete");
    }
    received("the end", || answers.received().to_client, told, 60).await;
    answers.resume();

    let guard = timeout(SOON, ours).await.expect("soon").expect("it holds");
    let places = admin.queue("/dlock/a").await;
    let id = guard.owner_id();
    let mine = |node: &String| node.replace('-', "").starts_with(&format!("_c_{id}"));
    assert!(
        places.first().is_some_and(mine),
        "it holds without a place: {id} in {places:?}"
    );
    drop((guard, held));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_whose_place_was_deleted_before_it_watched_the_last_one_does_not_hold_without_it() {
    waiter_whose_place_goes_unheard(false).await;
}

/// A watch tells once: who was told that its node was written to is not told that it went.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_whose_place_was_written_to_and_deleted_does_not_hold_without_it() {
    waiter_whose_place_goes_unheard(true).await;
}

/// When the leader will end a session, on the clock of this host: what its four-letter word `dump` tells by the second, and the tick to the millisecond.
async fn expiry(leader: &ZooKeeperServer, session: &str, tick: u64) -> u64 {
    let dump = leader.four_letter_word("dump").await.expect("dump");
    let mut at = None;
    for line in dump.lines() {
        if let Some((_, date)) = line.split_once(" expire at ") {
            at = Some(date.to_owned());
        } else if line.trim() == session && line.starts_with('\t') {
            let date = at.expect("a date before its sessions");
            let time = date.split(' ').nth(3).expect("a time of day");
            let told = time.split(':').fold(0, |sum, part| {
                sum * 60 + part.parse::<u64>().expect("a number")
            });
            let wall = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .expect("after 1970");
            let day = 86_400_000;
            // Half a second more: it was rounded down.
            let left = (told * 1000 + 500 + day - wall.as_millis() as u64 % day) % day;
            let roughly = monotonic() + left;
            return (roughly + tick / 2) / tick * tick;
        }
    }
    panic!("no {session} in {dump}");
}

/// Milliseconds on the clock by which a Java program counts time that passes.
fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_never_counts_on_more_than_its_leader_has_heard() {
    const TICK: u32 = 6_000;
    let mut settings = ZooKeeper::default();
    settings.tick = TICK;
    settings.env.push(("TZ".to_owned(), "UTC".to_owned()));
    let ensemble = ZooKeeperEnsemble::start_with(settings, 3)
        .await
        .expect("an ensemble");
    let leader = ensemble.leader().await.expect("a leader");
    let mut members = ensemble.members().iter();
    let follower = members
        .find(|member| member.port() != leader.port())
        .expect("a follower");
    let admin = Admin::connect(&leader.url()).await;
    // The leader rounds up to a whole tick from the last report of the follower: by little, for one of these sessions at least.
    let mut holds = Vec::new();
    for number in 0..12 {
        let session = 2 * TICK + number * 500;
        let settings = Settings::new().renew_every(Duration::from_millis(200));
        let url = format!("{}?session={session}ms", follower.url());
        let locks = client_with(&url, settings).await;
        let guard = lock(&locks, &format!("{number}")).await;
        let parent = format!("/dlock/{number}");
        let queue = admin.queue(&parent).await;
        let stat = admin.0.check_stat(&format!("{parent}/{}", queue[0])).await;
        let owner = stat.expect("stat").expect("a hold").ephemeral_owner;
        holds.push((locks, guard, format!("{owner:#x}")));
    }
    // Over two reports of the follower at least, which come every half tick.
    let end = monotonic() + u64::from(TICK) + 1000;
    while monotonic() < end {
        for (_, guard, session) in &holds {
            let until = guard.valid_until().expect("a deadline");
            let until = monotonic() + until.since(SystemClock.now()).as_millis() as u64;
            let ends = expiry(leader, session, TICK.into()).await;
            assert!(
                until <= ends,
                "good for {} ms longer than the session",
                until - ends
            );
        }
    }
    assert!(holds.iter().all(|(_, guard, _)| guard.is_held()));
}

async fn undone(locks: &dlock_core::Locks, limit: Duration) -> integration_tests::Result<()> {
    integration_tests::until("the attempt is undone", limit, || async {
        match locks.stats().in_doubt {
            0 => Ok(()),
            n => Err(integration_tests::Error::answer("in doubt", n.to_string())),
        }
    })
    .await
}
