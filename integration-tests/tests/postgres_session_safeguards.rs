//! Mode `session`: each test makes the one situation for which a safeguard exists, and fails without it.
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
use integration_tests::{Direction, FaultProxy, PostgresServer, until};
use postgres_support::*;
use uuid::Uuid;

/// Long, so that nothing passes by itself while a test looks.
const VALIDITY: Duration = Duration::from_secs(60);

async fn start() -> PostgresServer {
    PostgresServer::start().await.expect("a server")
}

async fn session(url: &str) -> Arc<PostgresBackend> {
    backend(&with(url, "mode=session&session_validity=60s")).await
}

fn request(name: &str) -> Request {
    let name = Name::new(name).expect("a name");
    Request::new(name, Mode::Exclusive, Arc::new(SystemClock)).with_lease(VALIDITY)
}

async fn take(backend: &PostgresBackend, name: &str) -> Arc<Lease> {
    match backend
        .try_acquire(&request(name))
        .await
        .expect("an answer")
    {
        Outcome::Held(lease) => Arc::new(lease),
        Outcome::Busy(_) => panic!("{name} is not free"),
    }
}

async fn renew(backend: &PostgresBackend, lease: &Arc<Lease>) -> Renewal {
    let mut answers = backend.renew(std::slice::from_ref(lease)).await;
    answers.pop().expect("one answer")
}

/// The processes of the server that have the lock of a name, or wait for it.
async fn processes(server: &PostgresServer, name: &str, granted: bool) -> String {
    let sql = format!(
        "SELECT pid FROM pg_locks l, dlock_sessions s WHERE l.locktype = 'advisory' AND l.granted = {granted} \
         AND (l.classid::bigint << 32 | l.objid::bigint) = s.key AND s.name = '{name}'"
    );
    server.sql(&sql).await.expect("a list").trim().to_owned()
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

async fn kill_holder(server: &PostgresServer, name: &str) {
    let pid = processes(server, name, true).await;
    let end = format!("SELECT pg_terminate_backend({pid})");
    server.sql(&end).await.expect("it ends");
    until("it has ended", SOON, || async {
        match processes(server, name, true).await {
            now if now == pid => Err(integration_tests::Error::answer("pid", now)),
            _ => Ok(()),
        }
    })
    .await
    .expect("the end of a connection");
}

/// Core does not ask the store about a hold that is gone, so what the client keeps for it must go with the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_gone_gives_its_session_back() {
    let server = start().await;
    let one = session(&with(&server.url(), "max_sessions=1")).await;
    let lease = take(&one, "a").await;
    let broken = "UPDATE dlock_sessions SET broken = true WHERE name = 'a'";
    server.sql(broken).await.expect("a broken mark");
    let renewed = renew(&one, &lease).await;
    assert!(matches!(renewed, Renewal::Lost(_)), "{renewed:?}");
    take(&one, "b").await;
}

/// The same, found out on another connection than that of the hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_cannot_go_on_gives_its_session_back() {
    let server = start().await;
    let one = session(&with(&server.url(), "max_sessions=1")).await;
    let lease = take(&one, "a").await;
    let broken = "UPDATE dlock_sessions SET broken = true WHERE name = 'a'";
    server.sql(broken).await.expect("a broken mark");
    kill_holder(&server, "a").await;
    let renewed = renew(&one, &lease).await;
    assert!(matches!(renewed, Renewal::Lost(_)), "{renewed:?}");
    take(&one, "b").await;
}

/// A hold that looks in vain for another connection leaves that to others, and must then forget which one it was: the next look ends the
/// connection that it remembers.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_without_a_connection_ends_nobody_elses() {
    let server = start().await;
    let (one, other) = (session(&server.url()).await, session(&server.url()).await);
    let lost = take(&one, "a").await;
    let waiting = {
        let other = other.clone();
        tokio::spawn(async move { other.acquire(&request("a")).await })
    };
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    counts(&server, "it waits", waits, "1").await;
    kill_holder(&server, "a").await;
    counts(&server, "it has the key", waits, "0").await;
    let renewed = renew(&one, &lost).await;
    assert!(matches!(renewed, Renewal::Failed(_)), "{renewed:?}");
    let good = take(&one, "b").await;
    let carrier = processes(&server, "b", true).await;
    let renewed = renew(&one, &lost).await;
    assert!(matches!(renewed, Renewal::Failed(_)), "{renewed:?}");
    assert_eq!(processes(&server, "b", true).await, carrier);
    let released = one.release(&good).await.expect("an answer");
    assert_eq!(released, Released::Freed);
    waiting.abort();
}

/// The claim was carried out, its answer is lost, and then the server cannot be reached: nobody knows that it holds nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_cut_off_is_in_doubt_and_undone() {
    let server = start().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let way = format!("postgres://dlock@{}/dlock", proxy.addr());
    let one = session(&way).await;
    // A connection that was used before is trusted less than a new one, so there is a second try.
    let lease = take(&one, "before").await;
    let released = one.release(&lease).await.expect("an answer");
    assert_eq!(released, Released::Freed);
    proxy.drop_reply_to("the-lost-name", Duration::ZERO);
    let request = request("the-lost-name");
    let asked = one.try_acquire(&request);
    let cut = async {
        proxy.reply_dropped().await;
        // The connections that are there go on; there is no new one for the second try.
        proxy.refuse();
    };
    let (error, ()) = tokio::join!(asked, cut);
    let error = error.expect_err("the server is away");
    let mark =
        "SELECT count(*) FROM dlock_sessions WHERE name = 'the-lost-name' AND owner IS NOT NULL";
    counts(&server, "it was carried out", mark, "1").await;
    assert_eq!(error.held_now(), HeldNow::Unknown, "{error}");
    proxy.accept();
    one.abandon(&request).await.expect("an answer");
    counts(&server, "it was undone", mark, "0").await;
    assert_eq!(processes(&server, "the-lost-name", true).await, "");
    let other = session(&server.url()).await;
    take(&other, "the-lost-name").await;
}

/// The functions of this mode, asked by hand: a connection of another program, which can be in any state.
struct Hand {
    conn: tokio_postgres::Client,
    name: &'static str,
}

impl Hand {
    async fn at(server: &PostgresServer, name: &'static str) -> Self {
        let conn = connection(&server.url()).await;
        Self { conn, name }
    }

    /// What it said, the number, and the token of a mark.
    async fn claim(&self, attempt: Uuid, tries: bool, seen: Option<i64>) -> (i32, i64) {
        let claim =
            "SELECT said, number FROM dlock_session_acquire($1, $2, 60000000, 1, '', $3, $4)";
        let asked = self
            .conn
            .query_one(claim, &[&self.name, &attempt, &tries, &seen])
            .await;
        let row = asked.expect("an answer");
        (row.get(0), row.get(1))
    }

    async fn ask(&self, function: &str, attempt: Uuid, token: i64, last: &str) -> i32 {
        let sql = format!("SELECT dlock_session_{function}($1, $2, $3{last})");
        let asked = self
            .conn
            .query_one(&sql, &[&self.name, &attempt, &token])
            .await;
        asked.expect("an answer").get(0)
    }

    async fn prove(&self, attempt: Uuid, token: i64) -> i32 {
        self.ask("prove", attempt, token, "").await
    }

    async fn go_on(&self, attempt: Uuid, token: i64) -> i32 {
        self.ask("go_on", attempt, token, ", 1").await
    }

    async fn release(&self, attempt: Uuid, token: i64) -> i32 {
        self.ask("release", attempt, token, ", true").await
    }

    async fn unlock(&self) -> bool {
        let unlock = "SELECT pg_advisory_unlock(dlock_session_key($1))";
        let row = self.conn.query_one(unlock, &[&self.name]).await;
        row.expect("an answer").get(0)
    }

    async fn set(&self, what: &str) {
        let sql = format!("UPDATE dlock_sessions SET {what} WHERE name = $1");
        let changed = self.conn.execute(&sql, &[&self.name]).await;
        assert_eq!(changed.expect("a row"), 1);
    }
}

/// Only the connection that has the key, for the attempt whose mark it is, with its token, and as long as nobody counts its time or has broken it.
#[tokio::test(flavor = "multi_thread")]
async fn a_proof_needs_the_key_the_mark_and_that_nobody_counts() {
    let server = start().await;
    session(&server.url()).await;
    let (hand, stranger) = (Hand::at(&server, "a").await, Hand::at(&server, "a").await);
    let (mine, other) = (Uuid::new_v4(), Uuid::new_v4());
    let (said, token) = hand.claim(mine, true, None).await;
    assert_eq!(said, 1);
    assert_eq!(hand.prove(mine, token).await, 1);
    assert_eq!(hand.prove(other, token).await, 2, "another attempt");
    assert_eq!(hand.prove(mine, token - 1).await, 2, "an older hold");
    assert_eq!(stranger.prove(mine, token).await, 0, "without the key");
    hand.set("dead_at = clock_timestamp()").await;
    assert_eq!(hand.prove(mine, token).await, 0, "somebody counts its time");
    hand.set("dead_at = NULL, broken = true").await;
    assert_eq!(hand.prove(mine, token).await, 2, "broken");
    // A broken one neither goes on nor is given back as if it had held, nor holds when it is asked for again.
    assert!(hand.unlock().await);
    assert_eq!(stranger.go_on(mine, token).await, 2, "broken");
    assert!(!stranger.unlock().await, "it kept the key");
    assert_eq!(stranger.release(mine, token).await, 0, "broken");
    let (said, _) = hand.claim(mine, true, None).await;
    assert_eq!(said, 0, "broken");
    assert!(!hand.unlock().await, "it kept the key");
}

/// A holder whose connection broke goes on with the key alone, and only while the mark is its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_goes_on_with_its_own_mark_and_the_key() {
    let server = start().await;
    session(&server.url()).await;
    let (hand, stranger) = (Hand::at(&server, "a").await, Hand::at(&server, "a").await);
    let (mine, other) = (Uuid::new_v4(), Uuid::new_v4());
    let (_, token) = hand.claim(mine, true, None).await;
    assert_eq!(stranger.go_on(mine, token).await, 0, "another has the key");
    assert!(hand.unlock().await);
    assert_eq!(stranger.go_on(other, token).await, 2, "another's mark");
    assert!(!stranger.unlock().await, "it kept the key");
    assert_eq!(stranger.go_on(mine, token - 1).await, 2, "an older hold");
    assert!(!stranger.unlock().await, "it kept the key");
    stranger.set("dead_at = clock_timestamp()").await;
    assert_eq!(stranger.go_on(mine, token).await, 1);
    assert_eq!(
        stranger.prove(mine, token).await,
        1,
        "nobody counts any more"
    );
}

/// Whoever gets the key of one that did not leave in order waits for its whole validity, and only that mark's (C1).
#[tokio::test(flavor = "multi_thread")]
async fn a_mark_that_was_not_cleared_is_waited_for() {
    let server = start().await;
    session(&server.url()).await;
    let (hand, next) = (Hand::at(&server, "a").await, Hand::at(&server, "a").await);
    let (mine, other) = (Uuid::new_v4(), Uuid::new_v4());
    let (_, token) = hand.claim(mine, true, None).await;
    let (said, _) = next.claim(other, true, None).await;
    assert_eq!(said, 0, "the key is taken");
    assert!(hand.unlock().await);
    let (said, left) = next.claim(other, true, None).await;
    assert_eq!(said, 0, "two hold");
    assert!((59_000_000..=60_000_000).contains(&left), "{left}");
    assert!(!next.unlock().await, "one that only tries kept the key");
    // Its time runs from now on, also for those who only try.
    let runs = "SELECT dead_at IS NOT NULL FROM dlock_sessions WHERE name = 'a'";
    let runs = next.conn.query_one(runs, &[]).await.expect("a row");
    assert!(
        runs.get::<_, bool>(0),
        "nobody who only tries would ever get it"
    );
    // With the key, as after a wait.
    let lock = "SELECT pg_advisory_lock(dlock_session_key('a'))";
    next.conn.execute(lock, &[]).await.expect("the key");
    let (said, left) = next.claim(other, false, None).await;
    assert_eq!(said, 2, "two hold");
    assert!(left <= 60_000_000, "{left}");
    let (said, _) = next.claim(other, false, Some(token - 1)).await;
    assert_eq!(said, 2, "the time of another mark");
    // The clock was set back: never longer than the mark is good for.
    next.set("dead_at = clock_timestamp() + interval '1 hour'")
        .await;
    let (_, left) = next.claim(other, false, None).await;
    assert_eq!(left, 60_000_000);
    // The owner has gone on meanwhile, as behind a pooler that gives both the same connection: its time runs anew.
    next.set("dead_at = NULL").await;
    let (said, _) = next.claim(other, false, Some(token)).await;
    assert_eq!(said, 2, "two hold");
    let (said, later) = next.claim(other, false, Some(token)).await;
    assert_eq!(said, 1);
    assert!(later > token);
    // The former comes too late with all it may do.
    assert_eq!(hand.prove(mine, token).await, 2);
    assert_eq!(hand.release(mine, token).await, 0, "it was lost");
    assert_eq!(next.prove(other, later).await, 1);
}

/// A release ends its own hold and no later one, and says what it found.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_ends_its_own_hold_alone() {
    let server = start().await;
    session(&server.url()).await;
    let (hand, next) = (Hand::at(&server, "a").await, Hand::at(&server, "a").await);
    let (mine, other) = (Uuid::new_v4(), Uuid::new_v4());
    let (_, token) = hand.claim(mine, true, None).await;
    assert_eq!(hand.release(mine, token).await, 1);
    assert!(!hand.unlock().await, "it kept the key");
    assert_eq!(hand.release(mine, token).await, 2, "it had left in order");
    let (said, later) = next.claim(other, true, None).await;
    assert_eq!(said, 1, "after a release in order nobody waits");
    assert!(later > token);
    assert_eq!(hand.release(mine, token).await, 2);
    assert_eq!(hand.release(mine, later).await, 2, "not its hold");
    assert_eq!(hand.release(other, token).await, 2, "an older hold");
    assert_eq!(next.prove(other, later).await, 1);
    next.set("token = 5000").await;
    assert_eq!(next.release(other, 5000).await, 1);
    let (_, last) = hand.claim(mine, true, None).await;
    assert!(last > 5000, "{last} after 5000");
}

/// The undo of an attempt leaves the mark of a later one alone, and the end of a connection is that of the sign alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_undo_ends_its_own_attempt_alone() {
    let server = start().await;
    let (one, other) = (session(&server.url()).await, session(&server.url()).await);
    let stale = request("a");
    let Ok(Outcome::Held(lease)) = one.try_acquire(&stale).await else {
        panic!("not free");
    };
    let bystander = take(&one, "b").await;
    assert_eq!(
        one.release(&lease).await.expect("an answer"),
        Released::Freed
    );
    let later = take(&other, "a").await;
    one.abandon(&stale).await.expect("an answer");
    for (backend, lease) in [(&other, &later), (&one, &bystander)] {
        let renewed = renew(backend, lease).await;
        assert!(matches!(renewed, Renewal::Extended), "{renewed:?}");
    }
    // What was abandoned takes nothing any more.
    let error = one.try_acquire(&stale).await;
    error.map(|found| panic!("{found:?}")).ok();
}

/// The release was carried out, and whoever asked for it went away before the answer: asked again, it is still that release.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_was_lost_is_still_a_release() {
    let server = start().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let way = format!("postgres://dlock@{}/dlock", proxy.addr());
    let one = session(&way).await;
    let lease = take(&one, "a").await;
    proxy.pause(Direction::ToClient);
    let first = {
        let (one, lease) = (one.clone(), lease.clone());
        tokio::spawn(async move { one.release(&lease).await })
    };
    let free = "SELECT count(*) FROM dlock_sessions WHERE name = 'a' AND owner IS NULL";
    counts(&server, "it was carried out", free, "1").await;
    first.abort();
    first.await.expect_err("it was dropped");
    proxy.resume();
    let released = one.release(&lease).await.expect("an answer");
    assert_eq!(released, Released::Freed);
}

/// A break by force takes the lock for a moment, to see that it is free. Whoever drops it then must not leave that behind: core knows nothing of
/// this attempt, so nobody else would end it.
#[tokio::test(flavor = "multi_thread")]
async fn a_break_that_is_dropped_gives_its_session_back() {
    let server = start().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = with(&server.url(), "mode=session&session_validity=2s");
    let holder = backend(&holder).await;
    take(&holder, "a").await;
    let way = format!(
        "postgres://dlock@{}/dlock?mode=session&max_sessions=1&session_validity=2s&answer_timeout=25s",
        proxy.addr()
    );
    let one = backend(&way).await;
    let breaking = {
        let one = one.clone();
        let name = Name::new("a").expect("a name");
        tokio::spawn(async move { one.break_lock(&name).await })
    };
    let counted = "SELECT count(*) FROM dlock_sessions WHERE broken AND dead_at IS NOT NULL";
    counts(
        &server,
        "it waits for the end of the validity",
        counted,
        "1",
    )
    .await;
    proxy.delay(Direction::ToClient, Duration::from_millis(700));
    let freed = "SELECT count(*) FROM dlock_sessions WHERE owner IS NULL AND NOT broken";
    counts(&server, "it gives the lock back", freed, "1").await;
    breaking.abort();
    let dropped = breaking.await;
    dropped.expect_err("its answer is still under way");
    proxy.delay(Direction::ToClient, Duration::ZERO);
    soon("its session is free", async {
        while one.try_acquire(&request("b")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

/// A request that waits for its connection while its attempt is abandoned: the undo has found nothing, so the request must not be sent any more (C13).
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_was_abandoned_while_it_connected_takes_nothing() {
    let server = start().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let way = format!("postgres://dlock@{}/dlock", proxy.addr());
    let one = session(&way).await;
    // It has the connection that was there.
    let before = take(&one, "before").await;
    let there = proxy.connections();
    proxy.pause(Direction::Both);
    let request = request("late");
    let asked = one.try_acquire(&request);
    let undone = async {
        proxy.connections_are(there + 1).await;
        let undone = one.abandon(&request).await;
        proxy.resume();
        undone
    };
    let (asked, undone) = soon("both", async { tokio::join!(asked, undone) }).await;
    undone.expect("nothing was there");
    assert!(asked.is_err(), "{asked:?}");
    let mark = "SELECT count(*) FROM dlock_sessions WHERE name = 'late' AND owner IS NOT NULL";
    counts(&server, "it took nothing", mark, "0").await;
    assert_eq!(processes(&server, "late", true).await, "");
    let released = one.release(&before).await.expect("an answer");
    assert_eq!(released, Released::Freed);
}

/// The answer was there, and nobody had read it when the attempt was undone: it is a hold no more, and its session is free.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_read_after_the_undo_is_no_hold() {
    let server = start().await;
    let url = with(
        &server.url(),
        "mode=session&session_validity=60s&max_sessions=1",
    );
    let one = backend(&url).await;
    let lease = take(&one, "late").await;
    let released = one.release(&lease).await.expect("an answer");
    assert_eq!(released, Released::Freed);
    let stranger = connection(&server.url()).await;
    let keep = "BEGIN; SELECT FROM dlock_sessions WHERE name = 'late' FOR UPDATE";
    stranger.batch_execute(keep).await.expect("the row");
    let request = request("late");
    let mut asked = std::pin::pin!(one.try_acquire(&request));
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    tokio::select! {
        asked = &mut asked => panic!("the row is kept: {asked:?}"),
        () = counts(&server, "it waits for the row", waiting, "1") => {}
    }
    // From here on nobody drives it until it was undone.
    stranger.batch_execute("ROLLBACK").await.expect("free");
    let mark = "SELECT count(*) FROM dlock_sessions WHERE name = 'late' AND owner IS NOT NULL";
    counts(&server, "the server has made it a hold", mark, "1").await;
    one.abandon(&request).await.expect("undone");
    counts(&server, "it was undone", mark, "0").await;
    let late = soon("the late answer", asked).await;
    assert!(late.is_err(), "{late:?}");
    take(&one, "next").await;
}

/// A hold whose connection broke looks for another one, while all connections for calls are taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_goes_on_stands_behind_no_call() {
    let server = start().await;
    let parameters = "mode=session&session_validity=60s&connections=1&answer_timeout=15s";
    let one = backend(&with(&server.url(), parameters)).await;
    let (kept, other) = (take(&one, "kept").await, take(&one, "other").await);
    let stranger = connection(&server.url()).await;
    let keep = "BEGIN; SELECT FROM dlock_sessions WHERE name = 'other' FOR UPDATE";
    stranger.batch_execute(keep).await.expect("the row");
    let stuck = tokio::spawn({
        let (one, name) = (one.clone(), other.name().clone());
        async move { one.break_lock(&name).await }
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    counts(&server, "a call that waits", waiting, "1").await;
    kill_holder(&server, "kept").await;
    let renewed = tokio::time::timeout(Duration::from_secs(12), renew(&one, &kept)).await;
    let renewed = renewed.expect("it waits for the call");
    assert!(matches!(renewed, Renewal::Extended), "{renewed:?}");
    stuck.abort();
}
