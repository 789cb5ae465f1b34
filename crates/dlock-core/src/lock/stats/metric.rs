//! What goes to the `metrics` facade: names, labels and help texts. docs/metrics.md has the table.

use std::sync::Arc;
use std::time::Duration;

use super::Event;
use crate::LossReason;

pub(super) const HELD: &str = "dlock_held";
pub(super) const WAITING: &str = "dlock_waiting";
pub(super) const HOLD_SECONDS: &str = "dlock_hold_seconds";
const WAIT_SECONDS: &str = "dlock_wait_seconds";
const ACQUIRES: &str = "dlock_acquires_total";
const RENEWALS: &str = "dlock_renewals_total";
const RELEASES: &str = "dlock_releases_total";
const LOSSES: &str = "dlock_losses_total";

const REASONS: [(LossReason, &str); 5] = [
    (LossReason::Expired, "expired"),
    (LossReason::Gone, "gone"),
    (LossReason::SessionEnded, "session_ended"),
    (LossReason::MaxHold, "max_hold"),
    (LossReason::Closed, "closed"),
];

/// Help texts, and every loss at zero: an alert on a series that appears with the first loss misses that one.
pub(super) fn describe(backend: &'static str) {
    metrics::describe_gauge!(HELD, "Locks held now");
    metrics::describe_gauge!(
        WAITING,
        "Acquires under way now, at the store or for their local turn"
    );
    metrics::describe_histogram!(
        WAIT_SECONDS,
        metrics::Unit::Seconds,
        "How long acquires took, by outcome"
    );
    metrics::describe_histogram!(
        HOLD_SECONDS,
        metrics::Unit::Seconds,
        "How long locks were held"
    );
    metrics::describe_counter!(
        ACQUIRES,
        "Acquires by outcome: acquired, passed_on (by a local task), reentered, busy (a try), gave_up (a limit), failed, cancelled"
    );
    metrics::describe_counter!(
        RENEWALS,
        "Renewals by outcome: extended, failed (and tried again)"
    );
    metrics::describe_counter!(RELEASES, "Releases that the store confirmed");
    metrics::describe_counter!(LOSSES, "Locks lost while held, by reason");
    for (_, reason) in REASONS {
        metrics::counter!(LOSSES, "backend" => backend, "group" => "", "reason" => reason)
            .increment(0);
    }
}

pub(super) fn count(event: Event, backend: &'static str, group: &Arc<str>) {
    let group = group.to_string();
    if let Some(outcome) = outcome(event) {
        metrics::counter!(ACQUIRES, "backend" => backend, "group" => group, "outcome" => outcome)
            .increment(1);
    } else if let Some(reason) = reason(event) {
        metrics::counter!(LOSSES, "backend" => backend, "group" => group, "reason" => reason)
            .increment(1);
    } else if matches!(event, Event::Released) {
        metrics::counter!(RELEASES, "backend" => backend, "group" => group).increment(1);
    } else {
        let outcome = match event {
            Event::Renewed => "extended",
            _ => "failed",
        };
        metrics::counter!(RENEWALS, "backend" => backend, "group" => group, "outcome" => outcome)
            .increment(1);
    }
}

pub(super) fn waited(event: Event, waited: Duration, backend: &'static str, group: &Arc<str>) {
    if let Some(outcome) = outcome(event) {
        metrics::histogram!(WAIT_SECONDS, "backend" => backend, "group" => group.to_string(), "outcome" => outcome)
            .record(waited);
    }
}

fn outcome(event: Event) -> Option<&'static str> {
    Some(match event {
        Event::Acquired => "acquired",
        Event::PassedOn => "passed_on",
        Event::Reentered => "reentered",
        Event::Busy => "busy",
        Event::GaveUp => "gave_up",
        Event::Failed => "failed",
        Event::Cancelled => "cancelled",
        _ => return None,
    })
}

fn reason(event: Event) -> Option<&'static str> {
    REASONS
        .iter()
        .find(|(reason, _)| Event::from(*reason) == event)
        .map(|(_, text)| *text)
}
