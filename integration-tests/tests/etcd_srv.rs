//! The members of a cluster by their DNS records.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod certificates;
mod etcd_support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dlock_core::backend::Backend;
use dlock_core::{ErrorKind, Locks, Released};
use dlock_etcd::Config;
use etcd_support::*;
use integration_tests::{EtcdServer, Folder};
use tokio::net::UdpSocket;

/// A DNS server that knows these SRV records (name, target, port), and that every other name does not exist.
async fn dns(records: Vec<(&'static str, &'static str, u16)>) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    let addr = socket.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut buffer = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let answer = answer(&buffer[..length], &records);
            let _ = socket.send_to(&answer, from).await;
        }
    });
    addr
}

/// The answer to one question, as RFC 1035 and 2782 write it.
fn answer(question: &[u8], records: &[(&str, &str, u16)]) -> Vec<u8> {
    const HEADER: usize = 12;
    let mut at = HEADER;
    let mut name = String::new();
    while question[at] != 0 {
        let length = usize::from(question[at]);
        name += &String::from_utf8_lossy(&question[at + 1..=at + length]).to_lowercase();
        name.push('.');
        at += 1 + length;
    }
    // The end of the name, the type and the class.
    let asked = &question[HEADER..at + 5];
    let found: Vec<_> = records.iter().filter(|record| record.0 == name).collect();
    // An answer; the name does not exist (3), or all is well (0).
    let code = if found.is_empty() { 3 } else { 0 };
    let mut out = question[..2].to_vec();
    out.extend([
        0x84,
        code,
        0,
        1,
        0,
        u8::try_from(found.len()).expect("few"),
        0,
        0,
        0,
        0,
    ]);
    out.extend(asked);
    for (_, target, port) in found {
        let mut host = Vec::new();
        for label in target.split('.') {
            host.push(u8::try_from(label.len()).expect("short"));
            host.extend(label.as_bytes());
        }
        host.push(0);
        // The name again, an SRV record of the internet, for a minute.
        out.extend([0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60]);
        out.extend(u16::try_from(6 + host.len()).expect("short").to_be_bytes());
        // Priority, weight.
        out.extend([0, 0, 0, 10]);
        out.extend(port.to_be_bytes());
        out.extend(host);
    }
    out
}

async fn takes_a_lock(config: Config) -> String {
    let backend = config.connect().await.expect("a connection");
    let identity = backend.identity().to_owned();
    let locks = Locks::new(backend).expect("defaults");
    let guard = lock(&locks, "a").await;
    let released = guard.release().await.expect("the store answers");
    assert_eq!(released, Released::Freed);
    identity
}

/// All that DNS names are members; one of them may be down.
#[tokio::test]
async fn members_are_found_in_dns() {
    let server = EtcdServer::start().await.expect("a server");
    let port = server.addr().port();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let down = nobody.local_addr().expect("an address").port();
    drop(nobody);
    let dns = dns(vec![
        ("_etcd-client._tcp.shop.test.", "localhost", port),
        ("_etcd-client-blue._tcp.shop.test.", "localhost", down),
        ("_etcd-client-blue._tcp.shop.test.", "127.0.0.1", port),
    ])
    .await;
    let url = format!("etcd+srv://shop.test?dns={dns}");
    let identity = takes_a_lock(Config::from_url(&url).expect("a good URL")).await;
    // A client that names the members knows that it is the same store.
    assert_eq!(identity, format!("etcd://localhost:{port}/dlock"));
    let blue = Config::srv("shop.test").srv_name("blue").dns(dns);
    let identity = takes_a_lock(blue).await;
    assert!(
        identity.contains(&format!("localhost:{down}")),
        "{identity}"
    );
    assert!(
        identity.contains(&format!("127.0.0.1:{port}")),
        "{identity}"
    );
}

/// No records, and nobody who could tell: each is said, within the time.
#[tokio::test]
async fn members_that_dns_does_not_know_are_told() {
    let connect = async |dns: SocketAddr| {
        let url = format!("etcd+srv://shop.test?dns={dns}&connect_timeout=1s");
        let started = Instant::now();
        let error = Config::from_url(&url)
            .expect("a good URL")
            .connect()
            .await
            .expect_err("no members");
        assert!(started.elapsed() < Duration::from_secs(5), "{error}");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        let text = error.to_string();
        assert!(text.contains("_etcd-client._tcp.shop.test."), "{text}");
        text
    };
    let other = dns(vec![("_etcd-client._tcp.other.test.", "localhost", 1)]).await;
    let text = connect(other).await;
    assert!(text.contains("no such records"), "{text}");
    let silent = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    connect(silent.local_addr().expect("an address")).await;
}

/// With TLS the certificates must have the domain's name: who forges records reaches nobody.
#[tokio::test]
async fn certificates_have_the_name_of_the_domain() {
    let folder = Folder::new("etcd-srv").expect("a folder");
    certificates::write(&folder);
    let file = |name: &str| folder.file(name).display().to_string();
    let (_server, port) = secured(&folder);
    let dns = dns(vec![
        ("_etcd-client-ssl._tcp.shop.test.", "127.0.0.1", port),
        ("_etcd-client-ssl._tcp.other.test.", "127.0.0.1", port),
    ])
    .await;
    let config = |domain_and_more: &str| {
        let (domain, more) = domain_and_more
            .split_once('&')
            .unwrap_or((domain_and_more, ""));
        let url = format!(
            "etcds+srv://{domain}?dns={dns}&connect_timeout=2s&{more}&ca={}&cert={}&key={}",
            file("ca.pem"),
            file("ca-client.pem"),
            file("ca-client.key")
        );
        Config::from_url(&url).expect("a good URL")
    };
    soon(async {
        // It takes a moment to start.
        while let Err(error) = config("shop.test").connect().await {
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    takes_a_lock(config("shop.test")).await;
    let error = config("other.test").connect().await.expect_err("forged");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
    takes_a_lock(config("other.test&server_name=localhost")).await;
}
