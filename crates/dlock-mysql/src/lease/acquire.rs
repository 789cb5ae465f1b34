//! One attempt, and its undo.

use std::time::Duration;

use dlock_core::backend::{Lease, Request};
use dlock_core::{ErrorKind, Mode, Name, kit};

use super::LeaseLocks;
use crate::connect::{Arg, Job};
use crate::error::Trouble;
use crate::fence::first_of;
use crate::key::micros;
use crate::wait::{InTheWay, Tried};

/// In the answer of `lease_acquire_closely.sql`: others hold the lock, and the rest is the time until their lease ends.
const BUSY: u64 = 1 << 62;
/// The attempt was abandoned.
const ABANDONED: u64 = 1 << 61;

/// Binds what `holders_acquire.sql` uses.
const BIND: &str = "SET @dlock_name = ?, @dlock_attempt = ?, @dlock_permits = ?, @dlock_label = ?, @dlock_lease = ?";

impl LeaseLocks {
    /// One that waits looks first.
    pub(super) async fn try_acquire(
        &self,
        request: &Request,
        look_first: bool,
    ) -> Result<Tried, Trouble> {
        match request.mode() {
            Mode::Exclusive => self.try_whole(request, look_first).await,
            Mode::Shared => self.try_part(request, 0).await,
            Mode::Permit { limit } => self.try_part(request, limit).await,
            other => Err(Trouble::new(
                ErrorKind::Unsupported,
                format!("this backend does not know the mode \"{other}\": update it"),
            )
            .unsent()),
        }
    }

    /// Takes the lock alone: one statement when it is free. What else there may be is told by a second one.
    async fn try_whole(&self, request: &Request, look_first: bool) -> Result<Tried, Trouble> {
        let attempt = request.attempt();
        let owner = Arg::from(attempt.as_uuid().as_bytes().as_slice());
        let (label, name) = (
            Arg::from(request.label()),
            Arg::from(request.name().as_str()),
        );
        let lease = Arg::from(micros(request.lease()));
        let limit = request.trip_timeout();
        if look_first {
            // An update would lock the row, and keep its holder from giving it back.
            let args = [name.clone(), owner.clone(), name.clone(), owner.clone()];
            let told = self.shared.call(Job::Exec(&self.sql.peek, &args), limit);
            if let Some(row) = told.await?.answer.rows.first() {
                return Ok(busy(row.number(0), row.number(1)));
            }
        }
        let args = [
            owner.clone(),
            label.clone(),
            lease.clone(),
            lease.clone(),
            name.clone(),
        ];
        let sent = request.now();
        let acquire = Job::Exec(&self.sql.acquire, &args);
        let told = self.shared.call(acquire, limit).await?;
        if told.answer.affected == 1 {
            let lease = Lease::new(request, sent).with_token(first_of(told.answer.id));
            return Ok(Tried::Held(lease));
        }
        let args = [
            owner.clone(),
            owner.clone(),
            owner.clone(),
            label,
            lease.clone(),
            owner,
            lease,
            name,
        ];
        for _ in 0..FIRST_USES {
            let sent = request.now();
            let acquire = Job::Exec(&self.sql.acquire_closely, &args);
            let id = self.shared.call(acquire, limit).await?.answer.id;
            if id == 0 {
                self.first_use(request.name(), limit).await?;
            } else if id & BUSY == 0 {
                let lease = Lease::new(request, sent).with_token(first_of(id));
                return Ok(Tried::Held(lease));
            } else if id & ABANDONED != 0 {
                return Err(kit::abandoned().into());
            } else {
                let left = id & !BUSY;
                return Ok(busy((left > 0).then_some(left), None));
            }
        }
        Err(no_row())
    }

    /// Takes a part of the lock: a shared hold (0), or one of `permits`.
    async fn try_part(&self, request: &Request, permits: u32) -> Result<Tried, Trouble> {
        let attempt = request.attempt();
        let args = [
            request.name().as_str().into(),
            attempt.as_uuid().as_bytes().as_slice().into(),
            u64::from(permits).into(),
            request.label().into(),
            micros(request.lease()).into(),
        ];
        let acquire = Job::Batch(BIND, &args, &self.sql.part_acquire);
        for _ in 0..FIRST_USES {
            let sent = request.now();
            let answer = self
                .shared
                .call(acquire, request.trip_timeout())
                .await?
                .answer;
            let Some(row) = answer.rows.first() else {
                return Err(Trouble::unexpected_reply("nothing"));
            };
            if let Some(token) = row.number(1) {
                return Ok(Tried::Held(Lease::new(request, sent).with_token(token)));
            }
            if row.number(2) != Some(0) {
                return Err(kit::abandoned().into());
            }
            match row.number(3) {
                Some(used) if permits > 0 => return Err(another_limit(used, request.mode())),
                _ => {}
            }
            if row.number(0) == Some(0) {
                self.first_use(request.name(), request.trip_timeout())
                    .await?;
                continue;
            }
            let age = row.number(5).into_iter().chain(row.number(6)).min();
            return Ok(busy(row.number(4), age));
        }
        Err(no_row())
    }

    /// Makes the row of a name. Many do this at the same time: one of them wins, and for the others there is nothing to do.
    async fn first_use(&self, name: &Name, limit: Duration) -> Result<(), Trouble> {
        let args = [name.as_str().into()];
        let insert = Job::Exec(&self.sql.first_use, &args);
        self.shared.call(insert, limit).await?;
        Ok(())
    }

    /// Removes what an attempt left. The marker comes first, then the word in the row that makes others look for it: see
    /// `lease_acquire_closely.sql`. The row is made if it is not there, so that nobody makes it without that word.
    pub(super) async fn abandon(&self, request: &Request) -> Result<(), Trouble> {
        let limit = request.trip_timeout();
        let attempt = request.attempt();
        let name = Arg::from(request.name().as_str());
        let owner = Arg::from(attempt.as_uuid().as_bytes().as_slice());
        let (mark, part) = ([owner.clone()], [name.clone(), owner.clone()]);
        let whole = [owner.clone(), owner, name];
        self.shared
            .call(Job::Exec(&self.sql.mark, &mark), limit)
            .await?;
        for _ in 0..FIRST_USES {
            let abandon = Job::Exec(&self.sql.abandon, &whole);
            if self.shared.call(abandon, limit).await?.answer.affected > 0 {
                break;
            }
            self.first_use(request.name(), limit).await?;
        }
        // An exclusive hold may have become a shared one.
        self.shared
            .call(Job::Exec(&self.sql.part_abandon, &part), limit)
            .await?;
        // It is undone; the rest is for order's sake, and is tried again by the next one.
        if let Err(trouble) = self
            .shared
            .call(Job::Exec(&self.sql.forget, &[]), limit)
            .await
        {
            tracing::debug!(?trouble, "old markers were not removed");
        }
        Ok(())
    }
}

/// A row can be swept between its making and its use, but hardly this often.
const FIRST_USES: usize = 5;

/// Times in microseconds.
fn busy(left: Option<u64>, age: Option<u64>) -> Tried {
    Tried::Busy(InTheWay {
        left: left.map(Duration::from_micros),
        age: age.map(Duration::from_micros),
    })
}

fn no_row() -> Trouble {
    Trouble::unexpected_reply("that the lock's row was removed again and again").unsent()
}

fn another_limit(used: u64, mode: Mode) -> Trouble {
    kit::other_limit(used, mode).into()
}
