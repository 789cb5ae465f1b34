//! One attempt: the lock at once, or a place in the queue.

use std::collections::VecDeque;

use dlock_core::backend::{AttemptId, Request};
use dlock_core::{Clock, Error, ErrorKind, HeldNow, Mode, Name, Result, SystemClock, kit};
use tokio::sync::oneshot;

use super::flaws::Flaw;
use super::table::{Answer, Grant, Holder, Row, Table, Waiter, Way};

impl Table {
    pub(crate) fn looks_free(&mut self, request: &Request) -> bool {
        let key = self.key(request.name());
        let is_new = self.seen.insert(key.clone());
        let (now, row) = (self.now(), self.rows.get(&key));
        match (self.flaw, row) {
            (Flaw::FirstUseRaces, _) => is_new,
            (Flaw::TakeoverRaces, Some(row)) => {
                !row.holders.is_empty() && row.holders.iter().all(|holder| holder.ends <= now)
            }
            (Flaw::LooksThenTakes, row) => row.is_none_or(|row| row.holders.is_empty()),
            _ => false,
        }
    }

    fn check(&mut self, key: &str, request: &Request, way: Way) -> Result<bool> {
        let now = self.now();
        self.tombs.retain(|_, (_, until)| *until > now);
        if self.flaw == Flaw::TombstoneInTheRow {
            let attempt = request.attempt();
            self.tombs
                .retain(|of, (row, _)| row.as_str() != key || *of == attempt);
        }
        if self.flaw == Flaw::LabelSpliced && request.label().contains('\'') {
            return Err(Error::new(ErrorKind::Store, "the statement ends early"));
        }
        let skipped = self.flaw == Flaw::LateWaiterGetsIn && way == Way::Queue;
        if self.tombs.contains_key(&request.attempt()) && !skipped {
            let error = Error::new(ErrorKind::Store, "this attempt was abandoned");
            return match self.flaw {
                Flaw::LateIsBusy => Ok(false),
                Flaw::LateIsInDoubt => Err(error),
                _ => Err(error.with_held(HeldNow::No)),
            };
        }
        if let (Flaw::LimitStays, Mode::Permit { limit }) = (self.flaw, request.mode()) {
            let first = *self
                .numbers
                .entry(format!("limit {key}"))
                .or_insert(limit.into());
            kit::check_limit(
                [Mode::Permit {
                    limit: u32::try_from(first).unwrap_or(0),
                }],
                request.mode(),
            )?;
        }
        let Some(row) = self.rows.get(key) else {
            return Ok(true);
        };
        let holders = row.holders.iter().map(|holder| holder.mode);
        let used = holders.chain(row.waiters.iter().map(|waiter| waiter.mode));
        match (kit::check_limit(used, request.mode()), self.flaw) {
            (Err(_), Flaw::OtherLimitIsBusy) => Ok(false),
            (Err(_), Flaw::OtherLimitIsTaken) => Ok(true),
            (checked, _) => checked.map(|()| true),
        }
    }

    /// One attempt, in one step.
    pub(crate) fn attempt(
        &mut self,
        request: &Request,
        attempt: AttemptId,
        client: usize,
        way: Way,
    ) -> Result<Answer> {
        let (key, flaw) = (self.key(request.name()), self.flaw);
        if flaw != Flaw::TryKeepsTheEnded || way != Way::Try {
            self.sweep(&key);
        }
        if !self.check(&key, request, way)? {
            return Ok(Answer::Busy);
        }
        if let Some(grant) = self.grant_of(&key, request, attempt, client) {
            return Ok(Answer::Held(grant));
        }
        if flaw == Flaw::TakeOverPassesTheQueue && self.is_over(&key) {
            return Ok(Answer::Held(self.take(&key, request, attempt, client)));
        }
        if way == Way::Unchecked || self.is_free_for(&key, request, way) {
            return Ok(Answer::Held(self.take(&key, request, attempt, client)));
        }
        let place = match way {
            Way::Queue => self.queue(&key, request, attempt, client),
            _ if flaw == Flaw::TryLeavesAPlace => {
                drop(self.queue(&key, request, attempt, client));
                return Ok(Answer::Busy);
            }
            _ => return Ok(Answer::Busy),
        };
        Ok(Answer::Queued(place))
    }

    /// What an attempt has already: the same request may come twice.
    fn grant_of(
        &mut self,
        key: &str,
        request: &Request,
        attempt: AttemptId,
        client: usize,
    ) -> Option<Grant> {
        let (flaw, end) = (self.flaw, self.end(request.lease()));
        let row = self.rows.get_mut(key)?;
        let holder = row
            .holders
            .iter_mut()
            .find(|holder| holder.attempt == attempt)?;
        let mut grant = Grant {
            token: holder.token,
            from: SystemClock.now(),
        };
        match flaw {
            Flaw::RepeatIsBusy => return None,
            Flaw::RepeatIsAnother if holder.mode != Mode::Exclusive => return None,
            Flaw::RepeatTakesSecondPermit if matches!(holder.mode, Mode::Permit { .. }) => {
                let mut second = holder.clone();
                second.attempt = AttemptId::new();
                second.ends = end;
                holder.ends = end;
                row.holders.push(second);
                return Some(grant);
            }
            Flaw::RepeatKeepsTheEnd => {}
            Flaw::RepeatHasANewToken => {
                holder.ends = end;
                grant.token = self.next_token(key, client, false);
            }
            _ => holder.ends = end,
        }
        Some(grant)
    }

    fn is_free_for(&self, key: &str, request: &Request, way: Way) -> bool {
        let mode = request.mode();
        if self.flaw == Flaw::QueueHasAName
            && let Some(of) = key.strip_suffix(":queue")
            && self.rows.get(of).is_some_and(|row| !row.waiters.is_empty())
        {
            return false;
        }
        let Some(row) = self.rows.get(key) else {
            return true;
        };
        let barges = match self.flaw {
            Flaw::TryBarges => way == Way::Try,
            Flaw::ReadersBarge => mode == Mode::Shared,
            _ => false,
        };
        (barges || row.waiters.is_empty()) && self.admits(&row.holders, mode)
    }

    pub(crate) fn row(&mut self, key: &str, name: &Name) -> &mut Row {
        self.rows.entry(key.to_owned()).or_insert_with(|| Row {
            name: name.clone(),
            holders: Vec::new(),
            waiters: VecDeque::new(),
        })
    }

    fn take(&mut self, key: &str, request: &Request, attempt: AttemptId, client: usize) -> Grant {
        let (flaw, mode, end) = (self.flaw, request.mode(), self.end(request.lease()));
        let shared = self
            .rows
            .get(key)
            .and_then(|row| row.holders.first())
            .map(|first| first.token);
        let token = match shared {
            Some(token) if flaw == Flaw::ReadersShareAToken && mode == Mode::Shared => token,
            _ => self.next_token(key, client, false),
        };
        let row = self.row(key, request.name());
        for holder in &mut row.holders {
            let reads = holder.mode == Mode::Shared;
            holder.ends = match flaw {
                Flaw::OneEndForAll => end,
                Flaw::LastReaderSetsTheEnd if reads => end,
                Flaw::OneEndForAllReaders if reads => holder.ends.max(end),
                _ => holder.ends,
            };
        }
        row.holders.push(Holder {
            attempt,
            mode,
            token,
            label: request.label().to_owned(),
            lease: request.lease(),
            ends: end,
        });
        Grant {
            token,
            from: SystemClock.now(),
        }
    }

    fn queue(
        &mut self,
        key: &str,
        request: &Request,
        attempt: AttemptId,
        client: usize,
    ) -> oneshot::Receiver<Grant> {
        let (since, flaw) = (self.now(), self.flaw);
        let (word, heard) = oneshot::channel();
        let row = self.row(key, request.name());
        let ours = row
            .waiters
            .iter_mut()
            .find(|waiter| waiter.attempt == attempt);
        match ours {
            Some(waiter) if flaw != Flaw::RepeatQueuesTwice => waiter.word = word,
            _ => row.waiters.push_back(Waiter {
                attempt,
                mode: request.mode(),
                label: request.label().to_owned(),
                client,
                lease: request.lease(),
                since,
                word,
            }),
        }
        if flaw == Flaw::PlaceByLastQuestion {
            self.goes_to_the_end(key, attempt);
        }
        heard
    }
}
