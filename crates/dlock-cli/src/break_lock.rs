//! `dlock break`: frees a lock by force, after asking.

use std::io::{BufRead, IsTerminal, Write};

use dlocks::{Capability, LockInfo, Settings};
use serde_json::json;

use crate::connect::{Store, leave};
use crate::exit::{ExitResult, Failure, USAGE, say};
use crate::show;

pub(crate) async fn run(store: &Store, name: &str, yes: bool) -> ExitResult {
    let locks = store.connect(Settings::new()).await?;
    // Who may break a lock may not be allowed to see it, and not every store shows all that holds it: what is seen is for the
    // question, and decides nothing when the answer is given already.
    let seen = locks.inspect(name).await;
    let seems_free = seen.as_ref().is_ok_and(|lock| !lock.is_locked());
    if !locks.capabilities().has(Capability::Break) {
        if !seems_free {
            return Err(Failure::new(USAGE, cannot(name, &seen?)));
        }
    } else if !yes && !seems_free && !asked(name, &seen)? {
        say("left as it is");
        return Ok(1);
    }
    let breaks = locks.capabilities().has(Capability::Break) && (yes || !seems_free);
    let broken = breaks && locks.break_lock(name).await?;
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

fn cannot(name: &str, lock: &LockInfo) -> String {
    format!(
        "this store cannot free {:?} by force: end its holder instead ({})",
        name,
        holders(lock)
    )
}

fn asked(name: &str, seen: &dlocks::Result<LockInfo>) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "break asks before it frees a lock, and there is nobody to answer: add --yes",
        ));
    }
    let by = match seen {
        Ok(lock) => format!("held by {}", holders(lock)),
        Err(error) => format!("whose holder cannot be told ({error})"),
    };
    let mut err = std::io::stderr();
    let _ = write!(err, "Free {name:?}, {by}? It may still be at work. [y/N] ");
    let _ = err.flush();
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
