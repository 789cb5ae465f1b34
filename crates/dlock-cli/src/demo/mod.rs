//! `dlock demo`: the flash sale. Many workers in several processes buy from one stock, without a lock and with one.

mod picture;
mod report;
mod stock;
#[cfg(feature = "etcd")]
mod stock_etcd;
mod stock_file;
#[cfg(feature = "mysql")]
mod stock_mysql;
#[cfg(feature = "postgres")]
mod stock_postgres;
#[cfg(feature = "redis")]
mod stock_redis;
#[cfg(feature = "zk")]
mod stock_zk;
pub(crate) mod worker;

use std::io::IsTerminal;
use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::connect::{Store, leave, shown};
use crate::demo::report::{Report, Tally};
use crate::demo::stock::Stock;
use crate::exit::{ExitResult, Failure, UNAVAILABLE, UNSAFE};
use crate::show;

/// Handed to the workers in their environment: a URL may hold a password, and everybody can read a command line.
const WORKER_URL: &str = "DLOCK_DEMO_URL";

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
First without a lock: workers read the stock, check it and write it back, and what one of them writes hides what others did. \
Then the same with a lock. The stock lives in the store where it can, else in a file, without any other protection.

Examples:
  dlock demo
  dlock demo --backend redis://cache:6379 --processes 8
  dlock demo --backend etcd://etcd-1,etcd-2,etcd-3 --stock 500 --loops 10
  dlock demo --backend memory:                  a lock of one process does not help several
  dlock demo --json                             only with the lock; one object
  dlock demo --json --no-lock")]
pub(crate) struct DemoArgs {
    /// How many items there are
    #[arg(long, default_value_t = 5000)]
    stock: u64,
    /// How many workers buy at the same time, over all processes
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    workers: u32,
    /// How many items each worker buys, one after the other
    #[arg(long, default_value_t = 100)]
    loops: u32,
    /// How many processes the workers are spread over
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    processes: u32,
    /// Only without a lock
    #[arg(long)]
    no_lock: bool,
}

pub(crate) async fn run(store: &Store, args: &DemoArgs) -> ExitResult {
    if args.processes > args.workers {
        return Err(Failure::usage(format!(
            "--processes {} is more than --workers {}: give each process a worker",
            args.processes, args.workers
        )));
    }
    let sale = Sale::prepare(store, args).await?;
    if store.json {
        let report = sale.run(!args.no_lock).await?;
        show::print(&report.as_json())?;
        return Ok(report.verdict());
    }
    show::print(&format!(
        "Flash sale: {} items, {} workers in {} processes, {} purchases each. Locks: {}\n",
        args.stock,
        args.workers,
        args.processes,
        args.loops,
        shown(&sale.url)
    ))?;
    let without = sale.run(false).await?;
    show::print(&without.sentence())?;
    if args.no_lock {
        show_runs(&[&without])?;
        return Ok(0);
    }
    let with = sale.run(true).await?;
    show::print(&with.sentence())?;
    show_runs(&[&without, &with])?;
    if !store.is_named() {
        show::print(
            &"\nThe same over several hosts: dlock demo --backend redis://HOST, etcd://HOST or zk://HOST (see dlock demo --help)",
        )?;
    }
    Ok(with.verdict())
}

fn show_runs(runs: &[&Report]) -> Result<(), Failure> {
    show::print(&format!("\n{}\n", picture::draw(runs)))?;
    show::print_table(&report::table(runs))
}

/// What both runs have in common.
struct Sale {
    args: DemoArgs,
    url: String,
    /// Where the stock lives, as workers are told it.
    place: String,
    stock: Box<dyn Stock>,
    lock: String,
    /// Holds the stock when it is a file.
    _folder: tempfile::TempDir,
}

impl Sale {
    async fn prepare(store: &Store, args: &DemoArgs) -> Result<Self, Failure> {
        let url = store.url()?;
        // A wrong URL is told once, not by every worker.
        let locks = store.connect(dlocks::Settings::new()).await?;
        leave(&locks).await;
        let folder = tempfile::Builder::new()
            .prefix("dlock-demo-")
            .tempdir()
            .map_err(|error| {
                Failure::new(
                    UNAVAILABLE,
                    format!("cannot make a folder for the stock: {error}"),
                )
            })?;
        let id = format!("dlock-demo-{:08x}", fastrand::u32(..));
        let place = stock::place(&url, &id, folder.path()).await;
        Ok(Self {
            args: args.clone(),
            stock: stock::open(&url, &place).await?,
            url,
            place,
            lock: id,
            _folder: folder,
        })
    }

    async fn run(&self, with_lock: bool) -> Result<Report, Failure> {
        self.stock.fill(self.args.stock).await?;
        let bar = self.bar(with_lock);
        let mut workers = Vec::new();
        for process in 0..self.args.processes {
            workers.push(self.start(process, with_lock)?);
        }
        // All are ready before the first one buys, so that the time is that of the sale.
        let mut ready = Vec::new();
        for mut worker in workers {
            worker.expect_ready().await?;
            ready.push(worker);
        }
        let started = Instant::now();
        let mut running = JoinSet::new();
        for worker in ready {
            running.spawn(worker.work(bar.clone()));
        }
        let mut tally = Tally::new()?;
        while let Some(done) = running.join_next().await {
            tally.add(&done.map_err(|error| lost_worker(&error))??)?;
        }
        let time = started.elapsed();
        bar.finish_and_clear();
        let remaining = self.stock.read().await?;
        self.stock.remove().await?;
        Ok(Report {
            backend: shown(&self.url),
            args: self.args.clone(),
            with_lock,
            remaining,
            time,
            tally,
        })
    }

    fn bar(&self, with_lock: bool) -> ProgressBar {
        if !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let all = u64::from(self.args.workers) * u64::from(self.args.loops);
        let bar = ProgressBar::new(all);
        let style = ProgressStyle::with_template("{msg:16} {bar:40} {pos}/{len} {per_sec}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_message(if with_lock {
            "with a lock"
        } else {
            "without a lock"
        });
        bar
    }

    fn start(&self, process: u32, with_lock: bool) -> Result<Worker, Failure> {
        // The first processes take what does not divide evenly.
        let (each, more) = (
            self.args.workers / self.args.processes,
            self.args.workers % self.args.processes,
        );
        let workers = each + u32::from(process < more);
        let mut child = Command::new(std::env::current_exe().map_err(|error| lost_worker(&error))?)
            .arg("__demo-worker")
            .arg(format!("--workers={workers}"))
            .arg(format!("--loops={}", self.args.loops))
            .arg(format!("--place={}", self.place))
            .args(with_lock.then(|| format!("--lock={}", self.lock)))
            .env(WORKER_URL, &self.url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| lost_worker(&error))?;
        let (Some(tell), Some(hear)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(lost_worker(&"no pipe"));
        };
        Ok(Worker {
            _child: child,
            tell,
            hear: BufReader::new(hear).lines(),
        })
    }
}

/// A worker process, which says "ready", waits for a line, and then tells how far it is and what it did.
struct Worker {
    _child: Child,
    tell: tokio::process::ChildStdin,
    hear: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Worker {
    async fn line(&mut self) -> Result<String, Failure> {
        match self.hear.next_line().await {
            Ok(Some(line)) => Ok(line),
            Ok(None) => Err(lost_worker(&"it ended early")),
            Err(error) => Err(lost_worker(&error)),
        }
    }

    async fn expect_ready(&mut self) -> Result<(), Failure> {
        let limit = Duration::from_secs(30);
        match tokio::time::timeout(limit, self.line()).await {
            Ok(line) if line.as_deref().is_ok_and(|line| line == "ready") => Ok(()),
            Ok(Ok(line)) => Err(lost_worker(&line)),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(lost_worker(&"it did not start")),
        }
    }

    async fn work(mut self, bar: ProgressBar) -> Result<String, Failure> {
        self.tell
            .write_all(b"go\n")
            .await
            .map_err(|error| lost_worker(&error))?;
        loop {
            let line = self.line().await?;
            match line.strip_prefix('+').and_then(|n| n.parse().ok()) {
                Some(more) => bar.inc(more),
                None => return Ok(line),
            }
        }
    }
}

fn lost_worker(why: &dyn std::fmt::Display) -> Failure {
    Failure::new(UNAVAILABLE, format!("a worker process failed: {why}"))
}

impl Report {
    /// A sale with a lock must be exact.
    fn verdict(&self) -> u8 {
        if self.with_lock && !self.is_exact() {
            UNSAFE
        } else {
            0
        }
    }
}
