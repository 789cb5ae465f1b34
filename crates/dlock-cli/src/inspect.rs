//! `dlock inspect`: one lock, with its holders and waiters.

use dlocks::{LockInfo, Settings};

use crate::connect::{Store, leave};
use crate::exit::ExitResult;
use crate::show;

pub(crate) async fn run(store: &Store, name: &str) -> ExitResult {
    let locks = store.connect(Settings::new()).await?;
    let lock = locks.inspect(name).await?;
    if store.json {
        show::print(&show::lock_as_json(&lock))?;
    } else {
        show::print(&text(&lock))?;
    }
    leave(&locks).await;
    Ok(0)
}

fn text(lock: &LockInfo) -> String {
    let mut lines = vec![if lock.is_locked() {
        format!("{} is held", lock.name)
    } else {
        format!("{} is free", lock.name)
    }];
    for holder in &lock.holders {
        lines.push(format!("  holder   {}", holder.label));
        lines.push(format!("    mode   {}", holder.mode));
        lines.push(format!("    owner  {}", holder.owner));
        if let Some(token) = holder.token {
            lines.push(format!("    token  {token}"));
        }
        if let (Some(since), Some(time)) = (holder.since, show::held_for(holder)) {
            let since = humantime::format_rfc3339_seconds(since);
            lines.push(format!("    since  {since} ({})", show::short(time)));
        }
        if let Some(left) = holder.expires_in {
            lines.push(format!(
                "    ends   in {} unless renewed",
                show::short(left)
            ));
        }
    }
    for waiter in &lock.waiters {
        lines.push(format!("  waiter   {} ({})", waiter.label, waiter.mode));
    }
    lines.join("\n")
}
