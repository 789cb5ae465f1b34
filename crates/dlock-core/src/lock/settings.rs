use std::sync::{Arc, OnceLock};
use std::time::Duration;

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

/// In which order the tasks of one client and those of other clients get a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Order {
    /// Clients take turns; the tasks of one client are first come, first served among themselves, and only the first of them
    /// talks to the store. The default: cheap for the store, however many tasks wait.
    #[default]
    ByClient,
    /// Every waiter has its own place in the store's queue, so the order is strict across all clients. Costs the store one
    /// queue entry per waiting task.
    Strict,
}

/// How locks are taken and kept. Every setting has a default that is good for most.
///
/// ```
/// use std::time::Duration;
/// use dlock_core::Settings;
///
/// let settings = Settings::new().lease(Duration::from_secs(10)).max_hold(Duration::from_secs(3600)).label("nightly job");
/// ```
///
/// What is not set is left as it is: at its default for a new client, and as the client has it for
/// [`Locks::with`](crate::Locks::with).
///
/// # How the times nest
///
/// ```text
/// lease         |─────────────────────────────────────────|  the store keeps the hold so long without a renewal
/// validity      |───────────────────────────────────────|    less 1 % and 2 ms: is_held() and lost() go by it
/// renew_every   |─────────────|─────────────|                a third of the lease
/// one renewal                 |··|                           at most trip_timeout, and at most renew_every
/// trip_timeout  |──|                                         one question and its answer
/// outage        |─────────|                                  how long a waiting acquire retries a store in trouble
/// wait_at_most  |──────────────────────────────── ...        how long lock() and run() wait for others
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "settings take effect when they are given to a client"]
pub struct Settings {
    lease: Option<Duration>,
    renew_every: Option<Duration>,
    renewal: Option<bool>,
    max_hold: Option<Duration>,
    wait_at_most: Option<Duration>,
    trip_timeout: Option<Duration>,
    retry_unreachable_for: Option<Duration>,
    warn_after: Option<Duration>,
    order: Option<Order>,
    local_turns: Option<u32>,
    local_time: Option<Duration>,
    linger: Option<Duration>,
    readers_join: Option<bool>,
    label: Option<Arc<str>>,
    group: Option<Arc<str>>,
}

impl Settings {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long the store keeps a hold without a renewal. Default: 30 s.
    ///
    /// Shorter frees the lock sooner after a crash, but a short outage of the store then loses it. From the store's shortest
    /// lease (20 ms at least) to 7 days. A session store takes its time at connect, so there it must be equal or left out.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How often the lease is renewed in the background. Default: a third of the lease.
    ///
    /// More often survives more failed renewals, at the price of more trips. At least 5 ms, at most half of the lease.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.renew_every = Some(interval);
        self
    }

    /// Whether holds are renewed at all. Default: yes.
    ///
    /// Without renewal a hold is lost when its lease ends, however alive its holder is.
    pub fn renewal(mut self, on: bool) -> Self {
        self.renewal = Some(on);
        self
    }

    /// The longest time one hold may last, also when its guard was forgotten (C20). Default: no limit.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    /// How long calls that promise a guard (`lock`, `run`) wait before they fail with
    /// [`ErrorKind::Busy`]. Default: for ever.
    pub fn wait_at_most(mut self, limit: Duration) -> Self {
        self.wait_at_most = Some(limit);
        self
    }

    /// The longest time a single trip to the store may take before it counts as failed. Default: 5 s.
    ///
    /// `try_lock`, renewals, releases and queries against a store that hangs end after this time. At least 1 ms.
    pub fn trip_timeout(mut self, limit: Duration) -> Self {
        self.trip_timeout = Some(limit);
        self
    }

    /// How long waiting acquires put up with a store that cannot be reached before they return the error. Default: 10 s.
    ///
    /// It counts from the first failure, for all tasks of a client that wait for the same name: they end together, to within a trip,
    /// not one after the other. It ends with the first answer. Zero returns the first error; `try_lock` always does.
    pub fn retry_unreachable_for(mut self, patience: Duration) -> Self {
        self.retry_unreachable_for = Some(patience);
        self
    }

    /// In which order waiters get a lock. Default: [`Order::ByClient`].
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }

    /// With [`Order::ByClient`]: how many times in a row tasks of this client take a lock from each other before other clients get a
    /// chance. At least 1.
    ///
    /// Where a grant of the store brings tokens for several turns, tasks with the same settings pass an exclusive hold on without a
    /// trip (C21): 64 times by default, and for [`local_time`](Settings::local_time) at most; 1 means that every turn is
    /// asked of the store. On a store without a queue they pause after so many turns, 16 by default, unless the store can
    /// tell that nobody else waits.
    pub fn local_turns(mut self, turns: u32) -> Self {
        self.local_turns = Some(turns);
        self
    }

    /// How long, from a grant of the store on, tasks of this client pass a hold on to each other without a trip; then it goes back
    /// to the store, where others may wait. Default: as long as a hand-over through the store would take, which is twice the time of
    /// this client's trips of late (a question and its answer, not the wait for a lock), from 200 µs to 10 ms. Zero: never.
    pub fn local_time(mut self, limit: Duration) -> Self {
        self.local_time = Some(limit);
        self
    }

    /// How long this client keeps an exclusive lock after its release when no task of it waits, so that its next acquire costs no trip.
    /// Default: zero, which gives it back at once.
    ///
    /// The lock *lingers*: in the store it is held, and `inspect` shows it so, with this client's label, while no task is in. It goes
    /// back when somebody of another client waits and the store tells (see [`Capabilities::wanted`]; where it cannot, others wait for
    /// the whole time, which then counts from the first release of a grant, however often the lock is used meanwhile), when the time has passed, when a local task wants it in another way, at [`close`](crate::Locks::close), and
    /// with its tokens: a grant has [`local_turns`](Settings::local_turns) of them. A process that dies meanwhile leaves it until
    /// its lease or session is over, as for any hold, and a program that ends should call `close`: until then, and for this time at the
    /// most, a lingering lock keeps its client alive and renews.
    ///
    /// A store whose grants bring one token cannot ([`Capability::PassOn`](crate::Capability::PassOn)), and neither can
    /// [`Order::Strict`]. At most 7 days. Choose about the time between two uses of the same lock, and much less than others may wait.
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = Some(time);
        self
    }

    /// Whether tasks of this client that want to read join a read hold that the client has, without a trip. Default: no, each asks the
    /// store.
    ///
    /// Readers with the same settings and without an [`Owner`](crate::Owner) then share one hold: its lease, its loss, and its **token**,
    /// which is why it has to be asked for. A token of its own would be below one that a reader of another client got meanwhile, and a
    /// resource that has seen that one would refuse a valid holder. The hold goes back to the store with the last of them. Others are
    /// kept waiting no longer than by a hold that is passed on (C21): nobody joins once [`local_time`](Settings::local_time) has
    /// passed since the grant, after [`local_turns`](Settings::local_turns) readers (256 by default), or when a writer of this client is next.
    ///
    /// It goes neither with [`Order::Strict`] or `local_turns(1)`, which ask the store for everybody, nor with
    /// [`max_hold`](Settings::max_hold), which ends the hold of one guard.
    pub fn readers_join(mut self, on: bool) -> Self {
        self.readers_join = Some(on);
        self
    }

    /// Who holds, for people to read with `inspect`. Default: program, host and process id. At most 1024 bytes, no control
    /// characters, nothing secret: everybody who can read the store can read it.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// After how long a wait is told in the log, with who holds the lock, or that this very client does: a task that waits for
    /// itself is found. Default: 60 s. [`Duration::MAX`] never.
    pub fn warn_after(mut self, limit: Duration) -> Self {
        self.warn_after = Some(limit);
        self
    }

    /// What these locks are for, as the label `group` of metrics. Default: empty. At most 64 bytes, no control characters. Few
    /// values, not one for each lock: every one of them is a time series of its own.
    pub fn group(mut self, group: impl Into<Arc<str>>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// These settings, and those of `base` where they are silent.
    pub(crate) fn over(self, base: &Self) -> Self {
        let base = base.clone();
        // A renewal interval belongs to its lease: another lease has its own.
        let renew_every = match self.lease {
            Some(_) => self.renew_every,
            None => self.renew_every.or(base.renew_every),
        };
        Self {
            lease: self.lease.or(base.lease),
            renew_every,
            renewal: self.renewal.or(base.renewal),
            max_hold: self.max_hold.or(base.max_hold),
            wait_at_most: self.wait_at_most.or(base.wait_at_most),
            trip_timeout: self.trip_timeout.or(base.trip_timeout),
            retry_unreachable_for: self.retry_unreachable_for.or(base.retry_unreachable_for),
            warn_after: self.warn_after.or(base.warn_after),
            order: self.order.or(base.order),
            local_turns: self.local_turns.or(base.local_turns),
            local_time: self.local_time.or(base.local_time),
            linger: self.linger.or(base.linger),
            readers_join: self.readers_join.or(base.readers_join),
            label: self.label.or(base.label),
            group: self.group.or(base.group),
        }
    }

    /// The lease that was asked for; `None` for the default.
    pub fn asked_lease(&self) -> Option<Duration> {
        self.lease
    }

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
mod tests {
    use super::*;

    fn check(settings: Settings) -> Result<ResolvedSettings> {
        settings.check(&Capabilities::new("test"))
    }

    #[test]
    fn defaults_are_thirty_seconds_and_a_third() {
        let checked = check(Settings::new()).expect("defaults");
        assert_eq!(checked.lease, Duration::from_secs(30));
        assert_eq!(checked.renew_every, Some(Duration::from_secs(10)));
        assert_eq!(checked.validity, Some(Duration::from_millis(29_698)));
        assert!(checked.label.contains(&format!(":{}", std::process::id())));
    }

    #[test]
    fn bad_settings_say_what_to_do() {
        let second = Duration::from_secs(1);
        for (settings, expected) in [
            (Settings::new().lease(Duration::ZERO), "the lease is 0ns"),
            (Settings::new().lease(Duration::MAX), "the lease is"),
            (
                Settings::new().lease(second).renew_every(second),
                "must be from 5ms to 500ms",
            ),
            (
                Settings::new().renew_every(Duration::ZERO),
                "the renewal interval is 0ns",
            ),
            (
                Settings::new().trip_timeout(Duration::ZERO),
                "the trip time-out is 0ns",
            ),
            (
                Settings::new().max_hold(Duration::ZERO),
                "the maximum hold is 0ns",
            ),
            (Settings::new().local_turns(0), "local_turns is 0"),
            (
                Settings::new().readers_join(true).local_turns(1),
                "readers join a hold to save a trip",
            ),
            (
                Settings::new().readers_join(true).order(Order::Strict),
                "readers join a hold to save a trip",
            ),
            (
                Settings::new().readers_join(true).max_hold(second),
                "leave max_hold or readers_join out",
            ),
            (Settings::new().label("a\nb"), "control character"),
            (Settings::new().label("x".repeat(2000)), "limit is 1024"),
        ] {
            let error = check(settings).expect_err(expected);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn a_session_store_refuses_another_lease() {
        let ttl = Duration::from_secs(6);
        let mut capabilities = Capabilities::new("session");
        capabilities.liveness = Liveness::Session { ttl };
        let error = Settings::new()
            .lease(Duration::from_secs(30))
            .check(&capabilities)
            .expect_err("another lease than the session's");
        assert!(error.to_string().contains("live as long as its session"));
        let checked = Settings::new().check(&capabilities).expect("no lease");
        assert_eq!(checked.lease, ttl);
    }

    #[test]
    fn a_hold_of_a_store_that_may_be_early_ends_sooner_and_is_renewed_sooner() {
        let mut capabilities = Capabilities::new("early");
        capabilities.early_expiry = Duration::from_secs(9);
        let lease = Duration::from_secs(30);
        let checked = Settings::new().lease(lease).check(&capabilities);
        let checked = checked.expect("settings");
        let margin = drift_margin(lease) + Duration::from_secs(9);
        assert_eq!(checked.validity, Some(lease - margin));
        assert_eq!(checked.renew_every, Some(Duration::from_secs(7)));
        // A store that claims too much still leaves something.
        capabilities.early_expiry = Duration::MAX;
        let checked = Settings::new().lease(lease).check(&capabilities);
        assert!(checked.expect("settings").validity > Some(Duration::from_secs(14)));
    }

    #[test]
    fn a_process_bound_store_has_no_deadline() {
        let mut capabilities = Capabilities::new("file");
        capabilities.liveness = Liveness::Process;
        let checked = Settings::new().check(&capabilities).expect("defaults");
        assert_eq!(checked.validity, None);
        assert_eq!(checked.renew_every, None);
    }
}
