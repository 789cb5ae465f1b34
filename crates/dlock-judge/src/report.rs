use std::fmt;

use serde::{Deserialize, Serialize};

use crate::history::History;
use crate::{exclusion, linear, live, order, registers, tokens};

/// What was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Somebody held beside one whom the lock excludes (C1, C19).
    TwoHolders,
    /// A later token was lower (C11).
    TokenOrder,
    /// A token came twice (C11).
    TokenTwice,
    /// A hold had no token, and the store declares them (C11).
    TokenMissing,
    /// The fenced register took a write with a lower token than one before.
    StaleWrite,
    /// An acknowledged write of the fenced register is lost.
    LostWrite,
    /// The unfenced register lost an update, and nobody was seen to stand still: somebody wrote who was told to hold while another did.
    LostUpdate,
    /// The unfenced register lost an update to a holder that stood still between its check and its write, or whose write was under way when its validity
    /// passed. What a lease cannot promise: no clause is broken.
    LateWrite,
    /// No order of grants and ends explains the answers.
    NotLinearizable,
    /// Somebody was served before one who came first (C18).
    OutOfOrder,
    /// Nobody got the lock in time after all was well again, or a call did not end (C12, C13).
    Stuck,
    /// Something is left in the store (C16).
    LeftBehind,
}

impl Kind {
    /// Whether two may have worked on the protected data at once, or the data suffered where they must not.
    #[must_use]
    pub fn is_unsafe(self) -> bool {
        !matches!(
            self,
            Self::LateWrite | Self::OutOfOrder | Self::Stuck | Self::LeftBehind
        )
    }

    /// As tables call it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TwoHolders => "two holders",
            Self::TokenOrder => "tokens out of order",
            Self::TokenTwice => "a token twice",
            Self::TokenMissing => "no token",
            Self::StaleWrite => "stale write taken",
            Self::LostWrite => "fenced write lost",
            Self::LostUpdate => "unfenced update lost",
            Self::LateWrite => "unfenced update lost to a late write",
            Self::NotLinearizable => "not linearizable",
            Self::OutOfOrder => "out of order",
            Self::Stuck => "stuck",
            Self::LeftBehind => "left behind",
        }
    }
}

/// One thing that a checker found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was broken.
    pub kind: Kind,
    /// On which lock.
    pub lock: String,
    /// When.
    pub at: u64,
    /// By whom.
    pub detail: String,
}

impl Finding {
    pub(crate) fn new(kind: Kind, lock: &str, at: u64, detail: impl Into<String>) -> Self {
        Self {
            kind,
            lock: lock.to_owned(),
            at,
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, lock) = (self.kind.as_str(), &self.lock);
        write!(f, "{kind}: lock {lock} at {}: {}", self.at, self.detail)
    }
}

/// All checkers, one after the other.
#[must_use]
pub fn judge(history: &History) -> Vec<Finding> {
    let checkers = [
        exclusion::check,
        tokens::check,
        registers::check,
        linear::check,
        order::check,
        live::check,
    ];
    checkers.iter().flat_map(|check| check(history)).collect()
}
