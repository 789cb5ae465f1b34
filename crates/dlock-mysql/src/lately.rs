//! Names that others were lately seen to hold or to wait for: whoever wants one of them again stands in line, in place of a try that would find the lock busy.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dlock_core::Name;

/// For so long a name is remembered.
const REMEMBERED: Duration = Duration::from_secs(2);
/// When so many names are remembered, those are forgotten whose time is over.
const MANY_NAMES: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct LatelyBusy {
    until: Mutex<HashMap<Name, Instant>>,
}

impl LatelyBusy {
    /// Others wait for a name, or have it.
    pub(crate) fn note(&self, name: &Name) {
        let now = Instant::now();
        let mut names = self.until();
        if names.len() >= MANY_NAMES {
            names.retain(|_, until| *until > now);
        }
        if names.len() < 2 * MANY_NAMES {
            names.insert(name.clone(), now + REMEMBERED);
        }
    }

    /// Nobody had it.
    pub(crate) fn forget(&self, name: &Name) {
        self.until().remove(name);
    }

    /// Whether others were lately seen.
    pub(crate) fn has(&self, name: &Name) -> bool {
        let names = self.until();
        names.get(name).is_some_and(|until| *until > Instant::now())
    }

    fn until(&self) -> MutexGuard<'_, HashMap<Name, Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_remembered_and_forgotten_and_never_too_many() {
        let name = |text: &str| Name::new(text).expect("a good name");
        let busy = LatelyBusy::default();
        busy.note(&name("a"));
        assert!(busy.has(&name("a")) && !busy.has(&name("b")));
        busy.forget(&name("a"));
        assert!(!busy.has(&name("a")));
        for number in 0..3 * MANY_NAMES {
            busy.note(&name(&number.to_string()));
        }
        assert_eq!(busy.until().len(), 2 * MANY_NAMES);
        assert!(!busy.has(&name(&(3 * MANY_NAMES - 1).to_string())));
    }
}
