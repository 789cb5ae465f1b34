//! Each fault of the proxy, in front of a small server that echoes lines.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod echo;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use dlock_conformance::proxy::{Bytes, Direction, FaultProxy};
use echo::{Client, Echo, Seen};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn echo_and_proxy() -> (Echo, FaultProxy) {
    let echo = Echo::start().await;
    let proxy = FaultProxy::start(echo.addr).await.unwrap();
    (echo, proxy)
}

/// A client that has spoken with the server once, so that its connection is surely there.
async fn connected(echo: &mut Echo, proxy: &FaultProxy) -> Client {
    let mut client = Client::connect(proxy).await;
    assert_eq!(client.ask("hello").await.unwrap(), "hello");
    assert_eq!(echo.next().await, Seen::Connected);
    assert_eq!(echo.next().await, Seen::Line("hello".into()));
    client
}

#[tokio::test]
async fn without_a_fault_all_is_passed_on_and_counted() {
    let (mut echo, proxy) = echo_and_proxy().await;
    assert_eq!(proxy.connections(), 0);
    let mut client = connected(&mut echo, &proxy).await;
    let mut other = connected(&mut echo, &proxy).await;
    assert_eq!(proxy.connections(), 2);
    assert_eq!(client.ask("abc").await.unwrap(), "abc");
    assert_eq!(other.ask("de").await.unwrap(), "de");
    assert_eq!(
        proxy.bytes(),
        Bytes {
            to_server: 19,
            to_client: 19
        }
    );

    drop((client, other));
    proxy.connections_are(0).await;
}

#[tokio::test]
async fn the_end_of_a_connection_is_passed_on() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let client = connected(&mut echo, &proxy).await;
    drop(client);
    assert_eq!(echo.next().await, Seen::Ended);
}

#[tokio::test]
async fn a_large_transfer_arrives_whole() {
    let (_echo, proxy) = echo_and_proxy().await;
    let mut client = Client::connect(&proxy).await;
    let long = "x".repeat(3_000_000);
    let (mut from, mut to) = tokio::io::split(client.0.get_mut());
    let line = format!("{long}\n");
    let mut back = vec![0; line.len()];
    let (sent, received) = tokio::join!(to.write_all(line.as_bytes()), from.read_exact(&mut back));
    sent.unwrap();
    received.unwrap();
    assert!(back == line.as_bytes());
}

#[tokio::test]
async fn a_delay_counts_for_each_direction_and_not_for_each_byte() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connected(&mut echo, &proxy).await;
    let delay = Duration::from_millis(60);
    proxy.delay(Direction::ToServer, delay);
    let started = Instant::now();
    client.ask("one way").await.unwrap();
    assert!(started.elapsed() >= delay);

    proxy.delay(Direction::Both, delay);
    let started = Instant::now();
    for word in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        client.send(word).await;
    }
    for word in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        assert_eq!(client.receive().await.unwrap(), word);
    }
    let took = started.elapsed();
    assert!(took >= 2 * delay, "{took:?}");
    assert!(
        took < 8 * delay,
        "eight words in flight at once share the delay: {took:?}"
    );
}

#[tokio::test]
async fn a_black_hole_to_the_client_hides_the_answer_and_heal_resets() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connected(&mut echo, &proxy).await;
    proxy.black_hole(Direction::ToClient);
    client.send("carried out").await;
    assert_eq!(echo.next().await, Seen::Line("carried out".into()));
    client.hears_nothing().await;
    assert_eq!(proxy.connections(), 1, "the connection stays open");

    proxy.heal().await;
    client.is_reset().await;
    assert_eq!(echo.next().await, Seen::Reset);
    connected(&mut echo, &proxy).await;
}

#[tokio::test]
async fn a_black_hole_to_the_server_hides_requests_and_the_end_of_the_connection() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connected(&mut echo, &proxy).await;
    proxy.black_hole(Direction::ToServer);
    client.send("never arrives").await;
    client.hears_nothing().await;
    drop(client);
    tokio::time::sleep(Duration::from_millis(50)).await;
    echo.saw_nothing_more();
    assert_eq!(
        proxy.connections(),
        1,
        "the server must not learn that the client has gone"
    );

    proxy.heal().await;
    assert_eq!(
        echo.next().await,
        Seen::Reset,
        "held bytes are dropped, never delivered"
    );
    connected(&mut echo, &proxy).await;
}

#[tokio::test]
async fn a_new_connection_into_a_black_hole_is_accepted_and_never_reaches_the_server() {
    let (mut echo, proxy) = echo_and_proxy().await;
    proxy.black_hole(Direction::Both);
    let mut client = Client::connect(&proxy).await;
    client.send("anybody there?").await;
    proxy.connections_are(1).await;
    client.hears_nothing().await;
    echo.saw_nothing_more();

    proxy.heal().await;
    client.is_reset().await;
    connected(&mut echo, &proxy).await;
}

#[tokio::test]
async fn paused_bytes_are_delivered_late_and_in_order() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connected(&mut echo, &proxy).await;
    proxy.pause(Direction::ToServer);
    client.send("first").await;
    client.send("second").await;
    client.hears_nothing().await;
    echo.saw_nothing_more();

    proxy.resume();
    assert_eq!(echo.next().await, Seen::Line("first".into()));
    assert_eq!(echo.next().await, Seen::Line("second".into()));
    assert_eq!(client.receive().await.unwrap(), "first");
    assert_eq!(client.receive().await.unwrap(), "second");
}

#[tokio::test]
async fn a_paused_request_is_applied_late_although_its_client_has_gone() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connected(&mut echo, &proxy).await;
    proxy.pause(Direction::ToServer);
    client.send("late").await;
    drop(client);
    tokio::time::sleep(Duration::from_millis(50)).await;
    echo.saw_nothing_more();

    proxy.heal().await;
    assert_eq!(echo.next().await, Seen::Line("late".into()));
}

#[tokio::test]
async fn a_paused_answer_comes_late() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connected(&mut echo, &proxy).await;
    proxy.pause(Direction::ToClient);
    client.send("carried out").await;
    assert_eq!(echo.next().await, Seen::Line("carried out".into()));
    client.hears_nothing().await;
    proxy.resume();
    assert_eq!(client.receive().await.unwrap(), "carried out");
}

#[tokio::test]
async fn reset_all_resets_both_ends_of_every_connection_and_new_ones_work() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(connected(&mut echo, &proxy).await);
    }
    proxy.reset_all().await;
    assert_eq!(proxy.connections(), 0);
    for client in &mut clients {
        client.is_reset().await;
        assert_eq!(echo.next().await, Seen::Reset);
    }
    connected(&mut echo, &proxy).await;
}

#[tokio::test]
async fn a_reset_by_the_client_reaches_the_server_as_a_reset() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let client = connected(&mut echo, &proxy).await;
    client.0.get_ref().set_zero_linger().unwrap();
    drop(client);
    assert_eq!(echo.next().await, Seen::Reset);
}

#[tokio::test]
async fn refused_connections_are_reset_and_old_ones_go_on() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut old = connected(&mut echo, &proxy).await;
    proxy.refuse();
    Client::connect(&proxy).await.is_reset().await;
    assert_eq!(old.ask("still here").await.unwrap(), "still here");

    proxy.accept();
    assert_eq!(echo.next().await, Seen::Line("still here".into()));
    connected(&mut echo, &proxy).await;
}

#[tokio::test]
async fn the_nth_reply_is_lost_after_the_server_has_answered() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connected(&mut echo, &proxy).await;
    proxy.drop_reply(2);
    assert_eq!(client.ask("first").await.unwrap(), "first");
    client.send("second").await;
    client.is_reset().await;
    proxy.reply_dropped().await;
    assert_eq!(echo.next().await, Seen::Line("first".into()));
    assert_eq!(
        echo.next().await,
        Seen::Line("second".into()),
        "the request was carried out"
    );
    assert_eq!(echo.next().await, Seen::Reset);

    let mut next = connected(&mut echo, &proxy).await;
    assert_eq!(
        next.ask("third").await.unwrap(),
        "third",
        "only one reply is lost"
    );
}

#[tokio::test]
async fn replies_before_the_lost_one_still_arrive() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connected(&mut echo, &proxy).await;
    proxy.delay(Direction::ToClient, Duration::from_millis(50));
    proxy.drop_reply(2);
    for word in ["kept", "lost"] {
        client.send(word).await;
        assert_eq!(echo.next().await, Seen::Line(word.into()));
    }
    assert_eq!(client.receive().await.unwrap(), "kept");
    client.is_reset().await;
}

#[tokio::test]
async fn the_reply_to_a_certain_request_is_lost_and_other_connections_go_on() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connected(&mut echo, &proxy).await;
    let mut other = connected(&mut echo, &proxy).await;
    proxy.drop_reply_to("take lock", Duration::ZERO);
    assert_eq!(client.ask("ping").await.unwrap(), "ping");
    assert_eq!(echo.next().await, Seen::Line("ping".into()));

    client.send("please take lock 7").await;
    assert_eq!(echo.next().await, Seen::Line("please take lock 7".into()));
    proxy.reply_dropped().await;
    client.is_reset().await;
    assert_eq!(echo.next().await, Seen::Reset);
    assert_eq!(other.ask("take lock 8").await.unwrap(), "take lock 8");
}

#[tokio::test]
async fn all_that_the_server_sends_while_a_lost_reply_settles_is_swallowed() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connected(&mut echo, &proxy).await;
    proxy.drop_reply_to("one", Duration::from_millis(100));
    let before = proxy.bytes();
    for word in ["one", "two"] {
        client.send(word).await;
        assert_eq!(echo.next().await, Seen::Line(word.into()));
    }
    client.is_reset().await;
    assert_eq!(proxy.bytes().to_client, before.to_client);
}

#[tokio::test]
async fn a_server_that_is_down_resets_the_client() {
    let gone = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let proxy = FaultProxy::start(gone).await.unwrap();
    Client::connect(&proxy).await.is_reset().await;
}

#[tokio::test]
async fn a_dropped_proxy_closes_its_connections() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connected(&mut echo, &proxy).await;
    let addr = proxy.addr();
    drop(proxy);
    assert_eq!(client.0.read(&mut [0; 1]).await.unwrap(), 0);
    assert_eq!(echo.next().await, Seen::Ended);
    assert_eq!(
        TcpStream::connect(addr).await.unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
}

#[tokio::test]
async fn a_connection_ends_in_the_midst_of_a_request_or_a_reply() {
    for way in [Direction::ToServer, Direction::ToClient] {
        let (mut echo, proxy) = echo_and_proxy().await;
        let mut client = connected(&mut echo, &proxy).await;
        let before = proxy.bytes();
        proxy.reset_after(way, 2);
        assert_eq!(proxy.resets_left(), 1);
        assert!(client.ask("abcdef").await.is_err(), "{way:?}");
        assert_eq!(proxy.resets_left(), 0);
        let after = proxy.bytes();
        let passed = (
            after.to_server - before.to_server,
            after.to_client - before.to_client,
        );
        match way {
            Direction::ToServer => assert_eq!(passed, (2, 0)),
            _ => assert_eq!(passed, (7, 2)),
        }
        // One connection alone: others work.
        let mut other = Client::connect(&proxy).await;
        assert_eq!(other.ask("again").await.unwrap(), "again");
    }
}

#[tokio::test]
async fn what_came_after_the_silence_outlives_its_end() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut silent = connected(&mut echo, &proxy).await;
    proxy.half_open();
    let mut later = Client::connect(&proxy).await;
    assert_eq!(later.ask("before").await.unwrap(), "before");
    proxy.heal().await;
    assert_eq!(later.ask("after").await.unwrap(), "after");
    let mut byte = [0];
    assert!(silent.0.get_mut().read(&mut byte).await.is_err());
}
