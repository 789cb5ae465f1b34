//! One process of the flash sale.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use dlocks::{Mutex, Settings};
use tokio::task::LocalSet;

use crate::connect::leave;
use crate::demo::report::Tally;
use crate::demo::stock::{self, Stock};
use crate::demo::{WORKER_URL, lost_worker};
use crate::exit::{ExitResult, Failure};

/// How often the progress is told.
const TELL: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    workers: u32,
    #[arg(long)]
    loops: u32,
    #[arg(long)]
    place: String,
    /// The lock's name; without it there is none.
    #[arg(long)]
    lock: Option<String>,
}

pub(crate) async fn run(args: &WorkerArgs) -> ExitResult {
    let url = std::env::var(WORKER_URL).map_err(|error| lost_worker(&error))?;
    let stock: Rc<dyn Stock> = stock::open(&url, &args.place).await?.into();
    let locks = match &args.lock {
        Some(_) => Some(crate::connect::open(&url, Settings::new()).await?),
        None => None,
    };
    let lock = match (&locks, &args.lock) {
        (Some(locks), Some(name)) => Some(locks.mutex(name)?),
        _ => None,
    };
    say("ready");
    wait_for_go().await?;
    let tally = Rc::new(RefCell::new(Tally::new()?));
    let tasks = LocalSet::new();
    let told = tasks.spawn_local(tell_progress(tally.clone()));
    let mut buyers = Vec::new();
    for _ in 0..args.workers {
        let buyer = Buyer {
            stock: stock.clone(),
            lock: lock.clone(),
            tally: tally.clone(),
        };
        buyers.push(tasks.spawn_local(buyer.buy(args.loops)));
    }
    tasks
        .run_until(async {
            for buyer in buyers {
                let _ = buyer.await;
            }
            told.abort();
        })
        .await;
    say(&tally.borrow().to_line());
    if let Some(locks) = &locks {
        leave(locks).await;
    }
    Ok(0)
}

struct Buyer {
    stock: Rc<dyn Stock>,
    lock: Option<Mutex>,
    tally: Rc<RefCell<Tally>>,
}

impl Buyer {
    async fn buy(self, loops: u32) {
        for _ in 0..loops {
            let started = Instant::now();
            let outcome = match &self.lock {
                Some(lock) => lock
                    .run(async |_| sell_one(self.stock.as_ref()).await)
                    .await
                    .unwrap_or_else(|error| Err(error.into())),
                None => sell_one(self.stock.as_ref()).await,
            };
            self.tally.borrow_mut().count(&outcome, started.elapsed());
        }
    }
}

/// The mistake of the flash sale: between the read and the write, others do the same.
async fn sell_one(stock: &dyn Stock) -> Result<bool, Failure> {
    let items = stock.read().await?;
    let Some(left) = items.checked_sub(1) else {
        return Ok(false);
    };
    stock.write(left).await?;
    Ok(true)
}

async fn wait_for_go() -> Result<(), Failure> {
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    match line.await {
        Ok(Ok(line)) if line == "go\n" => Ok(()),
        _ => Err(lost_worker(&"nobody said go")),
    }
}

async fn tell_progress(tally: Rc<RefCell<Tally>>) {
    let mut told = 0;
    loop {
        tokio::time::sleep(TELL).await;
        let done = tally.borrow().samples();
        say(&format!("+{}", done - told));
        told = done;
    }
}

/// To the process that started us; it is gone when this fails, and so are we soon.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
