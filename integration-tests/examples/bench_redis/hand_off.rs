//! From the release in one process to the lock in another.

use std::time::{Duration, Instant};

use dlock_core::{Clock, SystemClock};
use integration_tests::RedisServer;
use redis::{PushInfo, PushKind, Value};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{Pair, ROUNDS, Raw, calls, compare, connection, locks, percentile};

/// Holds of each process in one round.
const EACH: usize = 300;

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
    for (token, got, gave) in alternate(url, EACH).await {
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
    let (mut times, mut requests, mut count) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        let theirs = script_and_message(&server.url()).await;
        let (ours, seen, each) = hand_offs(server).await;
        times.push(Pair { ours, theirs });
        requests.push(each);
        count += seen;
    }
    compare(
        &format!("hand-off to another process, p50 of {count}"),
        &times,
        "µs",
        "<= 1.5",
    );
    requests.sort_by(f64::total_cmp);
    println!(
        "{:<58}{:>12.2}{:>28}",
        "requests per contended hand-off",
        requests[ROUNDS / 2],
        "  = 2"
    );
}

/// One script call, and one message from here to another process: the medians, in microseconds.
async fn script_and_message(url: &str) -> f64 {
    let mut listener = child("listen", url);
    let mut lines = BufReader::new(listener.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("ready"));
    let mut raw = Raw::new(url).await;
    let mut script = Vec::new();
    for _ in 0..400 {
        // The same rhythm as the hand-offs: what sleeps must wake up in both.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let start = Instant::now();
        raw.script().await;
        script.push(start.elapsed().as_nanos() as u64);
        tokio::time::sleep(Duration::from_millis(1)).await;
        raw.publish(SystemClock.now().as_nanos()).await;
    }
    raw.publish(0).await;
    let message: f64 = lines.next_line().await.unwrap().unwrap().parse().unwrap();
    (percentile(&mut script, 0.5) + message) / 1e3
}

/// Hand-offs to and fro between this process and another: their median in microseconds, how many, and the requests for each.
async fn hand_offs(server: &RedisServer) -> (f64, usize, f64) {
    let url = server.url();
    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    let mut other = child("hand-off", &url);
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    let mut seen: Vec<(u64, u64, u64, bool)> = alternate(&url, EACH)
        .await
        .into_iter()
        .map(|(t, got, gave)| (t, got, gave, true))
        .collect();
    while let Some(line) = lines.next_line().await.unwrap() {
        let mut parts = line.split(' ').map(|part| part.parse().unwrap());
        let (t, got, gave) = (
            parts.next().unwrap(),
            parts.next().unwrap(),
            parts.next().unwrap(),
        );
        seen.push((t, got, gave, false));
    }
    let requests = calls(server, "evalsha").await + calls(server, "eval").await;
    let each = requests / seen.len() as f64;
    seen.sort_unstable();
    let mut times: Vec<u64> = seen
        .windows(2)
        .filter(|pair| pair[0].3 != pair[1].3)
        .map(|pair| pair[1].1.saturating_sub(pair[0].2))
        .collect();
    (percentile(&mut times, 0.5) / 1e3, times.len(), each)
}
