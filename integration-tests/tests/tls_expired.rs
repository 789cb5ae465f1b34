//! A server whose certificate has expired: a clear error, no loss before the lease is over, and all is well when it has a new one.
#![allow(
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

mod certificates;

use std::time::Duration;

use dlock_core::{ErrorKind, Released, Settings};
use integration_tests::{Folder, Redis, RedisServer, Tls, until};

/// Gives the server this certificate, and ends all connections, so that clients must come again.
async fn present(server: &RedisServer, files: &Folder, name: &str) {
    let path = |end: &str| {
        files
            .file(&format!("ca-{name}.{end}"))
            .display()
            .to_string()
    };
    let set = [
        "CONFIG",
        "SET",
        "tls-cert-file",
        &path("pem"),
        "tls-key-file",
        &path("key"),
    ];
    server.command(&set).await.expect("CONFIG SET");
    for kind in ["normal", "pubsub"] {
        let end = ["CLIENT", "KILL", "TYPE", kind];
        server.command(&end).await.expect("CLIENT KILL");
    }
}

#[tokio::test]
async fn certificate_that_expires_under_a_holder_is_told_and_costs_nothing_within_the_lease() {
    let files = Folder::new("expired").expect("a folder");
    certificates::write(&files);
    let server = RedisServer::start_with(Redis {
        tls: Some(Tls {
            certificate: files.file("ca-server.pem"),
            key: files.file("ca-server.key"),
            authority: files.file("ca.pem"),
        }),
        ..Redis::default()
    });
    let server = server.await.expect("redis");
    let file = |name: &str| files.file(name).display().to_string();
    let url = format!(
        "rediss://localhost:{}?ca={}&cert={}&key={}",
        server.tls_port(),
        file("ca.pem"),
        file("ca-client.pem"),
        file("ca-client.key")
    );
    let locks = dlocks::connect(&url).await.expect("a client");
    let guard = locks
        .mutex("a")
        .expect("a name")
        .lock()
        .await
        .expect("held");

    present(&server, &files, "expired").await;
    let refused = dlocks::connect(&url).await.expect_err("it has expired");
    assert!(
        refused.to_string().to_lowercase().contains("expired"),
        "{refused}"
    );
    let impatient = Settings::new().retry_unreachable_for(Duration::ZERO);
    let impatient = locks.with(impatient).expect("settings");
    let other = impatient.mutex("b").expect("a name").lock().await;
    let error = other.expect_err("no connection");
    assert_ne!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(guard.is_held(), "the lease goes on");

    present(&server, &files, "server").await;
    until(
        "it can be renewed again",
        Duration::from_secs(20),
        || async {
            let renewed = guard.renew_now().await;
            renewed.map_err(|error| integration_tests::Error::answer("renew", error.to_string()))
        },
    )
    .await
    .expect("renewed");
    let released = guard.release().await.expect("an answer");
    assert_eq!(released, Released::Freed);
}
