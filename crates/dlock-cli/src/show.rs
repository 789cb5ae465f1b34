//! Locks as tables for people and as JSON for programs.

use std::io::{IsTerminal, Write};
use std::time::{Duration, SystemTime};

use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use dlocks::{FencingToken, HolderInfo, LockInfo};
use serde_json::{Value, json};

use crate::exit::{Failure, UNAVAILABLE};

pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header.iter().map(|title| Cell::new(title.to_uppercase())));
    table
}

/// One line for each holder; a lock's waiters are counted in its first line.
pub(crate) fn locks(locks: &[LockInfo]) -> Table {
    let mut table = table(&[
        "name", "mode", "holder", "for", "token", "expires", "waiting",
    ]);
    for lock in locks {
        for (index, holder) in lock.holders.iter().enumerate() {
            let first = index == 0;
            table.add_row([
                if first {
                    lock.name.to_string()
                } else {
                    String::new()
                },
                holder.mode.to_string(),
                holder.label.clone(),
                held_for(holder).map_or("-".to_owned(), short),
                holder
                    .token
                    .map_or("-".to_owned(), |token| token.to_string()),
                holder.expires_in.map_or("-".to_owned(), short),
                if first {
                    lock.waiters.len().to_string()
                } else {
                    String::new()
                },
            ]);
        }
    }
    table
}

pub(crate) fn lock_as_json(lock: &LockInfo) -> Value {
    let holders: Vec<Value> = lock
        .holders
        .iter()
        .map(|holder| {
            json!({
                "owner": holder.owner,
                "label": holder.label,
                "mode": holder.mode.to_string(),
                "token": holder.token.map(token_as_json),
                "since": holder.since.map(|at| humantime::format_rfc3339_millis(at).to_string()),
                "expires_in_ms": holder.expires_in.map(|left| left.as_millis() as u64),
            })
        })
        .collect();
    let waiters: Vec<Value> = lock
        .waiters
        .iter()
        .map(|waiter| {
            json!({ "owner": waiter.owner, "label": waiter.label, "mode": waiter.mode.to_string() })
        })
        .collect();
    json!({ "name": lock.name.as_str(), "locked": lock.is_locked(), "holders": holders, "waiters": waiters })
}

/// A number, or its digits as text above 2^53 - 1, which readers that keep numbers as doubles (JavaScript, `jq`) would change: the rule
/// that [`FencingToken`] itself follows with `serde`.
fn token_as_json(token: FencingToken) -> Value {
    const EXACT: u64 = (1 << 53) - 1;
    match token.get() {
        number @ 0..=EXACT => json!(number),
        number => json!(number.to_string()),
    }
}

pub(crate) fn held_for(holder: &HolderInfo) -> Option<Duration> {
    holder
        .since
        .map(|since| SystemTime::now().duration_since(since).unwrap_or_default())
}

/// A duration with its two largest units.
pub(crate) fn short(time: Duration) -> String {
    let rounded = if time >= Duration::from_secs(1) {
        Duration::from_secs(time.as_secs())
    } else {
        Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or_default())
    };
    let text = humantime::format_duration(rounded).to_string();
    let units: Vec<&str> = text.split(' ').take(2).collect();
    units.join(" ")
}

/// Microseconds as people read them.
pub(crate) fn micros(value: u64) -> String {
    match value {
        0..1_000 => format!("{value} µs"),
        1_000..1_000_000 => format!("{:.2} ms", value as f64 / 1e3),
        _ => format!("{:.2} s", value as f64 / 1e6),
    }
}

/// Red or green, on a terminal.
pub(crate) fn coloured(text: &str, good: bool) -> Cell {
    let cell = Cell::new(text);
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        cell.fg(if good { Color::Green } else { Color::Red })
    } else {
        cell
    }
}

/// Prints, and takes a reader that went away (`dlock ls | head -1`) for the end.
pub(crate) fn print(text: &dyn std::fmt::Display) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::new(UNAVAILABLE, format!("cannot print: {error}"))),
    }
}

/// A table without the spaces that fill its last column.
pub(crate) fn print_table(table: &Table) -> Result<(), Failure> {
    print(&table.trim_fmt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_doubles_do_not_hold_is_text() {
        let exact = (1 << 53) - 1;
        let of = |number| token_as_json(FencingToken::new(number)).to_string();
        assert_eq!(of(exact), "9007199254740991");
        assert_eq!(of(exact + 1), "\"9007199254740992\"");
    }

    #[test]
    fn times_are_short_to_read() {
        for (millis, text) in [
            (0, "0s"),
            (12, "12ms"),
            (61_500, "1m 1s"),
            (90_061_000, "1day 1h"),
        ] {
            assert_eq!(short(Duration::from_millis(millis)), text);
        }
        assert_eq!(micros(850), "850 µs");
        assert_eq!(micros(1_500), "1.50 ms");
    }
}
