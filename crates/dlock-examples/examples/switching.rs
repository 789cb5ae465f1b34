//! The store is a URL, chosen at run time; and the move from one store to another has no moment without a lock.
//!
//! All replicas go through three steps, one rolling restart each: the old store alone, both, the new one alone. Replicas of neighbouring steps
//! always have a store in common, so they exclude each other.
#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use dlocks::{Error, Guard, Locks, MultiLock};

/// Where a replica takes its locks: what its configuration says.
struct Stores(Vec<Locks>);

impl Stores {
    /// From a setting such as `redis://old` or `redis://old etcd://new`.
    async fn connect(setting: &str) -> Result<Self, Error> {
        let mut stores = Vec::new();
        for url in setting.split_whitespace() {
            stores.push(dlocks::connect(url).await?);
        }
        Ok(Self(stores))
    }

    /// The lock in every store; `None` when somebody has it in one of them.
    async fn try_lock(&self, name: &str) -> Result<Option<Guard>, Error> {
        let members: Result<Vec<_>, _> = self.0.iter().map(|locks| locks.mutex(name)).collect();
        MultiLock::new(members?)?.try_lock().await
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let old = std::env::var("DLOCK_URL").unwrap_or("memory:old".to_owned());
    let new = std::env::var("DLOCK_NEW_URL").unwrap_or("memory:new".to_owned());
    let steps = [old.clone(), format!("{old} {new}"), new.clone()];
    for pair in steps.windows(2) {
        let [before, after] = pair else { continue };
        let (here, there) = (
            Stores::connect(before).await?,
            Stores::connect(after).await?,
        );
        // While the restart rolls, replicas of both steps run.
        for (first, second) in [(&here, &there), (&there, &here)] {
            let guard = first.try_lock("stock:42").await?;
            let other = second.try_lock("stock:42").await?;
            println!(
                "[{before}] and [{after}]: {}",
                verdict(guard.is_some(), other.is_some())
            );
            for guard in [guard, other].into_iter().flatten() {
                let _ = guard.release().await?;
            }
        }
    }
    // What the step in the middle is for.
    let (first, last) = (Stores::connect(&old).await?, Stores::connect(&new).await?);
    let guard = first.try_lock("stock:42").await?;
    let other = last.try_lock("stock:42").await?;
    println!(
        "[{old}] and [{new}]: {}",
        verdict(guard.is_some(), other.is_some())
    );
    Ok(())
}

fn verdict(first: bool, second: bool) -> &'static str {
    match (first, second) {
        (true, false) => "exclude each other",
        (true, true) => "both hold, which is why nobody may skip the step between",
        (false, _) => "the first one was refused",
    }
}
