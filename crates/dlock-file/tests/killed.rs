//! Processes that are killed at any instruction, many of them, again and again.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dlock_core::Locks;
use dlock_file::Config;

const FOLDER: &str = "DLOCK_FILE_TEST_FOLDER";
const WORKERS: usize = 6;
const KILLS: usize = 80;

fn client(folder: &Path) -> Locks {
    Locks::new(Config::new(folder).connect().unwrap()).unwrap()
}

fn start_worker(folder: &Path) -> Child {
    start(folder, "worker")
}

/// One of the tests here, in a process of its own.
fn start(folder: &Path, what: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", what, "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Takes the lock again and again, and writes down when it is inside.
#[tokio::test]
#[ignore = "run in processes of their own by the test below"]
async fn worker() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let mut log = File::options()
        .append(true)
        .create(true)
        .open(folder.join("log"))
        .unwrap();
    let locks = client(&folder.join("locks"));
    loop {
        let mutex = locks.mutex("hot").unwrap();
        let guard = mutex.lock().await.unwrap();
        let token = guard.token().unwrap();
        log.write_all(format!("enter {token}\n").as_bytes())
            .unwrap();
        tokio::task::yield_now().await;
        log.write_all(format!("leave {token}\n").as_bytes())
            .unwrap();
        let _ = guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn holders_and_waiters_killed_anywhere_leave_the_lock_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut workers: Vec<Child> = (0..WORKERS).map(|_| start_worker(dir.path())).collect();
    for _ in 0..KILLS {
        // Not an event to wait for: the point is that it hits anywhere.
        tokio::time::sleep(Duration::from_micros(fastrand::u64(1_000..30_000))).await;
        let victim = &mut workers[fastrand::usize(..WORKERS)];
        victim.kill().unwrap();
        victim.wait().unwrap();
        *victim = start_worker(dir.path());
    }
    for worker in &mut workers {
        worker.kill().unwrap();
        worker.wait().unwrap();
    }

    let folder = dir.path().join("locks");
    let start = Instant::now();
    let locks = client(&folder);
    let guard = locks.mutex("hot").unwrap().lock().await.unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    let last = guard.token().unwrap().get();
    let _ = guard.release().await.unwrap();
    locks.close().await.unwrap();

    let entered = check_log(&dir.path().join("log"), last);
    assert!(entered > KILLS, "only {entered} holds: not much of a test");
    drop(client(&folder)); // whoever comes buries the dead
    for part in ["locks", "clients", "wake"] {
        let left: Vec<_> = std::fs::read_dir(folder.join(part))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            // A client that was killed in its first microseconds; removed when it is old.
            .filter(|name| !name.to_string_lossy().ends_with(".draft"))
            .collect();
        assert!(left.is_empty(), "left in {part}: {left:?}");
    }
}

/// Holds a lock until it is killed.
#[tokio::test]
#[ignore = "run in a process of its own by the test below"]
async fn holder() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let locks = client(&folder.join("locks"));
    let _guard = locks.mutex("held").unwrap().lock().await.unwrap();
    File::create(folder.join("ready")).unwrap();
    std::future::pending::<()>().await;
}

/// Its proof of life was removed, so the kernel can no longer be asked: the process itself is (C1, C12).
#[tokio::test]
async fn a_holder_without_its_proof_of_life_holds_until_its_process_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = start(dir.path(), "holder");
    while !dir.path().join("ready").exists() {
        assert!(process.try_wait().unwrap().is_none(), "it ended");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let folder = dir.path().join("locks");
    for proof in std::fs::read_dir(folder.join("clients")).unwrap() {
        std::fs::remove_file(proof.unwrap().path()).unwrap();
    }
    let locks = client(&folder);
    let mutex = locks.mutex("held").unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none(), "a second holder");
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(
        mutex.try_lock().await.unwrap().is_some(),
        "held by the dead"
    );
}

/// Nobody enters while another is inside, unless that one was killed there; and tokens increase (C1, C11).
fn check_log(path: &Path, last: u64) -> usize {
    let text = std::fs::read_to_string(path).unwrap();
    let (mut inside, mut entered) = (0, 0);
    for line in text.lines() {
        let (what, token) = line.split_once(' ').unwrap();
        let token: u64 = token.parse().unwrap();
        if what == "enter" {
            assert!(token > inside, "{token} entered after {inside}");
            inside = token;
            entered += 1;
        } else {
            assert_eq!(token, inside, "{token} was inside together with {inside}");
        }
    }
    assert!(inside < last);
    entered
}
