//! Mode `lease`: each test makes the one situation for which a safeguard exists, and fails without it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod postgres_support;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{HeldNow, Mode, Name, Released, SystemClock};
use dlock_postgres::PostgresBackend;
use integration_tests::{FaultProxy, PostgresServer, until};
use postgres_support::*;
use uuid::Uuid;

/// Long, so that nothing passes by itself while a test looks.
const LEASE: Duration = Duration::from_secs(60);

async fn start() -> PostgresServer {
    PostgresServer::start().await.expect("a server")
}

fn request_for(name: &str, mode: Mode) -> Request {
    let name = Name::new(name).expect("a name");
    Request::new(name, mode, Arc::new(SystemClock)).with_lease(LEASE)
}

fn request(name: &str) -> Request {
    request_for(name, Mode::Exclusive)
}

async fn held(backend: &PostgresBackend, request: &Request) -> Option<Arc<Lease>> {
    match backend.try_acquire(request).await.expect("an answer") {
        Outcome::Held(lease) => Some(Arc::new(lease)),
        Outcome::Busy(_) => None,
    }
}

async fn take(backend: &PostgresBackend, name: &str) -> Arc<Lease> {
    held(backend, &request(name)).await.expect("a free lock")
}

async fn renew(backend: &PostgresBackend, lease: &Arc<Lease>) -> Renewal {
    let mut answers = backend.renew(std::slice::from_ref(lease)).await;
    answers.pop().expect("one answer")
}

async fn assert_held(backend: &PostgresBackend, lease: &Arc<Lease>) {
    let renewed = renew(backend, lease).await;
    assert!(matches!(renewed, Renewal::Extended), "{renewed:?}");
}

/// The time of a hold passes, for the server.
async fn expire(server: &PostgresServer) {
    for table in ["locks", "holders"] {
        let sql = format!("UPDATE dlock_{table} SET expires_at = clock_timestamp()");
        server.sql(&sql).await.expect("passed");
    }
}

async fn number(server: &PostgresServer, sql: &str) -> i64 {
    let told = server.sql(sql).await.expect("a number");
    told.trim().parse().unwrap_or_else(|_| panic!("{told}"))
}

/// Waits until a count is what is wanted.
async fn counts(server: &PostgresServer, what: &str, sql: &str, wanted: &str) {
    until(what, SOON, || async {
        match server.sql(sql).await?.trim() {
            found if found == wanted => Ok(()),
            found => Err(integration_tests::Error::answer("count", found)),
        }
    })
    .await
    .expect(what);
}

/// A request that was under way when its attempt was abandoned, and arrives now: whatever the lock is like, it takes nothing and stands
/// nowhere (C13).
#[tokio::test(flavor = "multi_thread")]
async fn a_late_request_of_an_abandoned_attempt_takes_nothing() {
    let server = start().await;
    let (one, other) = (backend(&server.url()).await, backend(&server.url()).await);
    for (turn, mode) in [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: 2 }]
        .into_iter()
        .enumerate()
    {
        // Nobody has used the name before; then it is free; then it is held; then it was swept.
        for state in ["new", "free", "held", "swept"] {
            let name = format!("{turn} {state}");
            let holder = match state {
                "held" => Some(take(&other, &name).await),
                _ => None,
            };
            if state == "free" {
                let lease = take(&other, &name).await;
                let freed = other.release(&lease).await.expect("an answer");
                assert_eq!(freed, Released::Freed);
            }
            let late = request_for(&name, mode);
            one.abandon(&late).await.expect("an answer");
            if state == "swept" {
                one.sweep(Duration::ZERO).await.expect("a sweep");
            }
            let deadline = late.now() + Duration::from_secs(5);
            let waits = late.with_deadline(Some(deadline));
            let error = one.acquire(&waits).await;
            error.map(|found| panic!("{name}: {found:?}")).ok();
            let left = format!(
                "SELECT (SELECT count(*) FROM dlock_waiters WHERE name = '{name}') + (SELECT count(*) FROM dlock_holders WHERE name = '{name}') \
                 + (SELECT count(*) FROM dlock_locks WHERE name = '{name}' AND owner IS NOT NULL)"
            );
            assert_eq!(
                number(&server, &left).await,
                i64::from(holder.is_some()),
                "{name}"
            );
        }
    }
}

/// An abandoned attempt is not refused for ever, and what is remembered of it goes.
#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_abandoned_attempts_goes() {
    let server = start().await;
    let one = backend(&server.url()).await;
    let first = request("a");
    one.abandon(&first).await.expect("an answer");
    let old = "UPDATE dlock_abandoned SET until = clock_timestamp()";
    server.sql(old).await.expect("old");
    one.abandon(&request("b")).await.expect("an answer");
    let kept = "SELECT count(*) FROM dlock_abandoned WHERE until <= clock_timestamp()";
    assert_eq!(number(&server, kept).await, 0);
}

/// A hold whose time has passed is nobody's: it is not renewed, changed or released, also when nobody has taken the lock since (C6, C8).
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_time_has_passed_does_not_come_back() {
    let server = start().await;
    let one = backend(&server.url()).await;
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: 2 }] {
        for crowd in [false, true] {
            let request = request_for("a", mode);
            let lease = held(&one, &request).await.expect("free");
            if crowd {
                server
                    .sql("UPDATE dlock_locks SET crowd = true")
                    .await
                    .expect("a crowd");
            }
            expire(&server).await;
            let renewed = renew(&one, &lease).await;
            assert!(matches!(renewed, Renewal::Lost(_)), "{mode}: {renewed:?}");
            one.downgrade(&lease)
                .await
                .expect_err("its time has passed");
            let released = one.release(&lease).await.expect("an answer");
            assert_eq!(released, Released::AlreadyLost, "{mode} {crowd}");
        }
    }
}

/// Asked for once more after its time has passed, it is another hold, with a token of its own (C11).
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_asks_again_too_late_gets_another_token() {
    let server = start().await;
    let one = backend(&server.url()).await;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let request = request_for(&format!("{mode}"), mode);
        let first = held(&one, &request).await.expect("free");
        // Past the short way.
        let crowd = "UPDATE dlock_locks SET crowd = true";
        server.sql(crowd).await.expect("a crowd");
        let again = held(&one, &request).await.expect("its own");
        assert_eq!(again.token(), first.token());
        expire(&server).await;
        server.sql(crowd).await.expect("a crowd");
        let late = held(&one, &request).await.expect("free");
        assert!(late.token() > first.token(), "{mode}");
    }
}

/// One who waits behind a dead first of the queue is the first itself, and looks when the holder's lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_behind_the_dead_is_told_when_the_lease_ends() {
    let server = start().await;
    let one = backend(&server.url()).await;
    for (name, left, rings) in [("late", "-1 seconds", true), ("gone", "1 hour", false)] {
        take(&one, name).await;
        let (_, bell) = stand(&server, name, -1, -1, left).await;
        if !rings {
            drop(bell);
            let gone = format!(
                "SELECT count(*) FROM pg_locks l, dlock_waiters w WHERE w.name = '{name}' AND l.locktype = 'advisory' \
                 AND (l.classid::bigint << 32 | l.objid::bigint) = w.bell"
            );
            counts(&server, "its connection has ended", &gone, "0").await;
        }
        let ask = |attempt: Uuid| {
            format!(
                "SELECT number FROM dlock_acquire('{name}', '{attempt}', -1, 60000000, '', '', NULL, 6000000, 'c')"
            )
        };
        let (first, second) = (Uuid::new_v4(), Uuid::new_v4());
        assert!(number(&server, &ask(first)).await > 0, "{name}");
        // Behind one who lives nobody looks.
        assert_eq!(number(&server, &ask(second)).await, 0, "{name}");
    }
}

/// A stale release, renewal, downgrade or undo never touches a later hold (C6).
#[tokio::test(flavor = "multi_thread")]
async fn nothing_stale_touches_a_later_hold() {
    let server = start().await;
    let one = backend(&server.url()).await;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let stale_request = request_for("a", mode);
        let stale = held(&one, &stale_request).await.expect("free");
        expire(&server).await;
        let later = held(&one, &request_for("a", mode)).await.expect("free");
        assert!(later.token() > stale.token());
        let renewed = renew(&one, &stale).await;
        assert!(matches!(renewed, Renewal::Lost(_)), "{renewed:?}");
        one.downgrade(&stale).await.expect_err("not its hold");
        let released = one.release(&stale).await.expect("an answer");
        assert_eq!(released, Released::AlreadyLost);
        one.abandon(&stale_request).await.expect("an answer");
        // Nor does it make that one longer, or give it away to who waits.
        let ends = "SELECT (SELECT max(expires_at) FROM dlock_locks) || ' ' || coalesce((SELECT max(expires_at) FROM dlock_holders)::text, '')";
        let before = server.sql(ends).await.expect("a time");
        renew(&one, &stale).await;
        assert_eq!(server.sql(ends).await.expect("a time"), before);
        let (next, _bell) = stand(&server, "a", -1, -1, "6 seconds").await;
        let released = one.release(&stale).await.expect("an answer");
        assert_eq!(released, Released::AlreadyLost);
        let waits = format!("SELECT count(*) FROM dlock_waiters WHERE attempt = '{next}'");
        assert_eq!(number(&server, &waits).await, 1, "two hold");
        let leave = "DELETE FROM dlock_waiters; UPDATE dlock_locks SET crowd = EXISTS (SELECT FROM dlock_holders)";
        server.sql(leave).await.expect("nobody waits");
        assert_held(&one, &later).await;
        assert_eq!(
            one.release(&later).await.expect("an answer"),
            Released::Freed
        );
    }
}

/// The answer was lost, and the same request was sent once more on another connection: the first may still be under way, so the release
/// keeps it from taking the lock again.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_sent_twice_takes_nothing_after_the_release() {
    let server = start().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let one = backend(&format!("postgres://dlock@{}/dlock", proxy.addr())).await;
    let other = backend(&server.url()).await;
    for waits in [false, true] {
        let name = format!("the-lost-name-{waits}");
        let request = request(&name);
        let holder = if waits {
            Some(take(&other, &name).await)
        } else {
            None
        };
        // A connection that was used before.
        let warm = take(&one, "warm").await;
        assert_eq!(
            one.release(&warm).await.expect("an answer"),
            Released::Freed
        );
        proxy.drop_reply_to(name.as_str(), Duration::ZERO);
        let taken = match holder {
            None => one.try_acquire(&request).await,
            Some(holder) => {
                let release = async {
                    proxy.reply_dropped().await;
                    let queued =
                        format!("SELECT count(*) FROM dlock_waiters WHERE name = '{name}'");
                    counts(&server, "it waits", &queued, "1").await;
                    let freed = other.release(&holder).await.expect("an answer");
                    assert_eq!(freed, Released::Freed);
                };
                tokio::join!(one.acquire(&request), release).0
            }
        };
        let Ok(Outcome::Held(lease)) = taken else {
            panic!("{taken:?}");
        };
        assert_eq!(
            one.release(&lease).await.expect("an answer"),
            Released::Freed
        );
        let late = other.try_acquire(&request).await;
        late.map(|found| panic!("{name}: {found:?}")).ok();
        take(&other, &name).await;
    }
}

/// Whoever reads the table of waiters could send an old message again, and so can a slow network: a grant that is not newer than what the
/// waiter has seen is not believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_an_old_grant_is_not_believed() {
    let server = start().await;
    let (one, other) = (
        backend(&server.url()).await,
        backend(&with(&server.url(), "waiter_lease=1h")).await,
    );
    let lease = take(&one, "a").await;
    let mut waiting = {
        let other = other.clone();
        tokio::spawn(async move { other.acquire(&request("a")).await })
    };
    let listens = "SELECT count(*) FROM dlock_waiters WHERE bell IS NOT NULL";
    counts(&server, "it listens", listens, "1").await;
    let token = number(&server, "SELECT token FROM dlock_locks WHERE name = 'a'").await;
    let before = server.sql("SELECT until FROM dlock_waiters").await;
    let before = before.expect("a time");
    let tell = format!("SELECT pg_notify(channel, attempt || ' {token}') FROM dlock_waiters");
    server.sql(&tell).await.expect("told");
    // It looks, and goes on waiting.
    let looked = format!(
        "SELECT count(*) FROM dlock_waiters WHERE until > '{}'",
        before.trim()
    );
    tokio::select! {
        found = &mut waiting => panic!("two hold: {found:?}"),
        () = counts(&server, "it has looked", &looked, "1") => {}
    }
    assert!(!waiting.is_finished(), "two hold");
    assert_held(&one, &lease).await;
    assert_eq!(
        one.release(&lease).await.expect("an answer"),
        Released::Freed
    );
    let next = soon("the waiter", waiting).await.expect("no panic");
    let Ok(Outcome::Held(next)) = next else {
        panic!("{next:?}");
    };
    assert!(next.token() > lease.token());
}

/// What stands in the queue, as a client that listens would have put it there. The connection keeps its bell.
async fn stand(
    server: &PostgresServer,
    name: &str,
    ticket: i64,
    kind: i32,
    left: &str,
) -> (Uuid, tokio_postgres::Client) {
    let conn = connection(&server.url()).await;
    let attempt = Uuid::new_v4();
    let bell = fastrand::i64(..);
    let keep = "SELECT pg_advisory_lock($1)";
    conn.execute(keep, &[&bell]).await.expect("a bell");
    let stand = format!(
        "INSERT INTO dlock_waiters VALUES ('{name}', {ticket}, '{attempt}', {kind}, 3600000000, 6000000, 'c', {bell}, \
         clock_timestamp() + interval '{left}', ''); UPDATE dlock_locks SET crowd = true WHERE name = '{name}'"
    );
    server.sql(&stand).await.expect("a place");
    (attempt, conn)
}

/// A grant costs the others no more than a sign of life if the waiter may be dead: its whole lease is for one who was there a moment ago.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_was_silent_gets_no_whole_lease() {
    let server = start().await;
    let one = backend(&server.url()).await;
    // From one who has it alone, and through the general way.
    for (name, kind) in [("alone", -1), ("shared", 0)] {
        for (left, whole) in [("5 seconds", 1), ("3 seconds", 0)] {
            let name = format!("{name} {left}");
            let lease = take(&one, &name).await;
            let (attempt, _bell) = stand(&server, &name, -1, kind, left).await;
            assert_eq!(
                one.release(&lease).await.expect("an answer"),
                Released::Freed
            );
            let long = "expires_at > clock_timestamp() + interval '10 minutes'";
            let owns = format!(
                "SELECT (SELECT count(*) FROM dlock_locks WHERE owner = '{attempt}' AND {long}) \
                 + (SELECT count(*) FROM dlock_holders WHERE attempt = '{attempt}' AND {long})"
            );
            assert_eq!(number(&server, &owns).await, whole, "{name}");
            let any = format!(
                "SELECT (SELECT count(*) FROM dlock_locks WHERE owner = '{attempt}') + (SELECT count(*) FROM dlock_holders WHERE attempt = '{attempt}')"
            );
            assert_eq!(number(&server, &any).await, 1, "{name}");
        }
    }
}

/// The dead do not stall the queue (C18): one whose time has passed, and one whose connection has ended.
#[tokio::test(flavor = "multi_thread")]
async fn the_dead_are_passed_over() {
    let server = start().await;
    let one = backend(&server.url()).await;
    for kind in [-1, 0] {
        for (left, rings) in [("-1 seconds", true), ("1 hour", false)] {
            let name = format!("{kind} {left}");
            let lease = take(&one, &name).await;
            let (dead, bell) = stand(&server, &name, -2, kind, left).await;
            if !rings {
                drop(bell);
                let gone = "SELECT count(*) FROM pg_locks l, dlock_waiters w WHERE w.ticket = -2 AND l.locktype = 'advisory' \
                    AND (l.classid::bigint << 32 | l.objid::bigint) = w.bell";
                counts(&server, "its connection has ended", gone, "0").await;
            }
            let (alive, _bell) = stand(&server, &name, -1, kind, "6 seconds").await;
            assert_eq!(
                one.release(&lease).await.expect("an answer"),
                Released::Freed
            );
            let has = |attempt: Uuid| {
                format!(
                    "SELECT (SELECT count(*) FROM dlock_locks WHERE owner = '{attempt}') + (SELECT count(*) FROM dlock_holders WHERE attempt = '{attempt}')"
                )
            };
            assert_eq!(number(&server, &has(dead)).await, 0, "{name}");
            assert_eq!(number(&server, &has(alive)).await, 1, "{name}");
            let clean = "DELETE FROM dlock_waiters";
            server.sql(clean).await.expect("clean");
        }
    }
}

/// Neither a hold nor what nobody has swept for is old: a sweep takes only what nobody uses.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_takes_nothing_that_is_held() {
    let server = start().await;
    let one = backend(&server.url()).await;
    let alone = take(&one, "alone").await;
    let shared = request_for("shared", Mode::Shared);
    let shared = held(&one, &shared).await.expect("free");
    let used = take(&one, "used").await;
    assert_eq!(
        one.release(&used).await.expect("an answer"),
        Released::Freed
    );
    one.sweep(Duration::ZERO).await.expect("a sweep");
    for lease in [alone, shared] {
        assert_held(&one, &lease).await;
    }
    let left = "SELECT count(*) FROM dlock_locks WHERE name = 'used'";
    assert_eq!(number(&server, left).await, 0);
}

/// Whoever waits has a place in the queue, which may be given the lock: an error after that says nothing about what is held.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_after_a_place_was_taken_is_in_doubt() {
    let server = start().await;
    let one = backend(&server.url()).await;
    let other = backend(&with(&server.url(), "waiter_lease=1s")).await;
    let lease = take(&one, "a").await;
    let request = Arc::new(request("a"));
    let asking = {
        let (other, request) = (other.clone(), request.clone());
        tokio::spawn(async move { other.acquire(&request).await })
    };
    let queued = "SELECT count(*) FROM dlock_waiters";
    counts(&server, "it waits", queued, "1").await;
    let hide = "ALTER FUNCTION dlock_acquire RENAME TO dlock_hidden";
    server.sql(hide).await.expect("hidden");
    let error = soon("its next sign of life", asking)
        .await
        .expect("no panic");
    let error = error.expect_err("the function is gone");
    assert_eq!(error.held_now(), HeldNow::Unknown, "{error}");
    other.abandon(&request).await.expect("an answer");
    counts(&server, "its place is gone", queued, "0").await;
    assert_held(&one, &lease).await;
}

/// What every call makes sure of: it does not wait for a row for ever, and a grant is in the log before anybody is told.
#[tokio::test(flavor = "multi_thread")]
async fn calls_wait_for_rows_within_a_limit_and_for_the_log() {
    let server = start().await;
    backend(&server.url()).await;
    let conn = connection(&server.url()).await;
    let nobody = "'00000000-0000-0000-0000-000000000000'";
    for call in [
        format!("dlock_acquire('a', {nobody}, -1, 1, '', NULL, NULL, 1, 'c')"),
        format!("dlock_release('a', {nobody}, 0)"),
        format!("dlock_renew(ARRAY['a'], ARRAY[{nobody}::uuid], false)"),
        format!("dlock_downgrade('a', {nobody})"),
        "dlock_break('a')".to_owned(),
        "dlock_sweep(1)".to_owned(),
    ] {
        let begin = format!("BEGIN; SET LOCAL synchronous_commit = off; SELECT {call}");
        conn.batch_execute(&begin).await.expect(&call);
        for (setting, wanted) in [("lock_timeout", "10s"), ("synchronous_commit", "local")] {
            let show = format!("SELECT current_setting('{setting}')");
            let row = conn.query_one(&show, &[]).await.expect("a setting");
            assert_eq!(row.get::<_, String>(0), wanted, "{call}");
        }
        conn.batch_execute("ROLLBACK").await.expect("undone");
    }
}

/// The connection that listens ends, and with it what it was told: everybody who waits looks, and says the new bell.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_outlives_the_connection_that_listens() {
    let server = start().await;
    let one = client(&server.url()).await;
    let other = client(&with(&server.url(), "waiter_lease=1h")).await;
    let guard = lock(&one, "a").await;
    let waiting = waiter(&other, "a");
    let ear = "SELECT l.pid FROM pg_locks l, dlock_waiters w WHERE l.locktype = 'advisory' AND l.granted \
        AND (l.classid::bigint << 32 | l.objid::bigint) = w.bell";
    let listens = format!("SELECT count(*) FROM ({ear}) x");
    counts(&server, "it listens", &listens, "1").await;
    let pid = number(&server, ear).await;
    let end = format!("SELECT pg_terminate_backend({pid})");
    server.sql(&end).await.expect("it ends");
    let anew = format!("SELECT count(*) FROM ({ear}) x WHERE pid <> {pid}");
    counts(&server, "it listens anew", &anew, "1").await;
    free(guard).await;
    let next = soon("the waiter", waiting).await.expect("no panic");
    free(next.expect("the lock")).await;
}

/// The short ways are for a lock that nobody shares and nobody waits for: one who shares it excludes who wants it alone (C19), and one who
/// stands in the queue comes before one who does not (C18).
#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_past_who_shares_a_lock_or_waits_for_it() {
    let server = start().await;
    let one = backend(&server.url()).await;
    for mode in [Mode::Shared, Mode::Permit { limit: 2 }] {
        let shared = held(&one, &request_for("shared", mode))
            .await
            .expect("free");
        assert!(held(&one, &request("shared")).await.is_none(), "two hold");
        assert_held(&one, &shared).await;
        let freed = one.release(&shared).await.expect("an answer");
        assert_eq!(freed, Released::Freed);
    }
    // One whose time has passed excludes nobody.
    held(&one, &request_for("passed", Mode::Shared))
        .await
        .expect("free");
    expire(&server).await;
    take(&one, "passed").await;
    // Who comes too late gives nothing on, and is told.
    let late = take(&one, "late").await;
    let (next, _bell) = stand(&server, "late", -1, -1, "6 seconds").await;
    expire(&server).await;
    assert_eq!(
        one.release(&late).await.expect("an answer"),
        Released::AlreadyLost
    );
    let has = format!("SELECT count(*) FROM dlock_locks WHERE owner = '{next}'");
    assert_eq!(number(&server, &has).await, 1);
    // A writer who waits is not starved by readers who come later.
    let reader = request_for("read", Mode::Shared);
    held(&one, &reader).await.expect("free");
    let (_writer, _bell) = stand(&server, "read", -1, -1, "6 seconds").await;
    let later = held(&one, &request_for("read", Mode::Shared)).await;
    assert!(later.is_none(), "past a writer");
    let lease = take(&one, "waited for").await;
    let (first, _bell) = stand(&server, "waited for", -1, -1, "6 seconds").await;
    expire(&server).await;
    let pushed_in = held(&one, &request("waited for")).await;
    assert!(pushed_in.is_none(), "past the first of the queue");
    let owner = "SELECT owner FROM dlock_locks WHERE name = 'waited for'";
    let owner = server.sql(owner).await.expect("a row");
    assert_eq!(owner.trim(), first.to_string());
    let released = one.release(&lease).await.expect("an answer");
    assert_eq!(released, Released::AlreadyLost);
    // A release gives the lock to who waits, also when a look at the holder alone would find nobody.
    let lease = take(&one, "given on").await;
    let (next, _bell) = stand(&server, "given on", -1, 0, "6 seconds").await;
    assert_eq!(
        one.release(&lease).await.expect("an answer"),
        Released::Freed
    );
    let has = format!("SELECT count(*) FROM dlock_holders WHERE attempt = '{next}'");
    assert_eq!(number(&server, &has).await, 1);
}

/// Somebody keeps the row of a lock for a moment, as any call does, while all connections for calls are taken by questions whether anybody waits. The
/// renewal must not stand behind those.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_stands_behind_no_question() {
    let server = start().await;
    let url = with(&server.url(), "connections=1&answer_timeout=15s");
    let one = backend(&url).await;
    let (asked, kept) = (take(&one, "asked").await, take(&one, "kept").await);
    let mut strangers = Vec::new();
    for name in ["asked", "kept"] {
        let stranger = connection(&server.url()).await;
        let keep = format!("BEGIN; SELECT FROM dlock_locks WHERE name = '{name}' FOR UPDATE");
        stranger.batch_execute(&keep).await.expect("the row");
        strangers.push(stranger);
    }
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let question = tokio::spawn({
        let one = one.clone();
        async move { one.wanted(&asked).await }
    });
    counts(&server, "the question waits", waiting, "1").await;
    let renewal = tokio::spawn({
        let one = one.clone();
        async move { renew(&one, &kept).await }
    });
    counts(&server, "the renewal waits for the row alone", waiting, "2").await;
    let stranger = strangers.pop().expect("two");
    stranger.batch_execute("ROLLBACK").await.expect("free");
    let renewed = soon("the renewal", renewal).await.expect("no panic");
    assert!(matches!(renewed, Renewal::Extended), "{renewed:?}");
    question.abort();
}
