//! Two never hold at once, and nobody ends what is not theirs: switch-overs, other users, and servers with unusual settings.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{ErrorKind, HeldNow, Locks, LossReason, Mode, Name, Released, SystemClock};
use dlock_mysql::Config;
use integration_tests::{Flavor, MySqlServer};
use mysql_async::prelude::Queryable;
use mysql_support::*;
use tokio::net::{TcpListener, TcpStream};

on_both!(
    switch_over_to_a_promoted_replica_never_makes_two_holders,
    demoted_server_is_an_outage_for_who_holds_across_it,
    end_of_a_dead_holder_spares_a_stranger_of_the_same_number,
    break_by_a_user_who_may_not_end_the_holder_frees_the_lock_or_says_no,
    locks_of_connections_are_inspected_listed_and_broken,
    defaults_of_the_server_change_no_lock,
    hold_is_found_by_its_attempt_whatever_became_of_a_downgrade,
    dead_waiters_leave_the_server_within_seconds,
    bytes_that_are_no_text_in_a_statement_keep_nobody_from_ending_a_hold,
    claim_of_a_mark_that_has_changed_since_takes_nothing,
);

const CONNECTED: [&str; 2] = ["session", "advisory"];

/// An address that stays, as of a proxy or a name: new connections go where it points, and old ones stay where they are.
struct Pointer {
    addr: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
}

impl Pointer {
    async fn to(first: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let target = Arc::new(Mutex::new(first));
        let points = target.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let target = *points.lock().expect("no panic");
                tokio::spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(target).await {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        Self { addr, target }
    }

    fn point_to(&self, target: SocketAddr) {
        *self.target.lock().expect("no panic") = target;
    }

    /// A server's URL, by this address.
    fn url(&self, server: &MySqlServer, parameters: &str) -> String {
        let url = server
            .url()
            .replace(&server.addr().to_string(), &self.addr.to_string());
        with(&url, parameters)
    }
}

/// A primary, and a replica that follows it.
async fn pair(flavor: Flavor) -> (MySqlServer, MySqlServer) {
    let primary = flavor.start_with(&["--log-bin=log", "--server-id=1", "--binlog-format=ROW"]);
    let primary = primary.await.expect("a server");
    let replica = flavor.start_with(&["--log-bin=log", "--server-id=2", "--binlog-format=ROW"]);
    let replica = replica.await.expect("a server");
    let port = primary.port();
    let follow = match flavor {
        Flavor::MariaDb => format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'root', MASTER_PASSWORD = 'dlock', \
             MASTER_LOG_FILE = 'log.000001', MASTER_LOG_POS = 4; START SLAVE"
        ),
        Flavor::MySql => format!(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, SOURCE_USER = 'root', \
             SOURCE_PASSWORD = 'dlock', GET_SOURCE_PUBLIC_KEY = 1, SOURCE_LOG_FILE = 'log.000001', SOURCE_LOG_POS = 4; START REPLICA"
        ),
    };
    replica.sql(&follow).await.expect("a replica");
    (primary, replica)
}

/// Waits until the replica has all that the primary has now, and promotes it.
async fn promote(primary: &MySqlServer, replica: &MySqlServer) {
    // Root writes all the same.
    let last = "CREATE TABLE IF NOT EXISTS switched (n INT PRIMARY KEY) ENGINE = InnoDB; REPLACE INTO switched VALUES (1)";
    primary.sql(last).await.expect("a last word");
    soon("the replica has all", async {
        while replica
            .sql("SELECT n FROM switched")
            .await
            .unwrap_or_default()
            != "1\n"
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let stop = match replica.flavor() {
        Flavor::MariaDb => "STOP SLAVE",
        Flavor::MySql => "STOP REPLICA",
    };
    replica.sql(stop).await.expect("promoted");
}

/// A planned one: the old primary is read-only and keeps its connections, new ones go to the promoted replica.
async fn switch_over_to_a_promoted_replica_never_makes_two_holders(flavor: Flavor) {
    for mode in MODES {
        let (primary, replica) = pair(flavor).await;
        let pointer = Pointer::to(primary.addr()).await;
        let url = pointer.url(&primary, &format!("mode={mode}&session_validity=1s"));
        let first = hasty(&url).await;
        let guard = lock(&first, "switched").await;
        primary.sql("SET GLOBAL read_only = 1").await.expect("set");
        promote(&primary, &replica).await;
        pointer.point_to(replica.addr());
        let second = client(&url).await;
        let mut waits = waiter(&second, "switched");
        let renewed = async {
            let before = first.stats().renewals;
            while first.stats().renewals < before + 9 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // Nine renewals are three validities: whoever waits at the new primary would hold by then.
        let next = soon("one of them goes on", async {
            tokio::select! {
                next = &mut waits => Some(next.expect("no panic").expect("the lock")),
                () = renewed => None,
            }
        })
        .await;
        match next {
            Some(next) => {
                assert!(!guard.is_held(), "{mode}: two hold");
                assert!(next.token() > guard.token(), "{mode}");
                free(next).await;
            }
            None => {
                // It has gone to the new primary too.
                assert!(guard.is_held(), "{mode}");
                free(guard).await;
                let next = soon("the waiter", waits).await.expect("no panic");
                free(next.expect("the lock")).await;
            }
        }
    }
}

/// A server that takes no writes proves no hold and grants none, also for a user whom `read_only` does not stop, as root.
async fn demoted_server_is_an_outage_for_who_holds_across_it(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in MODES {
        let url = with(&server.url(), &format!("mode={mode}&session_validity=1s"));
        let (locks, other) = (hasty(&url).await, hasty(&url).await);
        let mut guards = vec![lock(&locks, "across").await];
        if mode == "lease" {
            let read = locks.rw_lock("read").expect("a name").read().await;
            let permit = locks.semaphore("permit", 2).expect("a name");
            guards.extend([read.expect("free"), permit.acquire().await.expect("free")]);
        }
        server.sql("SET GLOBAL read_only = 1").await.expect("set");
        for guard in &guards {
            let why = soon("the holder is told", guard.lost()).await;
            assert_ne!(why, LossReason::Gone, "{mode}: nobody took it");
            assert!(!guard.is_held(), "{mode}");
        }
        // Neither a name that is in use nor one that never was. (Where a hold lives on a connection, the holder asks for its lock again and
        // again, and is in the way.)
        let names = match mode {
            "lease" | "unique" => &["across", "other"][..],
            _ => &["other"],
        };
        for name in names {
            let outcome = other.mutex(*name).expect("a name").try_lock().await;
            let Err(error) = outcome else {
                panic!("{mode}: it takes no writes: {outcome:?}");
            };
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{mode}: {error}");
            if matches!(mode, "lease" | "unique") {
                assert_eq!(error.held_now(), HeldNow::No, "{mode}: {error}");
            }
        }
        if mode == "lease" {
            let read = other.rw_lock("read").expect("a name").try_read().await;
            let permit = other.semaphore("permit", 2).expect("a name");
            for outcome in [read, permit.try_acquire().await] {
                let error = outcome.expect_err("it takes no writes");
                assert_eq!(error.kind(), ErrorKind::Unreachable, "{mode}: {error}");
            }
        }
        // A write to a server that was demoted keeps it from following its successor.
        let rows = match mode {
            "lease" | "unique" => {
                let table = if mode == "lease" { "locks" } else { "unique" };
                format!("SELECT COUNT(*) FROM dlock_{table} WHERE name = 'other'")
            }
            _ => format!(
                "SELECT COUNT(*) FROM dlock_{mode}_marks WHERE owner IS NOT NULL AND name = 'other'"
            ),
        };
        assert_eq!(server.sql(&rows).await.expect("a number"), "0\n", "{mode}");
        server.sql("SET GLOBAL read_only = 0").await.expect("set");
        for guard in guards {
            let _ = guard.release().await;
        }
        free(lock(&locks, "across").await).await;
        free(lock(&other, "other").await).await;
    }
}

/// A connection's number is another one's after a fail-over.
async fn end_of_a_dead_holder_spares_a_stranger_of_the_same_number(flavor: Flavor) {
    for mode in CONNECTED {
        let (primary, replica) = pair(flavor).await;
        // The primary has counted further than the replica.
        for _ in 0..60 {
            connection(&primary.url())
                .await
                .disconnect()
                .await
                .expect("closed");
        }
        let before: Vec<u32> = ids(&primary).await;
        let holder = client(&url(&primary, mode)).await;
        let guard = lock(&holder, "stranger").await;
        let ours: Vec<u32> = ids(&primary)
            .await
            .into_iter()
            .filter(|id| !before.contains(id))
            .collect();
        promote(&primary, &replica).await;
        let top = *ours.iter().max().expect("connections of the holder");
        let mut strangers = Vec::new();
        loop {
            let stranger = connection(&replica.url()).await;
            let id = stranger.id();
            assert!(id <= top + 1, "the replica has counted further");
            if ours.contains(&id) {
                strangers.push(stranger);
            } else {
                stranger.disconnect().await.expect("closed");
            }
            if id >= top {
                break;
            }
        }
        assert!(!strangers.is_empty(), "no number is taken twice");
        let other = client(&url(&replica, mode)).await;
        assert!(other.break_lock("stranger").await.expect("it answers"));
        for stranger in &mut strangers {
            let one: Option<u8> = stranger.query_first("SELECT 1").await.expect("it lives");
            assert_eq!(one, Some(1));
        }
        drop(guard);
    }
}

async fn ids(server: &MySqlServer) -> Vec<u32> {
    let all = connections(server).await;
    all.iter().map(|id| id.parse().expect("a number")).collect()
}

/// Threads of other users are invisible without the right PROCESS, and may not be ended.
async fn break_by_a_user_who_may_not_end_the_holder_frees_the_lock_or_says_no(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let user =
        "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'app'; GRANT ALL ON dlock.* TO app@'127.0.0.1'";
    server.sql(user).await.expect("a user");
    for mode in CONNECTED {
        let url = with(&server.url(), &format!("mode={mode}&session_validity=1s"));
        let holder = client(&url).await;
        let guard = lock(&holder, "other user's").await;
        let app = Config::from_url(&url).expect("a good URL");
        let app = app.user("app").password("app").connect().await;
        let app = Locks::new(Arc::new(app.expect("a connection"))).expect("defaults");
        assert!(app.break_lock("other user's").await.expect("it answers"));
        assert!(!guard.is_held(), "{mode}: it said that it broke the lock");
        let next = app.mutex("other user's").expect("a name").try_lock().await;
        free(next.expect("it answers").expect("it is free")).await;

        // A holder that is silent does not see that its lock was broken, and then nothing was freed.
        let backend = backend(&url).await;
        let held = take(&*backend, "silent", Mode::Exclusive).await;
        let broken = app.break_lock("silent").await;
        let seen = backend.inspect(held.name()).await.expect("it answers");
        match broken {
            Ok(true) => assert!(seen.holders.is_empty(), "{mode}: {seen:?}"),
            Ok(false) => panic!("{mode}: it was held"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Denied, "{mode}: {error}"),
        }
    }
}

async fn take(backend: &dyn Backend, name: &str, mode: Mode) -> Lease {
    let name = Name::new(name).expect("a name");
    let request = Request::new(name, mode, Arc::new(SystemClock));
    match backend.try_acquire(&request).await.expect("it answers") {
        Outcome::Held(lease) => lease,
        Outcome::Busy(_) => panic!("{} is held", request.name()),
    }
}

async fn locks_of_connections_are_inspected_listed_and_broken(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in CONNECTED {
        let url = with(&server.url(), &format!("mode={mode}&session_validity=1s"));
        let (holder, other) = (client(&url).await, client(&url).await);
        let (a, b) = (lock(&holder, "seen a").await, lock(&holder, "seen b").await);
        let list = other.list("seen").await.expect("a list");
        let names: Vec<&str> = list.iter().map(|info| info.name.as_str()).collect();
        assert_eq!(names, ["seen a", "seen b"], "{mode}");
        let info = other.inspect("seen a").await.expect("it answers");
        assert_eq!(info.holders.len(), 1, "{mode}");
        assert_eq!(info.holders[0].token, a.token(), "{mode}");
        free(b).await;
        let info = other.inspect("seen b").await.expect("it answers");
        assert!(info.holders.is_empty(), "{mode}: {info:?}");
        // One whose connection has ended is no holder for an onlooker.
        assert!(other.break_lock("seen a").await.expect("it answers"));
        let info = other.inspect("seen a").await.expect("it answers");
        assert!(info.holders.is_empty(), "{mode}: {info:?}");
        assert_eq!(other.list("seen").await.expect("a list").len(), 0, "{mode}");
        drop(a);
    }
}

/// What an administrator has set for all sessions must not change what our statements mean.
async fn defaults_of_the_server_change_no_lock(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let set = "SET GLOBAL completion_type = 'CHAIN', GLOBAL sql_select_limit = 1, GLOBAL sql_safe_updates = 1, \
         GLOBAL autocommit = 0, GLOBAL transaction_isolation = 'SERIALIZABLE'";
    let set = match flavor {
        // It has another name there until 11.1.
        Flavor::MariaDb => set.replace("transaction_isolation", "tx_isolation"),
        Flavor::MySql => set.to_owned(),
    };
    server.sql(&set).await.expect("set");
    for mode in MODES {
        let url = url(&server, mode);
        let (holder, other) = (hasty(&url).await, hasty(&url).await);
        let (a, b) = (lock(&holder, "set a").await, lock(&holder, "set b").await);
        let tried = other.mutex("set a").expect("a name").try_lock().await;
        assert!(tried.expect("it answers").is_none(), "{mode}");
        assert_eq!(other.list("set").await.expect("a list").len(), 2, "{mode}");
        let waits = waiter(&other, "set a");
        let renewals = holder.stats().renewals;
        soon("renewals", async {
            while holder.stats().renewals < renewals + 4 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        assert!(a.is_held() && b.is_held(), "{mode}");
        free(a).await;
        let next = soon("the waiter", waits).await.expect("no panic");
        free(next.expect("the lock")).await;
        // A transaction that goes on after its end would keep the row.
        free(lock(&holder, "set a").await).await;
        free(lock(&other, "set a").await).await;
        free(b).await;
        if matches!(mode, "lease" | "unique") {
            let swept = backend(&url).await.sweep(Duration::from_secs(1)).await;
            swept.unwrap_or_else(|error| panic!("{mode}: {error}"));
        }
        if mode == "lease" {
            let shared = other.rw_lock("set rw").expect("a name");
            let (one, two) = (shared.read().await.unwrap(), {
                let shared = holder.rw_lock("set rw").expect("a name");
                shared.read().await.unwrap()
            });
            free(one).await;
            free(two).await;
            free(shared.write().await.unwrap()).await;
        }
    }
}

/// Core may not know whether a downgrade took effect: either mode must find the hold.
async fn hold_is_found_by_its_attempt_whatever_became_of_a_downgrade(flavor: Flavor) {
    let server = integration_tests::mysql_of(flavor).await.expect("a server");
    let url = with(server.url(), "mode=lease&table_prefix=dg_");
    let backend = backend(&url).await;
    for (n, (done, told)) in [
        (false, Mode::Shared),
        (false, Mode::Exclusive),
        (true, Mode::Exclusive),
        (true, Mode::Shared),
    ]
    .into_iter()
    .enumerate()
    {
        let what = format!("downgraded {done}, told {told}");
        let held = take(&*backend, &format!("n {n}"), Mode::Exclusive).await;
        if done {
            backend.downgrade(&held).await.expect("it is held");
        }
        let lease = Arc::new(held.with_mode(told));
        let renewed = backend.renew(std::slice::from_ref(&lease)).await;
        assert!(
            matches!(renewed[..], [Renewal::Extended]),
            "{what}: {renewed:?}"
        );
        let released = backend.release(&lease).await.expect("it answers");
        assert_eq!(released, Released::Freed, "{what}");
        let info = backend.inspect(lease.name()).await.expect("it answers");
        assert!(info.holders.is_empty(), "{what}: {info:?}");
        let renewed = backend.renew(std::slice::from_ref(&lease)).await;
        assert!(
            matches!(renewed[..], [Renewal::Lost(_)]),
            "{what}: {renewed:?}"
        );
    }
}

/// A process that dies while it waits must not be in the server's queue for an hour.
async fn dead_waiters_leave_the_server_within_seconds(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in CONNECTED {
        let holder = client(&url(&server, mode)).await;
        let guard = lock(&holder, "queue").await;
        let alone = connections(&server).await.len();
        let proxy = integration_tests::FaultProxy::start(server.addr()).await;
        let proxy = proxy.expect("a proxy");
        let through =
            url(&server, mode).replace(&server.addr().to_string(), &proxy.addr().to_string());
        let dies = client(&through).await;
        let waits = waiter(&dies, "queue");
        let waiting = match flavor {
            Flavor::MariaDb => {
                "SELECT COUNT(*) FROM information_schema.processlist WHERE command IN ('Query', 'Execute') AND db = 'dlock' \
                 AND id <> CONNECTION_ID()"
            }
            Flavor::MySql => {
                "SELECT COUNT(*) FROM performance_schema.threads WHERE processlist_command IN ('Query', 'Execute') \
                 AND processlist_db = 'dlock' AND processlist_id <> CONNECTION_ID()"
            }
        };
        soon("it waits at the server", async {
            while server.sql(waiting).await.expect("a number") == "0\n" {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        proxy.refuse();
        proxy.reset_all().await;
        soon("the dead waiter is gone", async {
            while connections(&server).await.len() > alone {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
        waits.abort();
        free(guard).await;
    }
}

/// MySQL 9 does not show its list of processes (error 3854) while a statement runs that has bytes which are no text, such as the attempts in
/// our own. An undo, a break and a look must not need that list.
async fn bytes_that_are_no_text_in_a_statement_keep_nobody_from_ending_a_hold(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let mut other = connection(&server.url()).await;
    let running = tokio::spawn(async move {
        let bytes: &[u8] = &[0xA9, 0x42, 0xDF, 0x02, 0xFF];
        let slept: Result<Option<u8>, _> = other
            .exec_first("SELECT SLEEP(600) FROM DUAL WHERE ? <> 'x'", (bytes,))
            .await;
        slept
    });
    let list = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%SLEEP(600)%'";
    soon("it is in the way", async {
        loop {
            match (flavor, server.sql(list).await) {
                (Flavor::MySql, Err(error)) if error.to_string().contains("3854") => break,
                (Flavor::MariaDb, Ok(count)) if count != "1\n" => break,
                (_, seen) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    assert!(!running.is_finished(), "{seen:?}");
                }
            }
        }
    })
    .await;
    for mode in CONNECTED {
        let url = with(&server.url(), &format!("mode={mode}&session_validity=1s"));
        let (holder, two) = (client(&url).await, client(&url).await);
        let guard = lock(&holder, "bytes").await;
        // An attempt that is given up is undone by the end of its connection.
        let waits = waiter(&two, "bytes");
        soon("it waits", async {
            while two.stats().waiting == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        waits.abort();
        soon("all is undone", async {
            while two.stats().in_doubt > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        let info = two.inspect("bytes").await.expect("it answers");
        assert_eq!(info.holders.len(), 1, "{mode}");
        assert!(two.break_lock("bytes").await.expect("it answers"), "{mode}");
        assert!(!guard.is_held(), "{mode}");
        free(lock(&two, "bytes").await).await;
    }
    assert!(!running.is_finished(), "it was in the way all the time");
    running.abort();
}

/// A claim may come late, when its sender has lost the lock and others have had it: it names the version of the mark that it saw.
async fn claim_of_a_mark_that_has_changed_since_takes_nothing(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let mut conn = connection(&server.url()).await;
    for mode in CONNECTED {
        let locks = client(&url(&server, mode)).await;
        free(lock(&locks, "late").await).await;
        let marks = format!("dlock_{mode}_marks");
        let version = format!("SELECT id, stamp FROM {marks} WHERE name = 'late' AND part = 1");
        let late: (u64, u64) = conn.query_first(&version).await.unwrap().expect("a mark");
        free(lock(&locks, "late").await).await;
        let now: (u64, u64) = conn.query_first(&version).await.unwrap().expect("a mark");
        assert!(late.0 == now.0 && late.1 < now.1, "{late:?} {now:?}");
        let claim: String = include_str!("../../crates/dlock-mysql/src/sql/mark_claim.sql")
            .lines()
            .filter(|line| !line.starts_with("--"))
            .collect::<Vec<_>>()
            .join(" ")
            .replace("{marks}", &marks)
            .replace("{turns}", "64")
            .replace("{writable}", "TRUE");
        for ((id, stamp), expected) in [(late, 0), (now, 1)] {
            let args = ([7_u8; 16].as_slice(), 1_000_000, 5, "late", id, stamp);
            conn.exec_drop(claim.as_str(), args).await.expect("a claim");
            assert_eq!(conn.affected_rows(), expected, "{mode}");
        }
    }
}

/// Two spellings of a database are one where the server does not look at case, and so are their locks.
#[tokio::test(flavor = "multi_thread")]
async fn spellings_of_one_database_share_their_locks() {
    let server = Flavor::MariaDb.start_with(&["--lower-case-table-names=1"]);
    let server = server.await.expect("a server");
    for mode in MODES {
        let url = url(&server, mode);
        let other = url.replace("/dlock?", "/DLock?") + "&table_prefix=DLOCK_";
        let (one, two) = (hasty(&url).await, hasty(&other).await);
        let guard = lock(&one, "spelled").await;
        let carried_by = async || {
            let sql = format!(
                "SELECT connection FROM dlock_{mode}_marks WHERE name = 'spelled' AND part = 1"
            );
            server.sql(&sql).await.unwrap_or_default()
        };
        let before = carried_by().await;
        // One that does not see the lock waits for the validity of its mark alone.
        let waits = waiter(&two, "spelled");
        let renewals = one.stats().renewals;
        soon("more than a validity passes", async {
            while one.stats().renewals < renewals + 5 && !waits.is_finished() && guard.is_held() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        // On a busy machine the holder may lose its lock in earnest: then it knows.
        let is_held = guard.is_held();
        assert!(!(waits.is_finished() && is_held), "{mode}: two hold");
        // One that asks for another lock at the server gets it, finds the mark, and drives the holder from connection to connection.
        assert_eq!(
            carried_by().await,
            before,
            "{mode}: the holder was disturbed"
        );
        let _ = guard.release().await.expect("it answers");
        let next = soon("the waiter", waits).await.expect("no panic");
        free(next.expect("the lock")).await;
    }
}
