//! From the release in one process to the lock in another.

use std::time::{Duration, Instant};

use dlock_core::{Clock, SystemClock};
use integration_tests::RedisServer;
use redis::{PushInfo, PushKind, Value};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{Raw, calls, connection, locks, percentile, report};

/// Alternates with the other process on one lock, and tells when it got and gave it.
async fn alternate(url: &str, rounds: usize) -> Vec<(u64, u64, u64)> {
    let locks = locks(url).await;
    let mutex = locks.mutex("bench:hand-off").unwrap();
    let mut seen = Vec::new();
    for _ in 0..rounds {
        let guard = mutex.lock().await.unwrap();
        let got = SystemClock.now().as_nanos();
        let token = guard.token().unwrap().get();
        // Long enough for the other to stand in the queue.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let gave = SystemClock.now().as_nanos();
        let _ = guard.release().await.unwrap();
        seen.push((token, got, gave));
    }
    seen
}

pub(crate) async fn hand_off_child(url: &str) {
    for (token, got, gave) in alternate(url, 1000).await {
        println!("{token} {got} {gave}");
    }
}

pub(crate) async fn listen_child(url: &str) {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let push = move |info: PushInfo| {
        if info.kind == PushKind::Message
            && let Some(Value::BulkString(sent)) = info.data.last()
        {
            let sent: u64 = String::from_utf8_lossy(sent).parse().unwrap();
            let _ = tell.send((sent, SystemClock.now().as_nanos()));
        }
    };
    let mut connection = connection(url, Some(Box::new(push))).await;
    connection.subscribe("bench").await.unwrap();
    println!("ready");
    let mut times = Vec::new();
    while let Some((sent, heard)) = told.recv().await {
        if sent == 0 {
            break;
        }
        times.push(heard.saturating_sub(sent));
    }
    println!("{}", percentile(&mut times, 0.5));
}

fn child(role: &str, url: &str) -> tokio::process::Child {
    tokio::process::Command::new(std::env::current_exe().unwrap())
        .args([role, url])
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Release in this process to acquired in another, against one script call and one published message.
pub(crate) async fn hand_off(server: &RedisServer) {
    let url = server.url();
    let mut listener = child("listen", &url);
    let mut lines = BufReader::new(listener.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("ready"));
    let mut raw = Raw::new(&url).await;
    let mut script = Vec::new();
    for _ in 0..1500 {
        // The same rhythm as the hand-offs: what sleeps must wake up in both.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let start = Instant::now();
        raw.script().await;
        script.push(start.elapsed().as_nanos() as u64);
        tokio::time::sleep(Duration::from_millis(1)).await;
        let now = SystemClock.now().as_nanos();
        let _: i64 = redis::cmd("PUBLISH")
            .arg("bench")
            .arg(now)
            .query_async(&mut raw.connection)
            .await
            .unwrap();
    }
    let _: i64 = redis::cmd("PUBLISH")
        .arg("bench")
        .arg(0)
        .query_async(&mut raw.connection)
        .await
        .unwrap();
    let message: f64 = lines.next_line().await.unwrap().unwrap().parse().unwrap();
    let script = percentile(&mut script, 0.5);

    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    let mut other = child("hand-off", &url);
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    let mut seen: Vec<(u64, u64, u64, bool)> = alternate(&url, 1000)
        .await
        .into_iter()
        .map(|(t, got, gave)| (t, got, gave, true))
        .collect();
    let evals = calls(server, "evalsha").await + calls(server, "eval").await;
    while let Some(line) = lines.next_line().await.unwrap() {
        let mut parts = line.split(' ').map(|part| part.parse().unwrap());
        let (t, got, gave) = (
            parts.next().unwrap(),
            parts.next().unwrap(),
            parts.next().unwrap(),
        );
        seen.push((t, got, gave, false));
    }
    let holds = seen.len() as f64;
    let evals = evals.max(calls(server, "evalsha").await + calls(server, "eval").await);
    seen.sort_unstable();
    let mut times: Vec<u64> = seen
        .windows(2)
        .filter(|pair| pair[0].3 != pair[1].3)
        .map(|pair| pair[1].1.saturating_sub(pair[0].2))
        .collect();
    let count = times.len();
    let (ours, raw) = (percentile(&mut times, 0.5) / 1e3, (script + message) / 1e3);
    report(
        &format!("hand-off to another process, p50 of {count}"),
        ours,
        raw,
        "µs",
        ours / raw,
        "<= 1.5",
    );
    println!(
        "{:<58}{:>12.2}{:>28}",
        "requests per contended hand-off",
        evals / holds,
        "  <= 3"
    );
}
