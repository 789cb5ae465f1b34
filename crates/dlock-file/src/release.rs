//! Free if still the owner; and the downgrade, which is the same step with another ending.

use dlock_core::backend::AttemptId;
use dlock_core::{Error, ErrorKind, Mode, Name, Released, Result};

use crate::connect::Store;
use crate::key::Key;

impl Store {
    pub(crate) fn release(&self, name: &Name, attempt: AttemptId) -> Result<Released> {
        let key = Key::of(name);
        let gate = match self.gate(&key) {
            Ok(gate) => gate,
            // The folder was removed, and every hold with it.
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                self.strike_line(attempt);
                return Ok(Released::AlreadyLost);
            }
            Err(error) => return Err(error),
        };
        let mut page = self.page(&key, name)?;
        let Some(place) = page
            .record
            .holders
            .iter()
            .position(|h| h.attempt == attempt)
        else {
            self.strike_line(attempt);
            return Ok(Released::AlreadyLost);
        };
        page.record.holders.remove(place);
        page.write()?;
        self.strike_line(attempt);
        // First out of the gate, then the bell: the one who wakes does not find it shut.
        drop(gate);
        self.wake_next(&page.record);
        Ok(Released::Freed)
    }

    pub(crate) fn downgrade(&self, name: &Name, attempt: AttemptId) -> Result<()> {
        let key = Key::of(name);
        let _gate = self.gate(&key)?;
        let mut page = self.page(&key, name)?;
        let Some(holder) = page
            .record
            .holders
            .iter_mut()
            .find(|h| h.attempt == attempt)
        else {
            return Err(Error::new(
                ErrorKind::Lost,
                "the hold is gone, so there is nothing to downgrade",
            ));
        };
        if holder.mode == Mode::Exclusive {
            holder.mode = Mode::Shared;
            page.write()?;
            self.wake_next(&page.record);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use dlock_core::SystemClock;
    use dlock_core::backend::Request;

    use super::*;
    use crate::access::Access;
    use crate::acquire::{LockSpec, Taken};

    #[test]
    fn a_release_finds_nothing_only_where_the_folder_is_gone() {
        let dir = tempfile::tempdir().expect("temp");
        let folder = dir.path().join("locks");
        let store = Store::open(&folder, Access::Owner).expect("made");
        let name = Name::new("a").expect("good");
        let clock = std::sync::Arc::new(SystemClock);
        let spec = LockSpec::of(&Request::new(name.clone(), Mode::Exclusive, clock));
        let taken = store.try_acquire(&spec, None).expect("free");
        assert!(matches!(taken, Taken::Held { .. }));
        // Something else stands where the gate was.
        let gate = store.path("gates", &format!("{:02x}", Key::of(&name).gate));
        fs::remove_file(&gate).expect("there");
        fs::create_dir(&gate).expect("made");
        let refused = store.release(&name, spec.attempt).expect_err("no gate");
        assert_eq!(refused.kind(), ErrorKind::Store);
        fs::remove_dir_all(&folder).expect("there");
        let found = store.release(&name, spec.attempt).expect("nothing left");
        assert_eq!(found, Released::AlreadyLost);
    }
}
