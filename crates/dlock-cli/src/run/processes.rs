//! What `/proc` says about the processes of a group. Where it is missing or hides those of other users, nothing is concluded from it.

use rustix::process::Pid;

/// Whether the group has members, all of which have ended and only wait to be collected.
pub(crate) fn all_have_ended(group: Pid) -> bool {
    let group = group.as_raw_nonzero().get();
    // Of another user, as a rule: who sees this one sees all.
    if std::fs::metadata("/proc/1/stat").is_err() || stat("1").is_none() {
        return false;
    }
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return false;
    };
    let mut members = entries
        .filter_map(|entry| stat(entry.ok()?.file_name().to_str()?))
        .filter(|stat| stat.group == group)
        .peekable();
    members.peek().is_some() && members.all(|member| member.has_ended)
}

struct Stat {
    group: i32,
    has_ended: bool,
}

fn stat(process: &str) -> Option<Stat> {
    process.parse::<u32>().ok()?;
    parse(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// `pid (name) state ppid pgrp …`, where the name may hold anything.
fn parse(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let threads: u32 = fields.get(17)?.parse().ok()?;
    Some(Stat {
        group: fields.get(2)?.parse().ok()?,
        // Its first thread may end before the others.
        has_ended: matches!(*fields.first()?, "Z" | "X") && threads <= 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_ended_when_its_last_thread_has() {
        let line = |state: &str, threads: u32| {
            format!("7 (a) b) {state} 1 5 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 99 0")
        };
        for (state, threads, ended) in [("Z", 1, true), ("Z", 2, false), ("S", 1, false)] {
            let found = parse(&line(state, threads)).expect("a line");
            assert_eq!((found.group, found.has_ended), (5, ended), "{state}");
        }
        assert!(parse("nonsense").is_none());
    }
}
