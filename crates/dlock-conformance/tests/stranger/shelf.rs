//! The server of the planted bugs: rows of holds, as a table or a hash would keep them, with one thing wrong.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use dlock_core::backend::{AttemptId, Request};
use dlock_core::{
    Error, ErrorKind, FencingToken, HeldNow, HolderInfo, LockInfo, Mode, Name, Result,
};
use tokio::time::Instant;

use super::Bug;

/// Microseconds.
type Time = i64;

const TOMBSTONE: Time = 60_000_000;

#[derive(Debug)]
pub(crate) struct Shelf {
    bug: Bug,
    started: Instant,
    /// By how many seconds the time of day is wrong.
    pub(crate) ahead: i64,
    rows: BTreeMap<String, Vec<Hold>>,
    tombs: HashMap<AttemptId, (String, Time)>,
    counter: u64,
    /// For the bugs that keep a counter with something that goes away.
    counters: HashMap<String, u64>,
    pub(crate) left: u64,
}

#[derive(Debug, Clone)]
struct Hold {
    attempt: AttemptId,
    client: usize,
    mode: Mode,
    token: u64,
    name: Name,
    label: String,
    ends: Time,
}

fn micros(time: Duration) -> Time {
    Time::try_from(time.as_micros()).unwrap_or(Time::MAX / 4)
}

impl Shelf {
    pub(crate) fn new(bug: Bug) -> Self {
        Self {
            bug,
            started: Instant::now(),
            ahead: 0,
            rows: BTreeMap::new(),
            tombs: HashMap::new(),
            counter: 0,
            counters: HashMap::new(),
            left: 0,
        }
    }

    /// The time of day at a clock that is right; `self.ahead` is what the store's is off by.
    fn right_time(&self) -> Time {
        1_700_000_000_000_000 + micros(self.started.elapsed())
    }

    fn time_of_day(&self) -> Time {
        self.right_time() + self.ahead * 1_000_000
    }

    /// What ends are compared with.
    fn now(&self) -> Time {
        match self.bug {
            Bug::EndByTheClientsClock => self.time_of_day(),
            _ => self.right_time(),
        }
    }

    fn end(&self, lease: Duration) -> Time {
        match self.bug {
            // The client has added its lease to its own time of day, which is right.
            Bug::EndByTheClientsClock => self.right_time() + micros(lease),
            Bug::LeaseIsIgnored => self.now() + 30_000_000,
            Bug::LeaseIsHalved => self.now() + micros(lease) / 2,
            _ => self.now() + micros(lease),
        }
    }

    fn key(&self, name: &str) -> String {
        match self.bug {
            Bug::NamesFoldCase => name.to_lowercase(),
            Bug::NamesAreTrimmed => name.trim().to_owned(),
            Bug::NamesAreCut => name.chars().take(100).collect(),
            Bug::NamesLoseAccents => name.chars().filter(char::is_ascii).collect(),
            Bug::NamesLoseSeparators => name.replace([':', '/', '.'], "_"),
            _ => name.to_owned(),
        }
    }

    fn is_good(&self, hold: &Hold) -> bool {
        let never = match hold.mode {
            Mode::Permit { .. } => self.bug == Bug::DeadPermitsCount,
            Mode::Shared => self.bug == Bug::DeadReadersCount,
            _ => false,
        };
        never || hold.ends > self.now()
    }

    fn sweep(&mut self, key: &str) {
        let Some(holds) = self.rows.get(key) else {
            return;
        };
        let good: Vec<Hold> = holds
            .iter()
            .filter(|hold| self.is_good(hold))
            .cloned()
            .collect();
        if good.is_empty() {
            self.rows.remove(key);
        } else {
            self.rows.insert(key.to_owned(), good);
        }
    }

    fn next_token(&mut self, key: &str, client: usize) -> u64 {
        self.counter += 1;
        match self.bug {
            Bug::TokenIsATime => u64::try_from(self.right_time() / 1000).unwrap_or_default() * 1000,
            Bug::TokenIsTheTimeOfDay => u64::try_from(self.time_of_day()).unwrap_or_default(),
            Bug::TokensInBlocks => {
                // As a sequence with a cache: each connection takes thirty-two at a time.
                let counter = self.counters.entry(format!("client {client}")).or_default();
                if counter.is_multiple_of(32) {
                    *counter = (self.counter / 8 + 1) * 3200;
                }
                *counter += 1;
                *counter
            }
            Bug::TokenGoesWithTheRow => {
                let counter = self.counters.entry(key.to_owned()).or_default();
                *counter += 1;
                *counter
            }
            _ => self.counter,
        }
    }

    /// Whether a mode fits to those who hold.
    fn admits(&self, holds: &[Hold], mode: Mode) -> bool {
        match mode {
            Mode::Shared if self.bug == Bug::ReadersIgnoreWriters => true,
            Mode::Exclusive if self.bug == Bug::WritersIgnoreReaders => {
                holds.iter().all(|hold| hold.mode == Mode::Shared)
            }
            Mode::Shared => holds.iter().all(|hold| hold.mode == Mode::Shared),
            Mode::Permit { limit } => {
                let most = limit as usize + usize::from(self.bug == Bug::OnePermitTooMany);
                holds
                    .iter()
                    .all(|hold| matches!(hold.mode, Mode::Permit { .. }))
                    && holds.len() < most
            }
            _ => holds.is_empty(),
        }
    }

    /// Whether the lock looks free: what a careless backend reads before it writes.
    pub(crate) fn looks_free(&mut self, request: &Request) -> bool {
        let key = self.key(request.name());
        self.sweep(&key);
        !self.rows.contains_key(&key)
    }

    /// The token of the hold; `None` when others hold.
    pub(crate) fn try_acquire(
        &mut self,
        request: &Request,
        client: usize,
        unchecked: bool,
    ) -> Result<Option<u64>> {
        let key = self.key(request.name());
        let now = self.now();
        self.tombs.retain(|_, (_, until)| *until > now);
        if self.tombs.contains_key(&request.attempt()) {
            let error = Error::new(ErrorKind::Store, "this attempt was abandoned");
            return Err(error.with_held(HeldNow::No));
        }
        self.sweep(&key);
        let end = self.end(request.lease());
        let (bug, mode) = (self.bug, request.mode());
        let holds = self.rows.entry(key.clone()).or_default().clone();
        if let Mode::Permit { limit } = mode
            && bug != Bug::AnotherLimitIsBusy
            && holds
                .iter()
                .any(|hold| matches!(hold.mode, Mode::Permit { limit: other } if other != limit))
        {
            return Err(Error::new(ErrorKind::Conflict, "another limit is in use"));
        }
        let ours = holds.iter().position(|hold| match bug {
            Bug::OwnerIsTheClient => hold.client == client,
            Bug::RepeatedAttemptIsBusy => false,
            Bug::RepeatedPermitIsAnother => {
                hold.attempt == request.attempt() && !matches!(mode, Mode::Permit { .. })
            }
            _ => hold.attempt == request.attempt(),
        });
        if let Some(place) = ours {
            let token = match bug {
                Bug::RepeatedAttemptHasANewToken => self.next_token(&key, client),
                _ => holds[place].token,
            };
            let hold = &mut self.rows.get_mut(&key).expect("it is there")[place];
            if bug != Bug::RepeatedAttemptKeepsItsEnd {
                hold.ends = end;
            }
            return Ok(Some(token));
        }
        let first = format!("first question of {}", request.attempt());
        if bug == Bug::TokenKeptByAttempt && !self.counters.contains_key(&first) {
            let token = self.next_token(&key, client);
            self.counters.insert(first.clone(), token);
        }
        if !unchecked && !self.admits(&holds, mode) {
            return Ok(None);
        }
        let token = match (bug, holds.first()) {
            (Bug::TokenKeptByAttempt, _) => self.counters[&first],
            (Bug::ReadersShareAToken, Some(first)) if mode == Mode::Shared => first.token,
            _ => self.next_token(&key, client),
        };
        let label = match bug {
            Bug::LabelIsDropped => String::new(),
            _ => request.label().to_owned(),
        };
        let rows = self.rows.get_mut(&key).expect("it is there");
        if bug == Bug::ReadersShareAnEnd {
            rows.iter_mut().for_each(|hold| hold.ends = end);
        }
        rows.push(Hold {
            attempt: request.attempt(),
            client,
            mode,
            token,
            name: request.name().clone(),
            label,
            ends: end,
        });
        if bug == Bug::RowIsLeft {
            self.left += 1;
        }
        Ok(Some(token))
    }

    /// Whether the hold was there.
    pub(crate) fn renew(&mut self, name: &Name, attempt: AttemptId, lease: Duration) -> bool {
        let key = self.key(name);
        if self.bug != Bug::RenewalRevives {
            self.sweep(&key);
        }
        let (bug, end) = (self.bug, self.end(lease));
        let Some(holds) = self.rows.get_mut(&key) else {
            return false;
        };
        let hold = holds
            .iter_mut()
            .find(|hold| bug == Bug::RenewalByName || hold.attempt == attempt);
        let Some(hold) = hold else { return false };
        hold.ends = match bug {
            Bug::RenewalAddsUp => hold.ends + micros(lease),
            Bug::RenewalForADay => end + 86_400_000_000,
            Bug::RenewalIsShort => end - micros(lease) / 2,
            Bug::RenewalKeepsTheEnd => hold.ends,
            _ => end,
        };
        true
    }

    /// Whether the hold was there.
    pub(crate) fn release(&mut self, name: &Name, attempt: AttemptId) -> bool {
        let key = self.key(name);
        if self.bug != Bug::ReleaseOfTheExpiredIsFreed {
            self.sweep(&key);
        }
        let bug = self.bug;
        let Some(holds) = self.rows.get_mut(&key) else {
            return false;
        };
        let before = holds.len();
        match bug {
            Bug::ReleaseByName => holds.clear(),
            Bug::ReaderReleasesAll if holds.iter().any(|hold| hold.attempt == attempt) => {
                holds.clear();
            }
            Bug::PermitReleasesAnother => {
                holds.pop();
            }
            _ => holds.retain(|hold| hold.attempt != attempt),
        }
        let found = holds.len() < before;
        if holds.is_empty() {
            self.rows.remove(&key);
            if bug == Bug::TokenGoesWithTheRow {
                self.counters.remove(&key);
            }
        }
        if bug == Bug::TombstoneGoesWithTheNext {
            self.tombs.retain(|_, (of, _)| *of != key);
        }
        found
    }

    pub(crate) fn abandon(&mut self, request: &Request) {
        let key = self.key(request.name());
        let lasts = match self.bug {
            Bug::NoTombstone => 0,
            Bug::TombstoneOfASecond => 1_000_000,
            _ => TOMBSTONE,
        };
        let until = self.now() + lasts;
        self.tombs.insert(request.attempt(), (key.clone(), until));
        let skipped = match request.mode() {
            Mode::Shared => self.bug == Bug::AbandonForgetsReaders,
            Mode::Permit { .. } => self.bug == Bug::AbandonForgetsPermits,
            _ => false,
        };
        match self.bug {
            Bug::AbandonByName => _ = self.rows.remove(&key),
            _ if skipped => {}
            _ => _ = self.release(request.name(), request.attempt()),
        }
        if self.bug == Bug::TombstonesAreLeft {
            self.left += 1;
        }
    }

    /// Whether the hold was there.
    pub(crate) fn downgrade(&mut self, name: &Name, attempt: AttemptId) -> bool {
        let key = self.key(name);
        self.sweep(&key);
        let bug = self.bug;
        if bug == Bug::DowngradeOfTheGoneIsFine && !self.rows.contains_key(&key) {
            return true;
        }
        let holds = self.rows.get_mut(&key);
        let hold = holds.and_then(|holds| {
            let any = bug == Bug::DowngradeByName;
            holds.iter_mut().find(|hold| any || hold.attempt == attempt)
        });
        let Some(hold) = hold else { return false };
        hold.mode = Mode::Shared;
        if bug == Bug::DowngradeForgetsTheOwner {
            hold.attempt = AttemptId::new();
        }
        true
    }

    pub(crate) fn inspect(&mut self, name: &Name) -> LockInfo {
        let key = self.key(name);
        if self.bug != Bug::InspectShowsTheExpired {
            self.sweep(&key);
        }
        let mut info = LockInfo::new(name.clone());
        for hold in self.rows.get(&key).into_iter().flatten() {
            let mut known = HolderInfo::new(hold.attempt.to_string(), hold.mode);
            known.label.clone_from(&hold.label);
            let token = match self.bug {
                Bug::InspectShowsTheCounter => self.counter + 1,
                _ => hold.token,
            };
            known.token = Some(FencingToken::new(token));
            info.holders.push(known);
        }
        info
    }

    pub(crate) fn list(&mut self, prefix: &str) -> Vec<LockInfo> {
        let names: Vec<Name> = self
            .rows
            .values()
            .flatten()
            .filter(|hold| match self.bug {
                Bug::ListFindsTheMiddle => hold.name.contains(prefix),
                Bug::ListIgnoresCase => {
                    hold.name.to_lowercase().starts_with(&prefix.to_lowercase())
                }
                _ => hold.name.starts_with(prefix),
            })
            .map(|hold| hold.name.clone())
            .collect();
        let mut names: Vec<Name> = names;
        names.dedup();
        if self.bug == Bug::ListShowsTheExpired {
            let info = |name: &Name| {
                let mut info = LockInfo::new(name.clone());
                let holds = self.rows.get(&self.key(name)).into_iter().flatten();
                info.holders
                    .extend(holds.map(|hold| HolderInfo::new(hold.attempt.to_string(), hold.mode)));
                info
            };
            return names.iter().map(info).filter(LockInfo::is_locked).collect();
        }
        let found = names.iter().map(|name| self.inspect(name));
        found.filter(LockInfo::is_locked).collect()
    }

    pub(crate) fn break_lock(&mut self, name: &Name) -> bool {
        let key = self.key(name);
        self.sweep(&key);
        let broken = self.rows.remove(&key).is_some();
        if self.bug == Bug::BreakResetsTheCounter {
            self.counter = 0;
        }
        broken || self.bug == Bug::BreakAlwaysSaysYes
    }

    pub(crate) fn expire(&mut self, name: &Name) {
        let (key, now) = (self.key(name), self.now());
        for hold in self.rows.get_mut(&key).into_iter().flatten() {
            hold.ends = hold.ends.min(now - 1);
        }
    }

    pub(crate) fn count(&mut self) -> u64 {
        let keys: Vec<String> = self.rows.keys().cloned().collect();
        keys.iter().for_each(|key| self.sweep(key));
        self.rows.len() as u64 + self.left
    }
}
