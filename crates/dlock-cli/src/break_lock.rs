//! `dlock break`: frees a lock by force, after asking.

use std::io::{BufRead, IsTerminal, Write};

use dlock::{Capability, LockInfo, Settings};
use serde_json::json;

use crate::connect::{Store, leave};
use crate::exit::{Failure, Outcome, USAGE};
use crate::show;

pub(crate) async fn run(store: &Store, name: &str, yes: bool) -> Outcome {
    let locks = store.connect(Settings::new()).await?;
    let lock = locks.inspect(name).await?;
    if lock.is_locked() {
        if !locks.capabilities().has(Capability::Break) {
            return Err(Failure::new(USAGE, cannot(&lock)));
        }
        if !yes && !asked(&lock)? {
            eprintln!("dlock: left as it is");
            return Ok(1);
        }
    }
    let broken = lock.is_locked() && locks.break_lock(name).await?;
    if store.json {
        show::print(&json!({ "name": name, "broken": broken }))?;
    } else if broken {
        show::print(&format!("{name} was freed"))?;
    } else {
        show::print(&format!("{name} is free already"))?;
    }
    leave(&locks).await;
    Ok(0)
}

fn holders(lock: &LockInfo) -> String {
    let labels: Vec<&str> = lock
        .holders
        .iter()
        .map(|holder| holder.label.as_str())
        .collect();
    labels.join(", ")
}

fn cannot(lock: &LockInfo) -> String {
    format!(
        "this store cannot free {:?} by force: end its holder instead ({})",
        lock.name,
        holders(lock)
    )
}

fn asked(lock: &LockInfo) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "break asks before it frees a lock, and there is nobody to answer: add --yes",
        ));
    }
    let mut err = std::io::stderr();
    let _ = write!(
        err,
        "Free {:?}, held by {}? It may still be at work. [y/N] ",
        lock.name,
        holders(lock)
    );
    let _ = err.flush();
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
