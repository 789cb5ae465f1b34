//! The flash sale: 50 workers sell 5000 items, read stock, check, write stock - 1, without any other protection.
//!
//! First without a lock, which sells items that are not there, then with one, which ends at exactly 0.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use dlocks::{Locks, Mutex};
use tokio::task::{JoinSet, yield_now};

const STOCK: u32 = 5000;
const WORKERS: u32 = 50;
const LOOPS: u32 = 100;

/// A table row as a database would keep it: it can be read and written, and nothing holds the two together.
struct Row(AtomicU32);

impl Row {
    async fn read(&self) -> u32 {
        yield_now().await;
        self.0.load(Ordering::SeqCst)
    }

    async fn write(&self, stock: u32) {
        yield_now().await;
        self.0.store(stock, Ordering::SeqCst);
    }
}

async fn sell_one(row: &Row) -> bool {
    let stock = row.read().await;
    if stock == 0 {
        return false;
    }
    row.write(stock - 1).await;
    true
}

async fn sale(lock: Option<Mutex>) -> Result<(u32, u32), Box<dyn Error + Send + Sync>> {
    let row = Arc::new(Row(AtomicU32::new(STOCK)));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (row, lock) = (row.clone(), lock.clone());
        workers.spawn(async move {
            let mut sold = 0;
            for _ in 0..LOOPS {
                let done = match &lock {
                    Some(lock) => lock.run(async |_| sell_one(&row).await).await?,
                    None => sell_one(&row).await,
                };
                sold += u32::from(done);
            }
            Ok::<u32, dlocks::Error>(sold)
        });
    }
    let mut sold = 0;
    while let Some(worker) = workers.join_next().await {
        sold += worker??;
    }
    Ok((sold, row.0.load(Ordering::SeqCst)))
}

#[tokio::main]
#[allow(clippy::print_stdout, reason = "an example talks to a person")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let locks: Locks = dlocks::connect(&url).await?;
    println!("{STOCK} items, {WORKERS} workers, {LOOPS} tries each");

    let (sold, left) = sale(None).await?;
    println!(
        "without a lock: sold {sold}, left {left}: oversold by {}",
        (sold + left).saturating_sub(STOCK)
    );

    let started = Instant::now();
    let (sold, left) = sale(Some(locks.mutex("stock:42")?)).await?;
    let wait = locks.stats().wait;
    println!(
        "with {}: sold {sold}, left {left}, in {:.2?}",
        locks.identity(),
        started.elapsed()
    );
    println!(
        "waited: p50 {:.2?}, p99 {:.2?}, longest {:.2?}",
        wait.p50, wait.p99, wait.max
    );
    locks.close().await?;
    if sold != STOCK || left != 0 {
        return Err("the lock did not protect the stock".into());
    }
    Ok(())
}
