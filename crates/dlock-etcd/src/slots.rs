//! Which key names of this client are in use.
//!
//! etcd remembers every key name until its history is compacted, and a look at a lock's keys walks over all of them. So names are
//! used again, the lowest first: a lock has as many as it ever had contenders at once, however often it is taken.

use std::collections::{BTreeSet, HashMap};

use dlock_core::Name;

/// The numbers in use, by lease and lock. A lease that ended is never asked for a number again.
#[derive(Debug, Default)]
pub(crate) struct Slots(HashMap<(i64, Name), BTreeSet<u32>>);

impl Slots {
    /// Takes the lowest number that is free.
    pub(crate) fn take(&mut self, lease: i64, name: &Name) -> u32 {
        let used = self.0.entry((lease, name.clone())).or_default();
        let free = (0..)
            .zip(used.iter())
            .find(|(free, used)| free != *used)
            .map(|(free, _)| free);
        let slot = free.unwrap_or_else(|| u32::try_from(used.len()).unwrap_or(u32::MAX));
        used.insert(slot);
        slot
    }

    pub(crate) fn give_back(&mut self, lease: i64, name: &Name, slot: u32) {
        let place = (lease, name.clone());
        if let Some(used) = self.0.get_mut(&place) {
            used.remove(&slot);
            if used.is_empty() {
                self.0.remove(&place);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_taken_for_each_lock_and_lease() {
        let mut slots = Slots::default();
        let name = |text| Name::new(text).expect("a name");
        let (a, b) = (name("a"), name("b"));
        assert_eq!([0, 1, 2].map(|_| slots.take(7, &a)), [0, 1, 2]);
        assert_eq!(slots.take(7, &b), 0);
        assert_eq!(slots.take(8, &a), 0);
        slots.give_back(7, &a, 1);
        slots.give_back(7, &a, 0);
        assert_eq!([0, 1, 2].map(|_| slots.take(7, &a)), [0, 1, 3]);
    }

    #[test]
    fn what_is_given_back_leaves_nothing() {
        let mut slots = Slots::default();
        let name = Name::new("a").expect("a name");
        let slot = slots.take(7, &name);
        slots.give_back(7, &name, slot);
        slots.give_back(7, &name, slot);
        assert!(slots.is_empty());
    }
}
