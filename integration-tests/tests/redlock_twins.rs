//! One server under two names: it never counts twice, whenever that shows.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;
mod redlock_support;

use std::net::SocketAddr;
use std::sync::Arc;

use dlock_core::backend::{Backend, Outcome, Renewal};
use dlock_core::{ErrorKind, Name};
use integration_tests::{FaultProxy, Redis, until};
use redis_support::SOON;
use redlock_support::*;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[tokio::test]
async fn one_server_under_two_names_is_refused() {
    let three = start(3).await.expect("servers");
    let port = three.servers[0].port();
    let url = format!(
        "redlock://127.0.0.1:{port},localhost:{port},127.0.0.1:{}",
        three.servers[1].port()
    );
    let error = dlocks::connect(&url)
        .await
        .expect_err("the same server twice");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("are one server"), "{error}");
}

/// The second name was not reachable when the client connected: nobody could compare then.
#[tokio::test]
async fn one_server_under_two_names_never_counts_twice() {
    for parameters in [PERSISTENT, "?longest_lease=1s"] {
        let two = start(2).await.expect("servers");
        let alias = FaultProxy::start(two.servers[0].addr())
            .await
            .expect("a proxy");
        alias.refuse();
        let hosts = format!("redlock://{},", alias.addr());
        let url = two.url(parameters).replace("redlock://", &hosts);
        let redlock = backend(&url).await;
        let wish = request("a").with_lease(seconds(1));
        let lease = integration_tests::until("two real servers of three names", SOON, || async {
            match redlock.try_acquire(&wish).await {
                Ok(Outcome::Held(lease)) => Ok(Arc::new(lease)),
                other => Err(integration_tests::Error::answer(
                    "take",
                    format!("{other:?}"),
                )),
            }
        });
        let lease = lease.await.expect("a quorum");
        // Now it is reachable, and the only other server is not.
        alias.accept();
        two.servers[1].kill();
        let [renewed] = redlock
            .renew(std::slice::from_ref(&lease))
            .await
            .try_into()
            .expect("one");
        let Renewal::Failed(error) = renewed else {
            panic!("one server is no quorum: {renewed:?}");
        };
        assert!(error.to_string().contains("the same server"), "{error}");
        let taken = redlock
            .try_acquire(&request("b").with_lease(seconds(1)))
            .await;
        let error = taken.expect_err("one server is no quorum");
        assert!(error.to_string().contains("the same server"), "{error}");
        let name = Name::new("a").expect("a name");
        redlock
            .inspect(&name)
            .await
            .expect_err("one server is no quorum");
        redlock
            .abandon(&wish)
            .await
            .expect_err("one server is no quorum");
        redlock
            .downgrade(&lease)
            .await
            .expect_err("one server is no quorum");
    }
}

/// Another name of a server: whoever comes is kept waiting until `open`, and only then does the server learn of it.
async fn late_door(server: SocketAddr) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("its address");
    let (door, open) = watch::channel(false);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut open = open.clone();
            tokio::spawn(async move {
                open.wait_for(|open| *open).await.ok();
                if let Ok(mut server) = TcpStream::connect(server).await {
                    copy_bidirectional(&mut client, &mut server).await.ok();
                }
            });
        }
    });
    (addr, door)
}

/// The server restarts, with its data, between its two votes: by its run id it is another one then.
#[tokio::test]
async fn one_server_does_not_count_twice_by_a_restart_between_its_votes() {
    let durable = |_| Redis {
        durable: true,
        ..Redis::default()
    };
    let two = start_with(2, durable).await.expect("servers");
    let (alias, door) = late_door(two.servers[0].addr()).await;
    let url = two
        .url("?persistent=true&node_timeout=4s&connect_timeout=4s")
        .replace("redlock://", &format!("redlock://{alias},"));
    let redlock = backend(&url).await;
    two.servers[1].kill();
    let asking = tokio::spawn(async move { redlock.try_acquire(&request("a")).await });
    until("the first vote", SOON, || async {
        let held = two.servers[0]
            .command(&["GET", "redlock:{a}"])
            .await?
            .text();
        let held = held.filter(|value| value.len() > 32);
        held.map(drop)
            .ok_or_else(|| integration_tests::Error::answer("GET", "nobody"))
    })
    .await
    .expect("a vote");
    two.servers[0].restart().await.expect("a restart");
    door.send(true).expect("somebody waits");
    let taken = asking.await.expect("a task");
    let error = taken.expect_err("one server of three names is no quorum");
    assert_ne!(error.kind(), ErrorKind::Invalid, "{error}");
}
