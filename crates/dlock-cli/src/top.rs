//! `dlock top`: holders and waiters, again and again.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use dlocks::{LockInfo, Locks, Settings};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::time;
use crate::connect::{Store, leave};
use crate::exit::{ExitResult, Failure, UNAVAILABLE};
use crate::show;

#[derive(Debug, Args)]
#[command(after_help = "Ends with Ctrl-C. With --json it prints one object a line.")]
pub(crate) struct TopArgs {
    /// Only names that start with this
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    /// How often to look
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    interval: Duration,
    /// End after looking N times
    #[arg(long, short = 'n', value_name = "N")]
    count: Option<u64>,
}

pub(crate) async fn run(store: &Store, args: &TopArgs) -> ExitResult {
    if args.interval < Duration::from_millis(10) {
        return Err(Failure::usage("--interval must be 10ms or more"));
    }
    let locks = store.connect(Settings::new()).await?;
    // One listener for the whole time: a new one would not hear of what came before it.
    let mut interrupt = signal(SignalKind::interrupt())
        .map_err(|error| Failure::new(UNAVAILABLE, format!("cannot catch signals: {error}")))?;
    let mut looks = 0;
    loop {
        let found = tokio::select! {
            biased;
            _ = interrupt.recv() => break,
            found = locks.list(&args.prefix) => found?,
        };
        if store.json {
            show::print(&json(&found))?;
        } else {
            show::print(&screen(&locks, &found))?;
        }
        looks += 1;
        if args.count.is_some_and(|count| looks >= count) {
            break;
        }
        tokio::select! {
            _ = interrupt.recv() => break,
            () = tokio::time::sleep(args.interval) => {}
        }
    }
    leave(&locks).await;
    Ok(0)
}

fn json(found: &[LockInfo]) -> Value {
    let all: Vec<Value> = found.iter().map(show::lock_as_json).collect();
    let now = humantime::format_rfc3339_millis(std::time::SystemTime::now());
    json!({ "time": now.to_string(), "locks": all })
}

fn screen(locks: &Locks, found: &[LockInfo]) -> String {
    // Home, then clear to the end: no flicker.
    let clear = if std::io::stdout().is_terminal() {
        "\x1b[H\x1b[2J"
    } else {
        ""
    };
    let holders: usize = found.iter().map(|lock| lock.holders.len()).sum();
    let waiters: usize = found.iter().map(|lock| lock.waiters.len()).sum();
    let mut text = format!(
        "{clear}dlock top - {} - {} locks, {holders} holders, {waiters} waiters\n\n{}",
        locks.identity(),
        found.len(),
        show::locks(found).trim_fmt(),
    );
    for lock in found.iter().filter(|lock| !lock.waiters.is_empty()) {
        text.push_str(&format!("\n\n{} is waited for by", lock.name));
        for waiter in &lock.waiters {
            text.push_str(&format!("\n  {} ({})", waiter.label, waiter.mode));
        }
    }
    text
}
