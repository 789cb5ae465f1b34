//! What every backend says of itself.

use dlocks::{Capability, Fairness, Liveness, Locks, Reach, WakeUp};
use serde_json::{Value, json};

use crate::doctor::{Finding, Level, Patient};
use crate::show;

/// What is worth a word to somebody who wants to lock with this store.
pub(crate) async fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let known = patient.locks.capabilities();
    let mut findings = Vec::new();
    findings.push(match known.reach {
        Reach::Process => Finding::new(
            Level::Unsafe,
            "reach",
            "excludes only inside one process, and every dlock command is a process: use file: or a server",
        ),
        Reach::Host => Finding::new(
            Level::Note,
            "reach",
            "excludes between the processes of this host; for several hosts use a server",
        ),
        _ => Finding::new(Level::Good, "reach", "excludes between all hosts that reach the store"),
    });
    findings.push(if known.fencing {
        Finding::new(
            Level::Good,
            "fencing",
            "every hold has a token; give DLOCK_TOKEN to the resource, and let it refuse lower ones",
        )
    } else {
        Finding::new(
            Level::Note,
            "fencing",
            "no tokens: a holder that is paused past its lease cannot be told from the next one",
        )
    });
    if let Liveness::Session { ttl } = known.liveness {
        findings.push(Finding::new(
            Level::Note,
            "session",
            format!("locks live as long as a session of {}", show::short(ttl)),
        ));
    }
    if known.fairness == Fairness::None {
        findings.push(Finding::new(
            Level::Note,
            "order",
            "waiters are not served in order: one can wait long under load",
        ));
    }
    findings.push(Finding::new(Level::Note, "durability", known.durability));
    findings
}

pub(crate) fn table(locks: &Locks) -> comfy_table::Table {
    let mut table = show::table(&["capability", ""]);
    for (name, value) in rows(locks) {
        table.add_row([name.to_owned(), value]);
    }
    table
}

pub(crate) fn as_json(locks: &Locks) -> Value {
    let known = locks.capabilities();
    json!({
        "backend": known.backend,
        "fencing": known.fencing,
        "fair": known.has(Capability::Fair),
        "push": known.has(Capability::Push),
        "shared": known.shared,
        "downgrade": known.downgrade,
        "permits": known.permits,
        "inspect": known.inspect,
        "break": known.break_lock,
        "reach": reach(known.reach),
        "liveness": liveness(known.liveness),
    })
}

fn rows(locks: &Locks) -> Vec<(&'static str, String)> {
    let known = locks.capabilities();
    let yes = |has: bool| if has { "yes" } else { "no" }.to_owned();
    vec![
        ("excludes between", reach(known.reach).to_owned()),
        ("a dead holder ends", liveness(known.liveness)),
        (
            "a waiter wakes",
            match known.wake_up {
                WakeUp::Push { bound } => format!("by notification, within {}", show::short(bound)),
                WakeUp::Poll { longest } => {
                    format!("by asking, every {} at most", show::short(longest))
                }
                _ => "?".to_owned(),
            },
        ),
        (
            "first come, first served",
            yes(known.fairness == Fairness::Fifo),
        ),
        ("fencing tokens", yes(known.fencing)),
        ("read-write locks", yes(known.shared)),
        ("downgrade to read", yes(known.downgrade)),
        ("semaphores", yes(known.permits)),
        ("inspect and list", yes(known.inspect)),
        ("break by force", yes(known.break_lock)),
    ]
}

fn reach(reach: Reach) -> &'static str {
    match reach {
        Reach::Process => "tasks of one process",
        Reach::Host => "processes of one host",
        _ => "all hosts",
    }
}

fn liveness(liveness: Liveness) -> String {
    match liveness {
        Liveness::Lease => "with its lease".to_owned(),
        Liveness::Session { ttl } => format!("with its session of {}", show::short(ttl)),
        Liveness::Process => "with its process".to_owned(),
        _ => "?".to_owned(),
    }
}
