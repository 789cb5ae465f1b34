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
            Self::Able(ability) if !able(ability) => Some(format!("the harness cannot {ability}")),
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
            Self::Worker => crate::worker::missing(capabilities, harness),
            _ => None,
        }
    }
}

macro_rules! clauses {
    ($($clause:ident $text:literal,)*) => {
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
        }
    };
}

clauses! {
    C1 "At most one holder whose validity has not passed.",
    C2 "Not reentrant by accident.",
    C3 "Names are independent, and exact.",
    C4 "A try never waits; a time limit is kept.",
    C5 "Unreachable is an error, never \"busy\".",
    C6 "A stale release, renewal or undo touches nothing; release tells what it found.",
    C7 "Validity counts from before the request was sent.",
    C8 "Loss is told in time, without the store.",
    C9 "Loss never fires on release, is sticky, and has a reason.",
    C10 "A failed renewal within the lease is not a loss.",
    C11 "Tokens strictly increase.",
    C12 "A killed holder frees the lock within lease + 1 s.",
    C13 "A cancelled acquire leaves nothing.",
    C14 "Dropping a guard never blocks or panics, and frees.",
    C15 "A lost reply neither leaks a hold nor reports a false one.",
    C16 "Nothing is left after many cycles.",
    C17 "A waiter wakes in time, and only one.",
    C18 "First come, first served; a dead waiter stalls nobody.",
    C19 "Readers share, writers exclude and are not starved; permits keep the limit.",
    C20 "`max_hold` ends a hold.",
    C21 "A hold that is passed on between tasks keeps others out no longer than its bound.",
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Lists the cases of a file: an `async fn` that is not listed is dead code, which the compiler reports.
macro_rules! case_list {
    ($($clause:ident $name:ident $([$($need:expr),+ $(,)?])?;)*) => {
        pub(super) const CASES: &[$crate::Case] = &[$(
            $crate::Case {
                name: stringify!($name),
                clause: $crate::Clause::$clause,
                needs: &[$($($need),+)?],
                run: |world| Box::pin($name(world)),
            },
        )*];
    };
}

pub(crate) use case_list;
