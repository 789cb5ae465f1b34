//! Why `zookeeper-client` and not `zookeeper-async`: what each says on a bad day. See docs/decisions/0004-zookeeper-client.md.
//!
//! Nothing of ours is tested here. When a test fails because `zookeeper-async` does better, the decision may be thought over.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where it breaks"
)]

mod zk_support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use integration_tests::{FaultProxy, until};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;
use zk_support::*;
use zookeeper_async::{Acl, CreateMode, KeeperState, ZkState, ZooKeeper};
use zookeeper_client::{Acls, Client, EventType, SessionState};

/// Long enough for `zookeeper-async`, which flaps below two seconds.
const SESSION: Duration = Duration::from_secs(4);

async fn ours(proxy: &FaultProxy) -> Client {
    let connector = Client::connector().with_session_timeout(SESSION);
    let client = connector.connect(&proxy.addr().to_string()).await;
    client.expect("a connection")
}

async fn theirs(proxy: &FaultProxy, watcher: impl zookeeper_async::Watcher + 'static) -> ZooKeeper {
    let servers = proxy.addr().to_string();
    // Without a pause it tries without one, and needs a whole core.
    let pause = Duration::from_millis(50);
    let client = ZooKeeper::connect_with_retry_time(&servers, SESSION, watcher, pause).await;
    let client = client.expect("a client");
    usable(&client).await;
    client
}

/// Resolves when it is connected, again or for the first time.
async fn usable(client: &ZooKeeper) {
    until("zookeeper-async works", SOON, || async {
        let answer = client.exists("/", false).await;
        answer.map_err(|error| integration_tests::Error::answer("exists", error.to_string()))
    })
    .await
    .expect("it connects");
}

async fn take(client: &ZooKeeper, path: &str) {
    let acl = Acl::open_unsafe().clone();
    let created = client.create(path, Vec::new(), acl, CreateMode::Ephemeral);
    created.await.expect("create");
}

impl Admin {
    /// The session that made an ephemeral node; `None` when it is gone.
    async fn owner(&self, path: &str) -> Option<i64> {
        self.0.sync("/").await.expect("sync");
        let stat = self.0.check_stat(path).await.expect("stat");
        stat.map(|stat| stat.ephemeral_owner)
    }
}

#[tokio::test]
async fn watch_outlasts_a_reconnect_with_one_client_and_not_with_the_other() {
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let admin = Admin::connect(&server.url()).await;
    admin.create("/predecessor", "").await;

    let ours = ours(&proxy).await;
    let theirs = theirs(&proxy, |_| {}).await;
    let (_, our_watch) = ours
        .check_and_watch_stat("/predecessor")
        .await
        .expect("a watch");
    let (tell, mut their_watch) = unbounded_channel();
    let watched = theirs.exists_w("/predecessor", move |event| {
        tell.send(event.event_type).ok();
    });
    watched.await.expect("a watch");
    take(&theirs, "/before").await;

    proxy.reset_all().await;
    ours.sync("/").await.ok();
    usable(&theirs).await;
    // It is the same session: whatever it held, it holds, and a waiter would go on waiting.
    take(&theirs, "/after").await;
    assert_eq!(admin.owner("/after").await, admin.owner("/before").await);

    admin.0.delete("/predecessor", None).await.expect("delete");
    let event = timeout(SOON, our_watch.changed()).await.expect("it fires");
    assert_eq!(event.event_type, EventType::NodeDeleted);
    // A server tells what is watched before it shows it. So no event can be under way when the node is seen to be gone.
    until("the deletion is seen", SOON, || async {
        match theirs.exists("/predecessor", false).await {
            Ok(None) => Ok(()),
            other => Err(integration_tests::Error::answer(
                "exists",
                format!("{other:?}"),
            )),
        }
    })
    .await
    .expect("it is gone");
    let event = timeout(Duration::from_millis(500), their_watch.recv()).await;
    assert!(event.is_err(), "it fires, after all: {event:?}");
}

#[tokio::test]
async fn expired_session_is_told_by_one_client_and_replaced_in_silence_by_the_other() {
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let admin = Admin::connect(&server.url()).await;

    let ours = ours(&proxy).await;
    let mut our_state = ours.state_watcher();
    let options = zookeeper_client::CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    ours.create("/ours", b"", &options).await.expect("create");
    let told = Arc::new(Mutex::new(Vec::new()));
    let theirs = theirs(&proxy, {
        let told = told.clone();
        move |event: zookeeper_async::WatchedEvent| {
            told.lock().expect("no panic").push(event.keeper_state);
        }
    })
    .await;
    let states = Arc::new(Mutex::new(Vec::new()));
    theirs.add_listener({
        let states = states.clone();
        move |state| states.lock().expect("no panic").push(state)
    });
    take(&theirs, "/theirs").await;
    let before = admin.owner("/theirs").await;

    proxy.refuse();
    proxy.reset_all().await;
    until("both sessions end", SOON, || async {
        match (admin.owner("/ours").await, admin.owner("/theirs").await) {
            (None, None) => Ok(()),
            left => Err(integration_tests::Error::answer(
                "left",
                format!("{left:?}"),
            )),
        }
    })
    .await
    .expect("they end");
    proxy.accept();

    let ended = async { while our_state.changed().await != SessionState::Expired {} };
    timeout(SOON, ended).await.expect("it says so");
    let error = ours.sync("/").await.expect_err("the session has ended");
    assert_eq!(error, zookeeper_client::Error::SessionExpired);

    // A holder goes on as if nothing had been: every call works, in another session, and nobody has said that the old one is over.
    usable(&theirs).await;
    take(&theirs, "/again").await;
    assert_ne!(admin.owner("/again").await, before);
    let states = states.lock().expect("no panic");
    assert!(!states.contains(&ZkState::Closed), "{states:?}");
    let told = told.lock().expect("no panic");
    assert!(!told.contains(&KeeperState::Expired), "{told:?}");
}
