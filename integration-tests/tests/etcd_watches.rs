//! Watches that the server tells late, and how a waiter wakes nevertheless (C17).
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod etcd_support;

use std::pin::pin;

use dlock_bench::Meter;
use dlock_core::{Guard, Locks, Released};
use etcd_client::{Client, WatchFilterType, WatchOptions, WatchResponse, WatchStream};
use etcd_support::late::{LateWatches, Progress};
use etcd_support::*;
use futures::StreamExt;
use integration_tests::EtcdServer;

/// So long that no slow look, one in a third of it, comes before a test is over.
const SESSION: &str = "session=120s";

async fn release(guard: Guard) {
    let released = guard.release().await.expect("the store answers");
    assert_eq!(released, Released::Freed);
}

async fn next(stream: &mut WatchStream) -> WatchResponse {
    let told = soon(stream.message()).await.expect("an answer");
    told.expect("the stream goes on")
}

fn revision(told: &WatchResponse) -> i64 {
    told.header().expect("a header").revision()
}

/// Writes one key after the other, until it is dropped.
struct Writers(Vec<tokio::task::JoinHandle<()>>);

impl Writers {
    async fn start(server: &EtcdServer, count: usize) -> Self {
        let mut writers = Vec::new();
        for n in 0..count {
            let mut raw = raw(&[server.addr()]).await;
            writers.push(tokio::spawn(async move {
                loop {
                    raw.put(format!("other-{n}"), "x", None)
                        .await
                        .expect("a put");
                }
            }));
        }
        Self(writers)
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        for writer in &self.0 {
            writer.abort();
        }
    }
}

/// Enters a watch and asks for the progress in the same breath: the watcher, and whether both have the same revision.
async fn entered(stream: &mut WatchStream, key: &str) -> (i64, bool) {
    let options = WatchOptions::new().with_filters([WatchFilterType::NoPut]);
    stream.watch(key, Some(options)).await.expect("sent");
    stream.request_progress().await.expect("sent");
    let (mut created, mut progress) = (None, None);
    while created.is_none() || progress.is_none() {
        let told = next(stream).await;
        if told.created() {
            created = Some((told.watch_id(), revision(&told)));
        } else {
            progress = Some(revision(&told));
        }
    }
    let (watcher, since) = created.expect("it was told");
    (watcher, progress == Some(since))
}

/// What the mend for late watches goes by, shown on the server alone. Late is a watch whose event comes after that of a write behind it: a
/// watch that has long been there tells of that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_at_the_revision_of_its_progress_is_never_late() {
    const WATCHES: usize = 200;
    let server = EtcdServer::start().await.expect("a server");
    let mut raw: Client = raw(&[server.addr()]).await;
    let _writers = Writers::start(&server, 8).await;
    let mut stream = raw.watch("marker", None).await.expect("a watch");
    assert!(next(&mut stream).await.created());
    let mut prompt = 0;
    for n in 0..WATCHES {
        let key = format!("watched-{n}");
        raw.put(key.as_str(), "x", None).await.expect("a put");
        let (watcher, is_prompt) = entered(&mut stream, &key).await;
        raw.delete(key.as_str(), None).await.expect("a delete");
        raw.put("marker", "x", None).await.expect("a put");
        let is_late = next(&mut stream).await.watch_id() != watcher;
        next(&mut stream).await;
        assert!(
            !(is_late && is_prompt),
            "late at the revision of its progress"
        );
        prompt += usize::from(is_prompt);
        stream.cancel(watcher).await.expect("sent");
        assert!(next(&mut stream).await.canceled());
    }
    assert!(prompt > WATCHES / 2, "{prompt} of {WATCHES}");
}

/// Another watch takes the place of a late one, whatever the server says of it.
#[tokio::test]
async fn waiter_whose_watch_is_late_wakes_by_another() {
    for progress in [Progress::Moved, Progress::Silent] {
        let server = EtcdServer::start().await.expect("a server");
        let way = LateWatches::start(server.addr(), progress, false).await;
        let holder = client(&url([server.addr()], SESSION)).await;
        let other = client(&url([way.addr()], SESSION)).await;
        // Two before it, so that it watches one key, and not its own beside it.
        let first = lock(&holder, "a").await;
        let middle = client(&url([server.addr()], SESSION)).await;
        let second = waiter(&middle, "a");
        waiting(&holder, "a", 1).await;
        let third = waiter(&other, "a");
        way.until(|passed| passed.watches == 2).await;
        release(first).await;
        let second = soon(second).await.expect("no panic").expect("the lock");
        release(second).await;
        release(soon(third).await.expect("no panic").expect("the lock")).await;
    }
}

/// What happened between the late watch and the one in its place is told by neither: a look tells.
#[tokio::test]
async fn end_between_the_late_watch_and_the_next_is_seen() {
    let server = EtcdServer::start().await.expect("a server");
    let way = LateWatches::start(server.addr(), Progress::Moved, true).await;
    let holder = client(&url([server.addr()], SESSION)).await;
    let other = client(&url([way.addr()], SESSION)).await;
    let first = lock(&holder, "a").await;
    let middle = client(&url([server.addr()], SESSION)).await;
    let second = waiter(&middle, "a");
    waiting(&holder, "a", 1).await;
    let third = waiter(&other, "a");
    way.until(|passed| passed.watches == 1).await;
    release(first).await;
    let second = soon(second).await.expect("no panic").expect("the lock");
    release(second).await;
    way.until(|passed| passed.withheld > 0).await;
    way.let_go();
    release(soon(third).await.expect("no panic").expect("the lock")).await;
}

/// Whoever sees the end of the last one before it holds without a look, if its own entry is still there: that is told first, unless the watch of it is late.
#[tokio::test]
async fn end_of_the_own_entry_is_seen_though_its_watch_is_late() {
    let server = EtcdServer::start().await.expect("a server");
    let way = LateWatches::start(server.addr(), Progress::Moved, true).await;
    let mut raw = raw(&[server.addr()]).await;
    let holder = client(&url([server.addr()], SESSION)).await;
    let other = client(&url([way.addr()], SESSION)).await;
    let first = lock(&holder, "a").await;
    let second = waiter(&other, "a");
    way.until(|passed| passed.watches == 1).await;
    // A write between its own watch and that of the holder: the first may be late.
    raw.put("other", "x", None).await.expect("a put");
    way.let_go();
    way.until(|passed| passed.watches == 2).await;
    let own = entries(&mut raw, "a").await[1].key().to_vec();
    raw.delete(own, None).await.expect("a delete");
    way.until(|passed| passed.withheld > 0).await;
    release(first).await;
    // It asks again, and holds by the entry that it has then.
    let guard = soon(second).await.expect("no panic").expect("the lock");
    let now: Vec<_> = entries(&mut raw, "a").await.iter().map(token_of).collect();
    assert_eq!(
        now,
        [guard.token().expect("a token")],
        "it holds by no entry"
    );
}

/// Waits for a lock behind another client, and gets it.
async fn hand_over(holder: &Locks, waiting_one: &Locks, name: &str) {
    let guard = lock(holder, name).await;
    let waits = waiter(waiting_one, name);
    waiting(holder, name, 1).await;
    release(guard).await;
    release(soon(waits).await.expect("no panic").expect("the lock")).await;
}

/// A version with as many letters as that of the server, so that it can be told in its place.
fn version_like(own: &str, major_and_minor: &str, patch: usize) -> (String, String) {
    let width = own.len() - major_and_minor.len() - 1;
    (own.to_owned(), format!("{major_and_minor}.{patch:0width$}"))
}

async fn own_version(server: &EtcdServer) -> String {
    let told = raw(&[server.addr()]).await.status().await;
    told.expect("its state").version().to_owned()
}

/// A server of a later version enters no watch late: it is asked for its version, once, and for nothing more. Nor is one that is so old that a proxy
/// of its kind would end with the question.
#[tokio::test]
async fn server_that_is_never_late_or_too_old_is_asked_for_its_version_alone() {
    let server = EtcdServer::start().await.expect("a server");
    let own = own_version(&server).await;
    for (line, patch, is_asked) in [
        ("9.4", 0, false),
        ("3.5", 1, true),
        ("3.4", 9, false),
        ("2.3", 8, false),
    ] {
        let version = version_like(&own, line, patch);
        let way = LateWatches::start_as(server.addr(), Progress::Prompt, version).await;
        let holder = client(&url([server.addr()], SESSION)).await;
        let other = client(&url([way.addr()], SESSION)).await;
        for _ in 0..3 {
            hand_over(&holder, &other, "a").await;
        }
        let passed = way.passed();
        assert_eq!(passed.versions, 1, "{line}: {passed:?}");
        assert!(passed.watches > 0, "{line}: {passed:?}");
        assert_eq!(passed.questions > 0, is_asked, "{line}: {passed:?}");
    }
}

/// At such a server nothing is late, so a waiter holds without a look also where others write between its two watches.
#[tokio::test]
async fn waiter_at_a_server_that_is_never_late_holds_without_a_look() {
    let server = EtcdServer::start().await.expect("a server");
    let version = version_like(&own_version(&server).await, "9.4", 0);
    let way = LateWatches::start_holding_as(server.addr(), version).await;
    let mut raw = raw(&[server.addr()]).await;
    let holder = client(&url([server.addr()], SESSION)).await;
    let other = client(&url([way.addr()], SESSION)).await;
    let first = lock(&holder, "a").await;
    let second = waiter(&other, "a");
    way.until(|passed| passed.watches == 1).await;
    raw.put("other", "x", None).await.expect("a put");
    way.let_go();
    way.until(|passed| passed.watches == 2).await;
    until_so("the waiter has looked", async || {
        let before = server.read().await.expect("its counters");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        server.read().await.expect("its counters").commands == before.commands
    })
    .await;
    let before = server.read().await.expect("its counters");
    release(first).await;
    let second = soon(second).await.expect("no panic").expect("the lock");
    let after = server.read().await.expect("its counters");
    assert_eq!(
        after.since(before).commands,
        Some(1.0),
        "the release, and nothing more"
    );
    release(second).await;
}

/// Waits for a lock behind another client for as long as a waiter asks that is never answered, and gets it.
async fn patient_hand_over(holder: &Locks, waiting_one: &Locks, name: &str) {
    let guard = lock(holder, name).await;
    let waits = waiter(waiting_one, name);
    waiting(holder, name, 1).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    release(guard).await;
    release(soon(waits).await.expect("no panic").expect("the lock")).await;
}

/// A proxy that passes no question on writes an error to its log for each.
#[tokio::test]
async fn who_never_answers_is_not_asked_again() {
    let server = EtcdServer::start().await.expect("a server");
    let way = LateWatches::start(server.addr(), Progress::Never, false).await;
    let holder = client(&url([server.addr()], SESSION)).await;
    let other = client(&url([way.addr()], SESSION)).await;
    patient_hand_over(&holder, &other, "a").await;
    // The first question, and one with each watch that was put in the place of another.
    assert!((1..=4).contains(&way.passed().questions));
    until_so("a waiter that asks nothing", async || {
        let before = way.passed().questions;
        patient_hand_over(&holder, &other, "a").await;
        way.passed().questions == before
    })
    .await;
}

/// A late watch makes some servers deaf to all questions of its stream, and of no other.
#[tokio::test]
async fn stream_that_is_deaf_keeps_nobody_else_from_asking() {
    let server = EtcdServer::start().await.expect("a server");
    let way = LateWatches::start(server.addr(), Progress::Deaf, false).await;
    let holder = client(&url([server.addr()], SESSION)).await;
    let other = client(&url([way.addr()], SESSION)).await;
    patient_hand_over(&holder, &other, "a").await;
    for name in ["b", "c", "d"] {
        let before = way.passed().questions;
        hand_over(&holder, &other, name).await;
        assert!(way.passed().questions > before, "{name}");
    }
}

/// To an observer of an election, and to a holder that asks whether others wait, 100 ms are nothing.
#[tokio::test]
async fn who_does_not_wait_for_a_lock_asks_for_no_progress() {
    let server = EtcdServer::start().await.expect("a server");
    let way = LateWatches::start(server.addr(), Progress::Prompt, false).await;
    let holder = client(&url([server.addr()], SESSION)).await;
    let other = client(&url([way.addr()], SESSION)).await;

    let guard = lock(&other, "a").await;
    let waits = waiter(&holder, "a");
    soon(guard.wanted()).await;
    release(guard).await;
    release(soon(waits).await.expect("no panic").expect("the lock")).await;

    let watched = other.election("b").expect("a good name");
    let mut leaders = pin!(watched.observe());
    let nobody = soon(leaders.next()).await.expect("it goes on");
    assert!(nobody.expect("the store answers").is_none());
    let ours = holder.election("b").expect("a good name");
    let term = soon(ours.campaign("first")).await.expect("the office");
    let leader = soon(leaders.next()).await.expect("it goes on");
    assert!(leader.expect("the store answers").is_some());
    drop(term);
    let passed = way.passed();
    assert!(passed.watches >= 2, "{passed:?}");
    assert_eq!(passed.questions, 0, "{passed:?}");
}
