//! What differs between a row lock and a named lock.

use std::time::Duration;

use dlock_core::Name;
use dlock_core::backend::Lease;

use super::grab::{Grab, check_writable, is_row_busy, named_grabbed, row_grabbed};
use super::mark::{HoldKey, MarkRow, MarkStatements};
use super::short_way::ShortWay;
use crate::config::{Config, LockMode};
use crate::connect::{Arg, Connection, Job, SharedConnections};
use crate::error::Trouble;
use crate::key::advisory;
use crate::schema::{quoted, statement};
use crate::server::{Scope, Setup};

/// Not to wait.
pub(super) const NOW: Duration = Duration::ZERO;
/// A wait for a named lock ends after this time, and is begun again. A server that waits so notices when the waiter's connection ends.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// The same for a row lock, where it does not notice: a waiter that died stays in the queue for this long.
pub(super) const LONGEST_ROW_WAIT: Duration = Duration::from_secs(4);
/// For so long a statement on a mark may be under way whose row others have. The server waits for a second (see [`Setup`]), and some look only once in
/// a second whether that is over.
pub(super) const MARK_WAIT: Duration = Duration::from_millis(2500);
/// A row can be made by others at the same time, but is never removed.
const FIRST_USES: usize = 3;

/// One of those named locks by which those who wait for a lock can be seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlaceOfWaiter(pub(super) u8);

/// The lock of a name at the server.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) marks: MarkStatements,
    first_use: String,
    pub(super) scope: Scope,
    pub(super) how: Locking,
}

#[derive(Debug)]
pub(super) enum Locking {
    /// A row that is locked by a transaction, which lasts as long as the hold. If the connection ends, the server rolls it back: so marks are
    /// written on another connection, and only the release writes in it, with the commit that frees the row right behind.
    Row {
        is_free: String,
        grab: String,
        grab_now: String,
        prove: String,
    },
    Named {
        /// `None` where the server logs statements, since a replica that repeats these would take locks.
        short_way: Option<ShortWay>,
        grab: String,
        prove: String,
    },
}

/// The answer to the question whether a hold is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    Holds,
    /// The connection has not got the lock, or somebody else had it for a moment; the mark may still be ours.
    Disturbed,
    /// The mark is not ours: another one holds, or somebody has broken it.
    Gone,
}

impl Kind {
    pub(super) fn new(config: &Config, setup: &Setup) -> Self {
        let prefix = &config.table_prefix;
        let marks = quoted(&format!("{prefix}{}_marks", config.mode));
        let one = |sql: &str| {
            statement(sql, prefix)
                .replace("{marks}", &marks)
                .replace("{writable}", setup.writable)
        };
        let first_use;
        let how = if config.mode == LockMode::Advisory {
            first_use = one(include_str!("../sql/advisory_first_use.sql"));
            Locking::Named {
                short_way: (!setup.logs_statements).then(|| ShortWay::new(one)),
                grab: one(include_str!("../sql/advisory_grab.sql")),
                prove: one(include_str!("../sql/advisory_prove.sql")),
            }
        } else {
            first_use = one(include_str!("../sql/session_first_use.sql"));
            let grab = one(include_str!("../sql/session_grab.sql"));
            Locking::Row {
                is_free: one(include_str!("../sql/session_is_free.sql")),
                grab_now: format!("{grab} NOWAIT"),
                grab,
                prove: one(include_str!("../sql/session_prove.sql")),
            }
        };
        Self {
            marks: MarkStatements::new(prefix, &marks, setup.writable),
            first_use,
            scope: setup.scope.clone(),
            how,
        }
    }

    /// What a carrying session needs beyond what all have.
    pub(super) fn setup(&self) -> String {
        let seconds = LONGEST_ROW_WAIT.as_secs();
        match self.how {
            // Every statement is part of a transaction, which a commit ends, and sees what was committed before it began.
            Locking::Row { .. } => format!(
                "; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
                 SET SESSION innodb_lock_wait_timeout = {seconds}, autocommit = 0"
            ),
            Locking::Named { .. } => String::new(),
        }
    }

    /// Asks for the lock, and waits for it for so long at the most; for a row lock, for [`LONGEST_ROW_WAIT`] if at all.
    pub(super) async fn grab(
        &self,
        connection: &mut Connection,
        shared: &SharedConnections,
        name: &Name,
        wait: Duration,
        limit: Duration,
    ) -> Result<Grab, Trouble> {
        match &self.how {
            Locking::Row { .. } => {
                let wait = wait > NOW;
                self.grab_row(connection, shared, name, wait, limit).await
            }
            Locking::Named { grab, .. } => {
                let key = self.named_lock(name);
                let args: [Arg<'_>; 3] = [
                    key.as_str().into(),
                    wait.as_secs().into(),
                    name.as_str().into(),
                ];
                named_grabbed(&connection.exec(grab, &args).await?)
            }
        }
    }

    async fn grab_row(
        &self,
        connection: &mut Connection,
        shared: &SharedConnections,
        name: &Name,
        wait: bool,
        limit: Duration,
    ) -> Result<Grab, Trouble> {
        let Locking::Row { grab, grab_now, .. } = &self.how else {
            return Ok(Grab::Busy);
        };
        let sql = if wait { grab } else { grab_now };
        let args = [name.as_str().into()];
        for _ in 0..FIRST_USES {
            match connection.exec(sql, &args).await {
                // At READ COMMITTED what is not there is not locked either.
                Ok(answer) if answer.rows.is_empty() => {
                    self.first_use(shared, name, limit).await?;
                }
                answer => return row_grabbed(answer),
            }
        }
        Err(Trouble::unexpected_reply(
            "that the lock's row was removed again and again",
        ))
    }

    /// Asks, in one trip, whether the connection has the lock on a server that takes writes, and whether the mark is ours. A sign of life of
    /// the connection would not do: a server that was demoted keeps its connections, while others get the lock from its successor.
    pub(super) async fn prove(
        &self,
        connection: &mut Connection,
        lease: &Lease,
        key: HoldKey,
    ) -> Result<Proof, Trouble> {
        let attempt = lease.attempt();
        let name = Arg::from(lease.name().as_str());
        let owner = Arg::from(attempt.as_uuid().as_bytes().as_slice());
        let token = Arg::from(key.fence);
        let answer = match &self.how {
            Locking::Row { prove, .. } => connection.exec(prove, &[owner, token, name]).await,
            Locking::Named { prove, .. } => {
                let key = self.named_lock(lease.name());
                let args = [key.as_str().into(), owner, token, name.clone(), name];
                connection.exec(prove, &args).await
            }
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(trouble) if is_row_busy(&trouble) => {
                return Ok(Proof::Disturbed);
            }
            Err(trouble) => return Err(trouble),
        };
        check_writable(&answer, 0)?;
        let yes = |column| {
            let row = answer.rows.first();
            row.and_then(|row| row.number(column)) == Some(1)
        };
        Ok(match (yes(2), yes(1) && yes(3)) {
            (false, _) => Proof::Gone,
            (true, false) => Proof::Disturbed,
            (true, true) => Proof::Holds,
        })
    }

    /// Makes the rows of a name. Many do this at the same time: one of them wins, and for the others there is nothing to do.
    pub(super) async fn first_use(
        &self,
        shared: &SharedConnections,
        name: &Name,
        limit: Duration,
    ) -> Result<(), Trouble> {
        let name = Arg::from(name.as_str());
        let id = || Arg::from(fastrand::u64(1..));
        let args = match self.how {
            Locking::Row { .. } => vec![name.clone(), id(), id(), name],
            Locking::Named { .. } => vec![name.clone(), id(), name],
        };
        shared
            .call(Job::Exec(&self.first_use, &args), limit)
            .await?;
        Ok(())
    }

    /// The mark of the name, read on the connection that has the lock.
    pub(super) async fn look(
        &self,
        connection: &mut Connection,
        shared: &SharedConnections,
        name: &Name,
        limit: Duration,
    ) -> Result<MarkRow, Trouble> {
        let args = [name.as_str().into()];
        for _ in 0..FIRST_USES {
            let answer = connection.exec(&self.marks.read, &args).await?;
            if let Some(seen) = MarkRow::read(&answer)? {
                return Ok(seen);
            }
            self.first_use(shared, name, limit).await?;
        }
        Err(Trouble::unexpected_reply(
            "that the lock's mark was removed again and again",
        ))
    }

    /// Changes a mark, for good: not in the transaction that has the lock. Tells how many rows it changed.
    pub(super) async fn write(
        &self,
        connection: &mut Connection,
        shared: &SharedConnections,
        sql: &str,
        args: &[Arg<'_>],
        limit: Duration,
    ) -> Result<u64, Trouble> {
        match self.how {
            Locking::Row { .. } => Ok(shared
                .call(Job::Exec(sql, args), limit)
                .await?
                .answer
                .affected),
            Locking::Named { .. } => Ok(connection.exec(sql, args).await?.affected),
        }
    }

    /// Clears the mark, and gives up the lock and the place of one that has waited; `false` when the hold was gone, and then the connection may still have
    /// both.
    pub(super) async fn let_go(
        &self,
        connection: &mut Connection,
        name: &Name,
        key: HoldKey,
        waited: Option<PlaceOfWaiter>,
    ) -> Result<bool, Trouble> {
        let place = waited.map(|place| self.waiters_lock(name, place.0));
        let place = place.as_deref();
        let cleared = match &self.how {
            // The mark is cleared only if the lock is given back.
            Locking::Row { .. } => {
                let clear = self.marks.clear(name, key, place);
                let all = format!("{clear}; COMMIT");
                connection.text(&all).await?.affected
            }
            Locking::Named {
                short_way: Some(short_way),
                ..
            } => {
                let lock = self.named_lock(name);
                short_way
                    .release(connection, name, key, &lock, place)
                    .await?
            }
            Locking::Named { .. } => {
                let (clear, give_back) = (self.marks.clear(name, key, None), self.give_back(name));
                let leave =
                    place.map_or_else(String::new, |place| format!("; DO RELEASE_LOCK('{place}')"));
                let all = format!("{clear}; {give_back}{leave}");
                connection.text(&all).await?.affected
            }
        };
        Ok(cleared > 0)
    }

    pub(super) fn named_lock(&self, name: &Name) -> String {
        advisory(&self.scope.prefix, &self.scope.database, name)
    }

    /// Ends what a wish that was not granted has begun.
    pub(super) async fn end_wait(&self, connection: &mut Connection) -> Result<(), Trouble> {
        if matches!(self.how, Locking::Row { .. }) {
            connection.text("ROLLBACK").await?;
        }
        Ok(())
    }

    /// Gives a lock back that was not claimed.
    pub(super) async fn give_up(
        &self,
        connection: &mut Connection,
        name: &Name,
    ) -> Result<(), Trouble> {
        connection.text(&self.give_back(name)).await?;
        Ok(())
    }

    fn give_back(&self, name: &Name) -> String {
        match &self.how {
            Locking::Row { .. } => "ROLLBACK".to_owned(),
            // The name is a digest, in letters and digits.
            Locking::Named { .. } => format!("DO RELEASE_LOCK('{}')", self.named_lock(name)),
        }
    }

    /// Prepares all statements, so that they need no trip of their own later, and a missing permission shows at connect.
    pub(super) async fn rehearse(
        &self,
        connection: &mut Connection,
        shared: &SharedConnections,
    ) -> Result<(), Trouble> {
        let marks = &self.marks;
        let writes = [&marks.claim, &marks.dead, &marks.go_on];
        let mut here = vec![&marks.read];
        let mut there = vec![self.first_use.as_str(), &marks.abandon, &marks.abandon_of];
        match &self.how {
            Locking::Row {
                grab,
                grab_now,
                prove,
                ..
            } => {
                here.extend([grab, grab_now, prove]);
                there.extend(writes.map(String::as_str));
            }
            Locking::Named {
                short_way,
                grab,
                prove,
            } => {
                here.extend(short_way.iter().flat_map(ShortWay::statements));
                here.extend([grab, prove]);
                here.extend(writes);
            }
        }
        for sql in here {
            connection.prepare(sql).await?;
        }
        shared.rehearse(&there).await
    }
}
