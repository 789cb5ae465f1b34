//! Settings with every default filled in, checked against what a store can do.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{Order, Settings};
use crate::clock::drift_margin;
use crate::name::check_text;
use crate::{Capabilities, Capability, Error, ErrorKind, Liveness, Result};

pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);
pub(crate) const DEFAULT_TRIP_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_OUTAGE: Duration = Duration::from_secs(10);
/// Of turns that are a trip each, and of those that are passed on without one.
const DEFAULT_LOCAL_TURNS: u32 = 16;
const DEFAULT_TURNS_PASSED_ON: u32 = 64;
const DEFAULT_READERS_IN_A_HOLD: u32 = 256;
/// A hold is passed on locally for as long as its hand-over through the store would take, within these.
const LOCAL_TIME: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(10));
const DEFAULT_WARN_AFTER: Duration = Duration::from_secs(60);
const LONGEST_GROUP: usize = 64;
const LONGEST_LEASE: Duration = Duration::from_secs(7 * 24 * 3600);
const LONGEST_LABEL: usize = 1024;

impl Settings {
    /// Checks everything against what the store can do.
    pub(crate) fn check(&self, capabilities: &Capabilities) -> Result<ResolvedSettings> {
        let trip_timeout = self.trip_timeout.unwrap_or(DEFAULT_TRIP_TIMEOUT);
        let warn_after = self.warn_after.unwrap_or(DEFAULT_WARN_AFTER);
        let lease = match (capabilities.liveness, self.lease) {
            (Liveness::Session { ttl }, Some(lease)) if lease != ttl => {
                return Err(Error::invalid(format!(
                    "the lease is {lease:?} but holds of this store live as long as its session, {ttl:?}: leave the \
                     lease out, or set the session's time when you connect"
                )));
            }
            (Liveness::Session { ttl }, _) => ttl,
            (_, lease) => lease.unwrap_or(DEFAULT_LEASE),
        };
        let shortest = capabilities.shortest_lease.max(Duration::from_millis(20));
        in_range("the lease", lease, shortest, LONGEST_LEASE)?;
        let early = capabilities.early_expiry.min(lease / 2);
        let validity = lease.saturating_sub(drift_margin(lease) + early);
        let renew_every = self.renew_every.unwrap_or((lease - early) / 3);
        let most = lease / 2;
        in_range(
            "the renewal interval",
            renew_every,
            Duration::from_millis(5),
            most,
        )?;
        let moment = Duration::from_millis(1);
        in_range("the trip time-out", trip_timeout, moment, LONGEST_LEASE)?;
        if let Some(limit) = self.max_hold {
            in_range("the maximum hold", limit, moment, Duration::MAX)?;
        }
        if self.local_turns == Some(0) {
            return Err(Error::invalid(
                "local_turns is 0: give 1 or more, 1 being the most polite",
            ));
        }
        let turns_passed_on = self
            .local_turns
            .unwrap_or(DEFAULT_TURNS_PASSED_ON)
            .min(capabilities.turns);
        let order = self.order.unwrap_or_default();
        let linger = self.linger.filter(|time| !time.is_zero());
        if let Some(time) = linger {
            in_range("the time to linger", time, moment, LONGEST_LEASE)?;
            capabilities.require(&[Capability::PassOn])?;
            if turns_passed_on == 1 || order == Order::Strict {
                return Err(Error::invalid(
                    "a lock lingers to save the next task a trip, and local_turns(1) or Order::Strict ask the store for every turn: \
                     leave one of them out, or set linger to zero",
                ));
            }
        }
        let readers_in_a_hold = match self.readers_join {
            Some(true) => self.local_turns.unwrap_or(DEFAULT_READERS_IN_A_HOLD),
            _ => 1,
        };
        if self.readers_join == Some(true) && (readers_in_a_hold == 1 || order == Order::Strict) {
            return Err(Error::invalid(
                "readers join a hold to save a trip, and local_turns(1) or Order::Strict ask the store for every one of them: leave \
                 one of them out",
            ));
        }
        if self.readers_join == Some(true) && self.max_hold.is_some() {
            return Err(Error::invalid(
                "max_hold ends the hold of one guard, and readers who join share one hold: leave max_hold or readers_join out",
            ));
        }
        let label = self.label.clone().unwrap_or_else(default_label);
        check_label(&label)?;
        let group = self.group.clone().unwrap_or_default();
        check_text("a group", &group, LONGEST_GROUP)?;
        let ends = capabilities.liveness != Liveness::Process;
        Ok(ResolvedSettings {
            lease,
            validity: ends.then_some(validity),
            renew_every: (self.renewal.unwrap_or(true) && ends).then_some(renew_every),
            max_hold: self.max_hold,
            wait_at_most: self.wait_at_most,
            trip_timeout,
            retry_unreachable_for: self.retry_unreachable_for.unwrap_or(DEFAULT_OUTAGE),
            warn_after: (warn_after < Duration::MAX).then_some(warn_after),
            order,
            turns_before_a_pause: self.local_turns.unwrap_or(DEFAULT_LOCAL_TURNS),
            turns_passed_on,
            local_time: self.local_time,
            linger,
            readers_in_a_hold,
            label,
            group,
        })
    }
}

/// Settings that were checked, with every default filled in.
#[derive(Debug)]
pub(crate) struct ResolvedSettings {
    pub(crate) lease: Duration,
    /// How long a hold is valid after the send time: the lease less the drift margin and what the store may be early. `None`: no
    /// deadline.
    pub(crate) validity: Option<Duration>,
    /// `None`: never.
    pub(crate) renew_every: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) wait_at_most: Option<Duration>,
    pub(crate) trip_timeout: Duration,
    pub(crate) retry_unreachable_for: Duration,
    /// `None`: never.
    pub(crate) warn_after: Option<Duration>,
    pub(crate) order: Order,
    pub(crate) turns_before_a_pause: u32,
    /// How many turns a hold may have before it goes back to the store, the first included.
    pub(crate) turns_passed_on: u32,
    local_time: Option<Duration>,
    /// How long a hold is kept after its release, where it is.
    pub(crate) linger: Option<Duration>,
    /// How many readers of the client may be in one hold, one after the other or together; 1: each asks the store.
    pub(crate) readers_in_a_hold: u32,
    pub(crate) label: Arc<str>,
    pub(crate) group: Arc<str>,
}

impl ResolvedSettings {
    /// How long one renewal may take: a hung one must not eat the tries that the lease has left.
    pub(crate) fn renewal_limit(&self) -> Duration {
        self.trip_timeout
            .min(self.renew_every.unwrap_or(self.lease))
    }

    /// How long a hold whose grant took `trip` is passed on between local tasks.
    pub(crate) fn local_time(&self, trip: Duration) -> Duration {
        let (least, most) = LOCAL_TIME;
        self.local_time
            .unwrap_or_else(|| trip.saturating_mul(2).clamp(least, most))
    }
}

pub(crate) fn check_label(label: &str) -> Result<()> {
    check_text("a label", label, LONGEST_LABEL)
}

fn in_range(what: &str, value: Duration, low: Duration, high: Duration) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!("{what} is {value:?}: it must be from {low:?} to {high:?}"),
    ))
}

/// Program, host and process id.
fn default_label() -> Arc<str> {
    static LABEL: OnceLock<Arc<str>> = OnceLock::new();
    LABEL
        .get_or_init(|| {
            let program = std::env::current_exe()
                .ok()
                .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
                .unwrap_or_else(|| "unknown".to_owned());
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
                .ok()
                .or_else(|| std::env::var("HOSTNAME").ok())
                .unwrap_or_else(|| "localhost".to_owned());
            let text = format!("{program}@{}:{}", host.trim(), std::process::id());
            text.replace(char::is_control, "?").into()
        })
        .clone()
}

#[cfg(test)]
mod tests;
