//! A pool of workers that share sixteen shards, and share anew when a worker comes or goes. No coordinator: each worker holds the locks of its
//! shards, counts who else is there, and gives back what is more than its share.
#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::collections::BTreeMap;
use std::time::Duration;

use dlocks::{Error, Guard, Locks};
use tokio::sync::watch;

const SHARDS: usize = 16;
/// How often a worker looks whether its share has changed. Slower than this in a real pool: seconds.
const LOOK: Duration = Duration::from_millis(20);

struct Worker {
    locks: Locks,
    /// The proof that this worker lives, which the others count.
    _alive: Guard,
    mine: BTreeMap<usize, Guard>,
}

impl Worker {
    async fn join(url: &str, name: &str) -> Result<Self, Error> {
        let locks = dlocks::connect(url).await?;
        let alive = locks.mutex(format!("pool/worker/{name}"))?.lock().await?;
        Ok(Self {
            locks,
            _alive: alive,
            mine: BTreeMap::new(),
        })
    }

    /// One look: give back what is lost or too much, and take free shards up to the share.
    async fn balance(&mut self) -> Result<(), Error> {
        self.mine.retain(|_, guard| guard.is_held());
        let workers = self.locks.list("pool/worker/").await?.len().max(1);
        let share = SHARDS.div_ceil(workers);
        while self.mine.len() > share {
            if let Some((_, guard)) = self.mine.pop_last() {
                let _ = guard.release().await?;
            }
        }
        for shard in 0..SHARDS {
            if self.mine.len() >= share {
                break;
            }
            if self.mine.contains_key(&shard) {
                continue;
            }
            let lock = self.locks.mutex(format!("pool/shard/{shard}"))?;
            if let Some(guard) = lock.try_lock().await? {
                self.mine.insert(shard, guard);
            }
        }
        Ok(())
    }

    /// Works until told to stop. Tells how many shards it has.
    async fn run(
        mut self,
        has: watch::Sender<usize>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), Error> {
        while !*stop.borrow_and_update() {
            self.balance().await?;
            has.send_replace(self.mine.len());
            // Here the shards in `self.mine` are worked on, each under its guard's token.
            let _ = tokio::time::timeout(LOOK, stop.changed()).await;
        }
        for guard in self.mine.into_values() {
            let _ = guard.release().await?;
        }
        has.send_replace(0);
        Ok(())
    }
}

/// A worker of the pool as this program sees it.
struct Seat {
    has: watch::Receiver<usize>,
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<Result<(), Error>>,
}

impl Seat {
    async fn take(url: &str, name: &str) -> Result<Self, Error> {
        let worker = Worker::join(url, name).await?;
        let (tell, has) = watch::channel(0);
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(worker.run(tell, stopped));
        Ok(Self { has, stop, task })
    }

    async fn leave(self) -> Result<(), Error> {
        self.stop.send_replace(true);
        self.task.await.unwrap_or(Ok(()))
    }
}

/// Waits until the pool is balanced: every shard has a worker, and nobody has more than the share.
async fn balanced(seats: &mut [Seat]) -> Vec<usize> {
    loop {
        let has: Vec<usize> = seats.iter().map(|seat| *seat.has.borrow()).collect();
        let share = SHARDS.div_ceil(seats.len().max(1));
        if has.iter().sum::<usize>() == SHARDS && has.iter().all(|n| *n <= share) {
            return has;
        }
        let changes = seats.iter_mut().map(|seat| Box::pin(seat.has.changed()));
        let _ = futures::future::select_all(changes).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("DLOCK_URL").unwrap_or("memory:pool".to_owned());
    let mut seats = vec![Seat::take(&url, "a").await?, Seat::take(&url, "b").await?];
    println!("two workers: {:?}", balanced(&mut seats).await);
    seats.push(Seat::take(&url, "c").await?);
    seats.push(Seat::take(&url, "d").await?);
    println!("four workers: {:?}", balanced(&mut seats).await);
    seats.swap_remove(0).leave().await?;
    println!("three workers: {:?}", balanced(&mut seats).await);
    for seat in seats {
        seat.leave().await?;
    }
    Ok(())
}
