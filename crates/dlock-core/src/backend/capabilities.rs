use std::fmt;
use std::time::Duration;

use crate::{Error, ErrorKind, Mode, Result};

/// In which order waiters get the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fairness {
    /// Whoever asks at the right moment.
    None,
    /// First come, first served, kept in the store ([C18](crate::contract#c18)).
    Fifo,
}

/// How a waiter learns that its turn has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WakeUp {
    /// The store tells it, normally within `bound` after the release ([C17](crate::contract#c17)): it, and nobody whose turn it is not.
    ///
    /// A store whose release is told to *all* waiters, who then race (a `NOTIFY` or a channel that everybody listens to), says
    /// [`Poll`](WakeUp::Poll), with the pause that a waiter makes when no word comes: the herd is what [C17](crate::contract#c17) forbids.
    Push {
        /// The bound, with nobody disturbing.
        bound: Duration,
    },
    /// It asks again with randomised pauses of at most `longest`; a store may say that they grow while one hold lasts long.
    Poll {
        /// The longest pause between two questions.
        longest: Duration,
    },
}

/// How a holder hears that somebody of another client waits for its lock ([C23](crate::contract#c23)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Hearing {
    /// It does not.
    Never,
    /// It asks as often as it renews: [`Backend::others_wait`](crate::backend::Backend::others_wait) knows.
    Asks,
    /// The store tells it, normally within `bound` after the other began to wait
    /// ([`Backend::wanted`](crate::backend::Backend::wanted)). In case a word is lost, it asks as well.
    Told {
        /// The bound, with nobody disturbing.
        bound: Duration,
    },
}

/// What ends the hold of a holder that died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Liveness {
    /// Each hold has its own lease, which the request chooses.
    Lease,
    /// All holds of a client live as long as its session, which was agreed at connect.
    Session {
        /// How long the store keeps the session without a sign of life.
        ttl: Duration,
    },
    /// The operating system frees it when the process ends; there is no deadline.
    Process,
}

/// Between whom the lock excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reach {
    /// Tasks and threads of one process.
    Process,
    /// Processes of one host.
    Host,
    /// Everybody who reaches the store.
    Network,
}

/// One property that a user can require of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Capability {
    /// Every hold has a token that increases strictly per name ([C11](crate::contract#c11)).
    Fencing,
    /// First come, first served ([C18](crate::contract#c18)).
    Fair,
    /// Waiters are woken by the store instead of asking again and again ([C17](crate::contract#c17)).
    Push,
    /// Read-write locks ([C19](crate::contract#c19)).
    Shared,
    /// Atomic downgrade from write to read.
    Downgrade,
    /// Semaphores ([C19](crate::contract#c19)).
    Permits,
    /// Excludes between the processes of a host at least.
    HostWide,
    /// Excludes between machines.
    NetworkWide,
    /// `inspect` and `list`.
    Inspect,
    /// `break_lock`.
    Break,
    /// Tasks of one client pass a lock on to each other without a trip ([C21](crate::contract#c21)).
    PassOn,
    /// A holder hears that others wait ([C23](crate::contract#c23)).
    Wanted,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fencing => "fencing tokens",
            Self::Fair => "first come, first served",
            Self::Push => "wake-up by notification",
            Self::Shared => "read-write locks",
            Self::Downgrade => "downgrade from write to read",
            Self::Permits => "semaphores",
            Self::HostWide => "exclusion between processes",
            Self::NetworkWide => "exclusion between machines",
            Self::Inspect => "inspect and list",
            Self::Break => "breaking a lock by force",
            Self::PassOn => "passing a lock on between tasks without a trip",
            Self::Wanted => "hearing that others wait",
        })
    }
}

/// What a backend can do, as data: [`require`](Capabilities::require) and the conformance suite read it.
///
/// Start from [`Capabilities::new`], which claims nothing, and set the fields that hold:
///
/// ```
/// use dlock_core::{Capabilities, Capability, Fairness};
///
/// let mut capabilities = Capabilities::new("example");
/// capabilities.fencing = true;
/// capabilities.fairness = Fairness::Fifo;
/// assert!(capabilities.has(Capability::Fair));
/// assert!(capabilities.require(&[Capability::Permits]).is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The short name of the backend, as it stands in URLs and errors.
    pub backend: &'static str,
    /// Every hold has a token that increases strictly per name ([C11](crate::contract#c11)).
    pub fencing: bool,
    /// The order of waiters ([C18](crate::contract#c18)).
    pub fairness: Fairness,
    /// How waiters wake ([C17](crate::contract#c17)).
    pub wake_up: WakeUp,
    /// What ends a dead holder's hold ([C12](crate::contract#c12)).
    pub liveness: Liveness,
    /// Between whom it excludes ([C1](crate::contract#c1)).
    pub reach: Reach,
    /// Shared holds, for read-write locks ([C19](crate::contract#c19)).
    pub shared: bool,
    /// Atomic downgrade of an exclusive hold to a shared one.
    pub downgrade: bool,
    /// Permits, for semaphores ([C19](crate::contract#c19)).
    pub permits: bool,
    /// `inspect` and `list`.
    pub inspect: bool,
    /// `break_lock`.
    pub break_lock: bool,
    /// How many tokens in a row an exclusive grant brings, its own and those after it: none of them is ever given to another hold of
    /// the name ([C11](crate::contract#c11)). The tasks of a client then pass the hold on to each other without a trip, each with the next of them,
    /// before it goes back to the store ([C21](crate::contract#c21)). One, the default: every turn is asked of the store.
    pub turns: u32,
    /// How a holder hears that others wait ([C23](crate::contract#c23)).
    pub wanted: Hearing,
    /// The shortest lease the store can keep.
    pub shortest_lease: Duration,
    /// By how much the store may end a hold before its lease or session is over, counted from the last renewal: a hold is taken for
    /// lost that much sooner. Less than half of the lease. Zero for most stores.
    pub early_expiry: Duration,
    /// What the store's durability means for a lock, for people to read.
    pub durability: &'static str,
}

impl Capabilities {
    /// A backend that only excludes: the starting point for a new one.
    pub fn new(backend: &'static str) -> Self {
        Self {
            backend,
            fencing: false,
            fairness: Fairness::None,
            wake_up: WakeUp::Poll {
                longest: Duration::from_millis(100),
            },
            liveness: Liveness::Lease,
            reach: Reach::Network,
            shared: false,
            downgrade: false,
            permits: false,
            inspect: false,
            break_lock: false,
            turns: 1,
            wanted: Hearing::Never,
            shortest_lease: Duration::from_millis(20),
            early_expiry: Duration::ZERO,
            durability: "not stated",
        }
    }

    /// Whether it has one property.
    pub fn has(&self, capability: Capability) -> bool {
        match capability {
            Capability::Fencing => self.fencing,
            Capability::Fair => self.fairness == Fairness::Fifo,
            Capability::Push => matches!(self.wake_up, WakeUp::Push { .. }),
            Capability::Shared => self.shared,
            Capability::Downgrade => self.downgrade,
            Capability::Permits => self.permits,
            Capability::HostWide => self.reach >= Reach::Host,
            Capability::NetworkWide => self.reach >= Reach::Network,
            Capability::Inspect => self.inspect,
            Capability::Break => self.break_lock,
            Capability::PassOn => self.turns > 1,
            Capability::Wanted => self.wanted != Hearing::Never,
        }
    }

    /// Refuses a backend that lacks something.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], naming every property that is missing.
    pub fn require(&self, needed: &[Capability]) -> Result<()> {
        let missing: Vec<String> = needed
            .iter()
            .filter(|capability| !self.has(**capability))
            .map(ToString::to_string)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "this backend lacks {}: choose another backend, or do not require it",
                missing.join(", ")
            ),
        )
        .with_backend(self.backend))
    }

    pub(crate) fn require_mode(&self, mode: Mode) -> Result<()> {
        match mode {
            Mode::Exclusive => Ok(()),
            Mode::Shared => self.require(&[Capability::Shared]),
            Mode::Permit { .. } => self.require(&[Capability::Permits]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn require_names_everything_that_is_missing() {
        let error = Capabilities::new("toy")
            .require(&[
                Capability::Fencing,
                Capability::NetworkWide,
                Capability::Permits,
            ])
            .expect_err("a toy has no fencing");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.starts_with("toy: "), "{text}");
        assert!(text.contains("fencing tokens, semaphores"), "{text}");
    }
}
