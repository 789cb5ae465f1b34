use std::fmt;

use dlock_core::{Capabilities, Capability, Liveness, Result};
use futures::future::LocalBoxFuture;

use crate::{Ability, Harness, World};

/// One property that a backend must have.
pub struct Case {
    /// What must hold, as a sentence with underscores.
    pub name: &'static str,
    /// The clause of the contract that it belongs to.
    pub clause: Clause,
    /// What it needs; when something is missing, the case is skipped with the reason.
    pub needs: &'static [Need],
    /// What in a backend usually makes it fail.
    pub cause: &'static str,
    pub(crate) run: fn(World) -> LocalBoxFuture<'static, Result<()>>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.clause, self.name)
    }
}

impl Case {
    /// Why this case cannot run; `None` when it can.
    pub fn missing(&self, capabilities: &Capabilities, harness: &dyn Harness) -> Option<String> {
        let reasons: Vec<String> = self
            .needs
            .iter()
            .filter_map(|need| need.missing(capabilities, harness))
            .collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// What a case needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// The store has a property.
    Can(Capability),
    /// The harness has an ability.
    Able(Ability),
    /// Holds have a deadline: anything but [`Liveness::Process`].
    Deadline,
    /// Each hold has its own lease: [`Liveness::Lease`].
    Lease,
    /// A hold can be ended behind its holder's back: by [`Ability::Expire`], by its lease, or by breaking it.
    EndHold,
    /// A program that can be started as a helper, see [`Harness::helper`].
    Worker,
    /// Holds that outlive their connection: [`Harness::holds_outlive_connections`].
    Movable,
    /// A helper whose time of day is wrong: a process, and `libfaketime`.
    SkewedWorker,
    /// The store keeps waiters in order, and shows them to those who look: [`Harness::shows_waiters`].
    Waiters,
    /// No other case runs at the same time.
    Alone,
}

impl Need {
    fn missing(self, capabilities: &Capabilities, harness: &dyn Harness) -> Option<String> {
        let able = |ability| harness.abilities().contains(&ability);
        match self {
            Self::Can(capability) if !capabilities.has(capability) => {
                Some(format!("the store does not offer {capability}"))
            }
            Self::Able(ability) if !able(ability) => Some(match harness.why_not(ability) {
                Some(reason) => format!("the harness cannot {ability}: {reason}"),
                None => format!("the harness cannot {ability}"),
            }),
            Self::Deadline if capabilities.liveness == Liveness::Process => {
                Some("holds live as long as their process and have no deadline".to_owned())
            }
            Self::Lease if capabilities.liveness != Liveness::Lease => {
                Some("holds have no lease of their own".to_owned())
            }
            Self::EndHold
                if !able(Ability::Expire)
                    && capabilities.liveness != Liveness::Lease
                    && !capabilities.break_lock =>
            {
                Some("the harness cannot expire a hold, and nothing else ends one".to_owned())
            }
            Self::Waiters if !capabilities.has(Capability::Fair) || !harness.shows_waiters() => {
                Some("those who wait are not shown, or in no order".to_owned())
            }
            Self::Movable if !harness.holds_outlive_connections() => {
                Some("a hold belongs to its connection, and ends with it".to_owned())
            }
            Self::Worker => crate::worker::missing(capabilities, harness),
            Self::SkewedWorker => crate::worker::missing_skewed(capabilities, harness),
            _ => None,
        }
    }
}

macro_rules! clauses {
    ($($clause:ident $text:literal $cause:literal,)*) => {
        /// A clause of the contract.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Clause {
            $(#[doc = $text] $clause,)*
        }

        impl Clause {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$clause,)*];

            /// What it says, in a few words.
            pub fn summary(self) -> &'static str {
                match self {
                    $(Self::$clause => $text,)*
                }
            }

            /// What in a backend usually breaks it.
            pub const fn usual_cause(self) -> &'static str {
                match self {
                    $(Self::$clause => $cause,)*
                }
            }
        }
    };
}

clauses! {
    C1 "At most one holder whose validity has not passed."
        "the check that the lock is free and the write that takes it are two steps: make them one (a transaction, a script, a conditional write)",
    C2 "Not reentrant by accident."
        "the owner in the store is the client, session or connection: it must be `Request::attempt`",
    C3 "Names are independent, and exact."
        "the mapping from names to keys loses something (case, trailing spaces, length, a separator), or names are spliced into a statement instead of bound",
    C4 "A try never waits; a time limit is kept."
        "`try_acquire` waits for the holder, or a call blocks the thread so that core cannot drop it",
    C5 "Unreachable is an error, never \"busy\"."
        "every error is taken for \"busy\", or the client's error is not mapped to `Unreachable` or `TimedOut`; or a broken connection is kept",
    C6 "A stale release, renewal or undo touches nothing; release tells what it found."
        "a release, renewal or undo finds the hold by its name alone: compare `attempt` in the same atomic step",
    C7 "Validity counts from before the request was sent."
        "the lease is counted from the reply: read `Request::now` right before the request that starts it is sent",
    C8 "Loss is told in time, without the store."
        "`renew` says `Extended` without an answer of the store that was asked after the call began",
    C9 "Loss never fires on release, is sticky, and has a reason."
        "`renew` or `release` says `Lost` of a hold that was good, or of one that was just released",
    C10 "A failed renewal within the lease is not a loss."
        "a failure to reach the store is reported as `Renewal::Lost`: without the store's word it is `Renewal::Failed`",
    C11 "Tokens strictly increase."
        "the counter is kept with the lock and goes away with it, or belongs to a client: keep one for the name, or for the store, that outlives every hold",
    C12 "A killed holder frees the lock within lease + 1 s."
        "a hold has no end at the store, or one that is counted in another unit or from another clock",
    C13 "A cancelled acquire leaves nothing."
        "`abandon` does not undo all that an attempt can leave (a hold, a place in the queue), or does not refuse a request of it that comes later",
    C14 "Dropping a guard never blocks or panics, and frees."
        "`release` needs the runtime or the connection that made the hold",
    C15 "A lost reply neither leaks a hold nor reports a false one."
        "an attempt that is sent twice does not find itself: look for `attempt` before looking whether the lock is free",
    C16 "Nothing is left after many cycles."
        "`release` or `abandon` leaves a row, key, subscription or connection behind, or `close` does not end what `connect` began",
    C17 "A waiter wakes in time, and only one."
        "the waiter begins to listen after it has looked, so that a release in between is missed; or the release tells everybody",
    C18 "First come, first served; a dead waiter stalls nobody."
        "waiters have no place in the store, or a place outlives its waiter: give it an end that the waiter renews",
    C19 "Readers share, writers exclude and are not starved; permits keep the limit."
        "modes do not see each other, a waiting writer does not keep new readers out, or permits are counted and taken in two steps",
    C20 "`max_hold` ends a hold."
        "a hold is kept alive by something else than core's renewals",
    C21 "A hold that is passed on between tasks, or lingers, keeps others out no longer than its bound."
        "`turns` promises more tokens than the store sets aside with each grant",
    C22 "A write that the store refuses grants nothing and tells nobody."
        "the attempt answers, or a waiter is told, before the write is confirmed",
    C23 "A holder hears that others wait."
        "`wanted` and `others_wait` do not see the attempts that wait in `acquire`",
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The case's own word, where it has one, else that of its clause.
pub(crate) const fn first(causes: &[&'static str]) -> &'static str {
    match causes {
        [first, ..] => first,
        [] => "",
    }
}

/// Lists the cases of a file: an `async fn` that is not listed is dead code, which the compiler reports.
macro_rules! case_list {
    ($($clause:ident $name:ident $([$($need:expr),+ $(,)?])? $($cause:literal)?;)*) => {
        pub(super) const CASES: &[$crate::Case] = &[$(
            $crate::Case {
                name: stringify!($name),
                clause: $crate::Clause::$clause,
                needs: &[$($($need),+)?],
                cause: $crate::case::first(&[$($cause,)? $crate::Clause::$clause.usual_cause()]),
                run: |world| Box::pin($name(world)),
            },
        )*];
    };
}

pub(crate) use case_list;
