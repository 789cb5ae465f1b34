//! What befalls a hold after it was granted: renewal, release, undo, downgrade, and the look of others at it.

use dlock_core::backend::{AttemptId, Request};
use dlock_core::{FencingToken, HolderInfo, LockInfo, Mode, Name, WaiterInfo};

use super::flaws::Flaw;
use super::table::{Holder, TOMBSTONE, TURNS, Table, Time, micros};

impl Table {
    /// Whether the hold was there. `None` for the answer to a mode that is not the hold's.
    pub(crate) fn renew(
        &mut self,
        name: &Name,
        attempt: AttemptId,
        mode: Mode,
        lease: std::time::Duration,
    ) -> bool {
        let key = self.key(name);
        if self.flaw != Flaw::RenewalRevives {
            self.sweep(&key);
        }
        let (flaw, end, now) = (self.flaw, self.end(lease), self.now());
        if flaw == Flaw::RenewalMakesItAnew && !self.rows.contains_key(&key) {
            self.counter += TURNS;
            let token = self.counter;
            self.row(&key, name).holders.push(Holder {
                attempt,
                mode,
                token,
                label: String::new(),
                lease,
                ends: end,
            });
            return true;
        }
        let Some(row) = self.rows.get_mut(&key) else {
            return false;
        };
        let ours = row.holders.iter().position(|holder| {
            (flaw == Flaw::RenewalOfAnybody || holder.attempt == attempt)
                && (![Flaw::RenewalByMode, Flaw::FindsByMode].contains(&flaw)
                    || holder.mode == mode)
        });
        let Some(at) = ours else { return false };
        for (index, holder) in row.holders.iter_mut().enumerate() {
            let of_readers = [
                Flaw::ReaderRenewsAll,
                Flaw::OneEndForAllReaders,
                Flaw::LastReaderSetsTheEnd,
            ];
            let together = flaw == Flaw::OneEndForAll
                || of_readers.contains(&flaw) && holder.mode == Mode::Shared;
            if index != at && !together {
                continue;
            }
            holder.ends = match flaw {
                Flaw::RenewalExtendsNothing => holder.ends,
                Flaw::RenewalOfThirtySeconds => now + 30_000_000,
                Flaw::RenewalAdds => holder.ends + micros(lease),
                _ => end,
            };
        }
        true
    }

    /// Whether the hold was there.
    pub(crate) fn release(&mut self, name: &Name, attempt: AttemptId, mode: Mode) -> bool {
        let (key, flaw) = (self.key(name), self.flaw);
        if flaw != Flaw::EndedIsFreed {
            self.sweep(&key);
        }
        if flaw == Flaw::ReleaseDropsTheQueue
            && let Some(row) = self.rows.get_mut(&key)
        {
            row.waiters.clear();
        }
        if flaw == Flaw::TombstoneEndsWithTheNext {
            self.tombs.retain(|_, (of, _)| *of != key);
        }
        let is_there = |holder: &Holder| holder.attempt == attempt;
        let ours = self
            .rows
            .get(&key)
            .is_some_and(|row| row.holders.iter().any(is_there));
        let is_permit = |mode| matches!(mode, Mode::Permit { .. });
        let is_meant = |holder: &Holder| match flaw {
            Flaw::ReleaseOfAnybody => true,
            Flaw::ReaderFreesAll => is_there(holder) || ours && holder.mode == Mode::Shared,
            Flaw::PermitFreesAll => is_there(holder) || ours && is_permit(holder.mode),
            Flaw::ReleaseByMode | Flaw::FindsByMode => is_there(holder) && holder.mode == mode,
            _ => is_there(holder),
        };
        if flaw == Flaw::RowStays && ours {
            self.left += 1;
        }
        self.drop_holder(&key, is_meant, flaw != Flaw::ReleaseWakesNobody)
    }

    /// Whether anything of it was there.
    pub(crate) fn abandon(&mut self, request: &Request, attempt: AttemptId) -> bool {
        let (key, flaw) = (self.key(request.name()), self.flaw);
        if flaw == Flaw::AbandonDoesNothing {
            return true;
        }
        let mut found = false;
        if flaw != Flaw::AbandonLeavesThePlace {
            found |= self.leave(request, attempt);
        }
        if flaw != Flaw::AbandonLeavesTheHold {
            let is_meant =
                |holder: &Holder| flaw == Flaw::AbandonOfAnybody || holder.attempt == attempt;
            let asleep = [Flaw::AbandonWakesNobody, Flaw::AbandonFreesWithoutWord];
            found |= self.drop_holder(&key, is_meant, !asleep.contains(&flaw));
        }
        let lasts: Time = match flaw {
            Flaw::NoTombstone => 0,
            Flaw::TombstoneIfFound if !found => 0,
            Flaw::TombstoneIfNotFound if found => 0,
            Flaw::TombstoneOfASecond => 1_000_000,
            _ => TOMBSTONE,
        };
        if flaw == Flaw::OneTombstonePerName {
            self.tombs.retain(|_, (of, _)| *of != key);
        }
        let until = self.now() + lasts;
        self.tombs.insert(attempt, (key.clone(), until));
        if flaw == Flaw::AbandonLeavesARow {
            self.left += 1;
        }
        found
    }

    /// Takes a waiter out of the queue; whether it was there.
    pub(crate) fn leave(&mut self, request: &Request, attempt: AttemptId) -> bool {
        let key = self.key(request.name());
        let Some(row) = self.rows.get_mut(&key) else {
            return false;
        };
        let before = row.waiters.len();
        row.waiters.retain(|waiter| waiter.attempt != attempt);
        let found = row.waiters.len() < before;
        if self.flaw != Flaw::AbandonWakesNobody || row.waiters.is_empty() {
            self.settle(&key);
        }
        found
    }

    /// Frees what was granted at the moment at which its waiter gave up.
    pub(crate) fn give_back(&mut self, request: &Request, attempt: AttemptId) {
        let key = self.key(request.name());
        self.drop_holder(&key, |holder| holder.attempt == attempt, true);
    }

    pub(crate) fn is_waited_for(&self, name: &Name, counts: impl Fn(Mode) -> bool) -> bool {
        let row = self.rows.get(&self.key(name));
        row.is_some_and(|row| {
            row.waiters
                .iter()
                .any(|waiter| counts(waiter.mode) && !waiter.is_gone())
        })
    }

    /// Whether the hold was there.
    pub(crate) fn downgrade(&mut self, name: &Name, attempt: AttemptId) -> bool {
        let (key, flaw) = (self.key(name), self.flaw);
        if flaw != Flaw::DowngradeRevives {
            self.sweep(&key);
        }
        let now = self.now();
        let Some(row) = self.rows.get_mut(&key) else {
            return flaw == Flaw::DowngradeOfTheGoneIsDone;
        };
        let any = flaw == Flaw::DowngradeOfAnybody;
        let Some(at) = row
            .holders
            .iter()
            .position(|holder| any || holder.attempt == attempt)
        else {
            return flaw == Flaw::DowngradeOfTheGoneIsDone;
        };
        match flaw {
            Flaw::DowngradeDoesNothing => return true,
            Flaw::DowngradeTwiceIsLost if row.holders[at].mode == Mode::Shared => return false,
            Flaw::DowngradeHasAGap => {
                let mut hold = row.holders.remove(at);
                self.settle(&key);
                let row = self.row(&key, name);
                if row.holders.iter().any(|holder| holder.mode != Mode::Shared) {
                    return false;
                }
                hold.mode = Mode::Shared;
                row.holders.push(hold);
                return true;
            }
            _ => {}
        }
        row.holders[at].mode = Mode::Shared;
        if flaw == Flaw::DowngradeRevives && row.holders[at].ends <= now {
            row.holders[at].ends = now + micros(row.holders[at].lease);
        }
        if flaw == Flaw::DowngradeNeverEnds {
            row.holders[at].ends += 86_400_000_000;
        }
        if flaw == Flaw::DowngradeOvertakes {
            row.waiters
                .make_contiguous()
                .sort_by_key(|waiter| waiter.mode != Mode::Shared);
        }
        if flaw != Flaw::DowngradeWakesNobody {
            self.settle(&key);
        }
        true
    }

    pub(crate) fn break_lock(&mut self, name: &Name) -> bool {
        let (key, flaw) = (self.key(name), self.flaw);
        if flaw != Flaw::BreakOfTheEndedIsTrue {
            self.sweep(&key);
        }
        if flaw == Flaw::BreakDropsTheQueue
            && let Some(row) = self.rows.get_mut(&key)
        {
            row.waiters.clear();
        }
        let first = self
            .rows
            .get(&key)
            .and_then(|row| Some(row.holders.first()?.attempt));
        let is_meant = |holder: &Holder| match flaw {
            Flaw::BreakFreesTheFirst => Some(holder.attempt) == first,
            Flaw::BreakLeavesReaders => holder.mode != Mode::Shared,
            _ => true,
        };
        let broken = self.drop_holder(&key, is_meant, flaw != Flaw::BreakWakesNobody);
        if flaw == Flaw::BreakResetsTheToken {
            self.counter = 0;
        }
        match flaw {
            Flaw::BreakSaysTrue => true,
            Flaw::BreakSaysFalse => false,
            _ => broken,
        }
    }

    pub(crate) fn inspect(&mut self, name: &Name) -> LockInfo {
        let (key, flaw) = (self.key(name), self.flaw);
        if flaw != Flaw::InspectShowsTheEnded {
            self.sweep(&key);
        }
        if flaw == Flaw::InspectLeavesARow && !self.rows.contains_key(&key) {
            self.left += 1;
        }
        self.info(&key, name)
    }

    fn info(&self, key: &str, name: &Name) -> LockInfo {
        let (flaw, now) = (self.flaw, self.now());
        let mut info = LockInfo::new(name.clone());
        let Some(row) = self.rows.get(key) else {
            return info;
        };
        for holder in &row.holders {
            let mode = match flaw {
                Flaw::InspectCallsAllExclusive => Mode::Exclusive,
                _ => holder.mode,
            };
            let mut known = HolderInfo::new(holder.attempt.to_string(), mode);
            if flaw != Flaw::InspectShowsNoLabel {
                known.label.clone_from(&holder.label);
            }
            let next = u64::from(flaw == Flaw::InspectShowsTheNextToken);
            known.token = Some(FencingToken::new(holder.token + next));
            let left = match flaw {
                Flaw::InspectShowsTheWholeLease => micros(holder.lease),
                _ => holder.ends - now,
            };
            known.expires_in = Some(std::time::Duration::from_micros(
                u64::try_from(left).unwrap_or(0),
            ));
            info.holders.push(known);
        }
        for waiter in &row.waiters {
            let mut known = WaiterInfo::new(waiter.attempt.to_string(), waiter.mode);
            known.label.clone_from(&waiter.label);
            info.waiters.push(known);
        }
        match flaw {
            Flaw::InspectShowsNoWaiters => info.waiters.clear(),
            Flaw::InspectReversesTheWaiters => info.waiters.reverse(),
            _ => {}
        }
        info
    }

    pub(crate) fn list(&mut self, prefix: &str) -> Vec<LockInfo> {
        let flaw = self.flaw;
        let fits = |name: &str| match flaw {
            Flaw::ListIgnoresThePrefix => true,
            Flaw::ListIgnoresCase => name.to_lowercase().starts_with(&prefix.to_lowercase()),
            Flaw::ListTakesAPattern => {
                let same = |(asked, found): (char, char)| asked == '_' || asked == found;
                name.chars().count() >= prefix.chars().count()
                    && prefix.chars().zip(name.chars()).all(same)
            }
            _ => name.starts_with(prefix),
        };
        let names: Vec<Name> = self
            .rows
            .values()
            .map(|row| row.name.clone())
            .filter(|name| fits(name))
            .collect();
        let mut found = Vec::new();
        for name in names {
            let key = self.key(&name);
            if flaw != Flaw::ListShowsTheEnded {
                self.sweep(&key);
            }
            let info = self.info(&key, &name);
            if info.is_locked() {
                found.push(info);
            }
        }
        match flaw {
            Flaw::ListShowsTheUnused => {
                let unused = self
                    .used
                    .iter()
                    .filter(|name| fits(name) && !self.rows.contains_key(&self.key(name)));
                found.extend(unused.map(|name| LockInfo::new(name.clone())));
            }
            Flaw::ListIsNotSorted => found.reverse(),
            Flaw::ListEndsEarly => found.truncate(100),
            _ => {}
        }
        found
    }

    pub(crate) fn expire(&mut self, name: &Name) {
        let (key, now) = (self.key(name), self.now());
        for holder in self
            .rows
            .get_mut(&key)
            .into_iter()
            .flat_map(|row| &mut row.holders)
        {
            holder.ends = holder.ends.min(now - 1);
        }
    }

    /// What an administrator counts.
    pub(crate) fn count(&mut self) -> u64 {
        let keys: Vec<String> = self.rows.keys().cloned().collect();
        keys.iter().for_each(|key| self.sweep(key));
        self.rows.len() as u64 + self.left
    }

    /// When the first hold ends.
    pub(crate) fn free_in(&mut self, name: &Name) -> Option<std::time::Duration> {
        let (key, now) = (self.key(name), self.now());
        let first = self
            .rows
            .get(&key)?
            .holders
            .iter()
            .map(|holder| holder.ends)
            .min()?;
        Some(std::time::Duration::from_micros(
            u64::try_from(first - now).unwrap_or(0),
        ))
    }

    pub(crate) fn key(&self, name: &str) -> String {
        let folded = |from: &[&str], to: &str| {
            from.iter()
                .fold(name.to_owned(), |name, from| name.replace(from, to))
        };
        match self.flaw {
            Flaw::NamesWithoutCase => name.to_lowercase(),
            Flaw::NamesAreTrimmed => name.trim_end().to_owned(),
            Flaw::NamesAreCut => name.bytes().take(64).map(char::from).collect(),
            Flaw::NamesAreNormalised => folded(&["e\u{301}"], "é"),
            Flaw::NamesArePaths => folded(&["///", "//"], "/"),
            Flaw::NamesInAscii => name
                .chars()
                .map(|c| if c.is_ascii() { c } else { '?' })
                .collect(),
            Flaw::NamesAreHashed => crc32(name).to_string(),
            Flaw::NameHashedTo32Bits => fnv1a(name).to_string(),
            Flaw::NameCutAt191 => name.chars().take(191).collect(),
            _ => name.to_owned(),
        }
    }
}

fn fnv1a(text: &str) -> u32 {
    let step = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    text.bytes().fold(2_166_136_261, step)
}

fn crc32(text: &str) -> u32 {
    !text.bytes().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}
