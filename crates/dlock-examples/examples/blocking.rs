//! Plain threads without a runtime: eight of them sell from one stock in a file, which has no other protection.
#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;
use std::path::Path;
use std::thread;

use dlocks::blocking::{self, Mutex};

const THREADS: u32 = 8;
const EACH: u32 = 25;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let folder = std::env::temp_dir().join(format!("dlock-blocking-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let left = sell(&folder);
    std::fs::remove_dir_all(&folder)?;
    println!("{} sold, {} left", THREADS * EACH, left?);
    Ok(())
}

fn sell(folder: &Path) -> Result<u32, Box<dyn Error + Send + Sync>> {
    let url =
        std::env::var("DLOCK_URL").unwrap_or(format!("file:{}", folder.join("locks").display()));
    let locks = blocking::connect(&url)?;
    let stock = folder.join("stock");
    std::fs::write(&stock, (THREADS * EACH).to_string())?;

    let lock = locks.mutex("stock:42")?;
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (lock, stock) = (lock.clone(), stock.clone());
            thread::spawn(move || buyer(&lock, &stock))
        })
        .collect();
    for thread in threads {
        thread.join().map_err(|_| "a buyer panicked")??;
    }
    Ok(std::fs::read_to_string(&stock)?.parse()?)
}

fn buyer(lock: &Mutex, stock: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
    for _ in 0..EACH {
        lock.run(|guard| {
            let items: u32 = std::fs::read_to_string(stock)?.parse()?;
            // Nothing can stop a thread when its hold is lost, so it asks before it writes.
            guard.ensure_held()?;
            std::fs::write(stock, (items - 1).to_string())?;
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        })??;
    }
    Ok(())
}
