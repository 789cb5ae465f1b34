//! Three processes with several tasks each want one lock, by turns in short rounds: with one client in each process, whose tasks pass the
//! lock on; the same with every turn asked of the store; and with a client for each task.
//!
//! The benchmark starts itself with the word `worker` for each process.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlocks::{Locks, Settings};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

pub(crate) const PROCESSES: usize = 3;
pub(crate) const TASKS: usize = 8;
const ROUND: Duration = Duration::from_secs(3);
/// Alternating rounds of each way.
pub(crate) const ROUNDS: usize = 5;

/// How the tasks of a process are clients of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// One client, which passes the lock on between its tasks.
    PassedOn,
    /// One client, and every turn is asked of the store.
    Asked,
    /// A client for each task.
    Each,
}

const WAYS: [(Way, &str, &str); 3] = [
    (Way::PassedOn, "passed-on", "a client for each process"),
    (
        Way::Asked,
        "asked",
        "the same, every turn asked of the store",
    ),
    (Way::Each, "each", "a client for each task"),
];

/// Does a worker's part and returns true, if this process was started as one.
pub(crate) async fn is_worker() -> bool {
    let words: Vec<String> = std::env::args().collect();
    let [_, worker, url, way, tasks] = words.as_slice() else {
        return false;
    };
    if worker != "worker" {
        return false;
    }
    let way = WAYS.iter().find(|known| known.1 == way).unwrap().0;
    work(url, way, tasks.parse().unwrap()).await;
    true
}

async fn client(url: &str, way: Way) -> Locks {
    let settings = match way {
        Way::Asked => Settings::new().local_turns(1),
        _ => Settings::new(),
    };
    let backend = dlocks::open(url).await.unwrap();
    Locks::builder(backend).settings(settings).build().unwrap()
}

/// Takes and frees the lock with all tasks from the first line of input to the next, and prints how often.
async fn work(url: &str, way: Way, tasks: usize) {
    let shared = client(url, way).await;
    let mut clients = Vec::new();
    for _ in 0..tasks {
        clients.push(match way {
            Way::Each => client(url, way).await,
            _ => shared.clone(),
        });
    }
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    println!("ready");
    input.next_line().await.unwrap();
    let (over, count) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|locks| {
            let (over, count) = (over.clone(), count.clone());
            tokio::spawn(async move {
                let mutex = locks.mutex("processes").unwrap();
                while !over.load(Ordering::Relaxed) {
                    let guard = mutex.lock().await.unwrap();
                    if !over.load(Ordering::Relaxed) {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    let _ = guard.release().await.unwrap();
                }
            })
        })
        .collect();
    input.next_line().await.unwrap();
    over.store(true, Ordering::Relaxed);
    println!("{}", count.load(Ordering::Relaxed));
    for task in tasks {
        task.await.unwrap();
    }
}

struct Worker {
    child: Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Worker {
    fn start(url: &str, way: &str, tasks: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["worker", url, way, &tasks.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn say(&mut self) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(b"\n").await.unwrap();
    }

    async fn hear(&mut self) -> String {
        self.lines.next_line().await.unwrap().unwrap()
    }
}

/// One round: acquisitions per second of all, and the smallest share of a process in parts of an equal one.
pub(crate) async fn round(url: &str, way: &str, tasks: usize, time: Duration) -> (f64, f64) {
    let workers = (0..PROCESSES).map(|_| Worker::start(url, way, tasks));
    let mut workers: Vec<Worker> = workers.collect();
    for worker in &mut workers {
        assert_eq!(worker.hear().await, "ready");
    }
    let start = std::time::Instant::now();
    for worker in &mut workers {
        worker.say().await;
    }
    tokio::time::sleep(time).await;
    let time = start.elapsed().as_secs_f64();
    let mut counts = Vec::new();
    for worker in &mut workers {
        worker.say().await;
    }
    for worker in &mut workers {
        counts.push(worker.hear().await.parse::<f64>().unwrap());
    }
    for mut worker in workers {
        worker.child.wait().await.unwrap();
    }
    let all: f64 = counts.iter().sum();
    let least = counts.iter().copied().fold(f64::INFINITY, f64::min);
    (all / time, least * PROCESSES as f64 / all)
}

/// Runs all ways by turns with `own`, the store's own recipe, and prints medians and spreads of acquisitions per second.
pub(crate) async fn compare<F: Future<Output = f64>>(
    url: &str,
    own_name: &str,
    own: impl Fn(Duration) -> F,
) {
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); WAYS.len() + 1];
    let mut shares: Vec<Vec<f64>> = vec![Vec::new(); WAYS.len()];
    for _ in 0..ROUNDS {
        for (index, (_, word, _)) in WAYS.iter().enumerate() {
            let (rate, share) = round(url, word, TASKS, ROUND).await;
            rates[index].push(rate);
            shares[index].push(share);
        }
        rates[WAYS.len()].push(own(ROUND).await);
    }
    println!(
        "\n{PROCESSES} processes x {TASKS} tasks, one lock; acquisitions per second, median and spread of {ROUNDS} alternating rounds"
    );
    let names = WAYS.iter().map(|way| way.2).chain([own_name]);
    for (index, (name, rates)) in names.zip(&mut rates).enumerate() {
        rates.sort_by(f64::total_cmp);
        let middle = rates[rates.len() / 2];
        let (low, high) = (rates[0], rates[rates.len() - 1]);
        let share = shares.get(index).map_or(String::new(), |shares| {
            let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
            format!(", least share of a process {:.0} %", least * 100.0)
        });
        println!("{name:<52}{middle:>10.0}   {low:.0} to {high:.0}{share}");
    }
}
