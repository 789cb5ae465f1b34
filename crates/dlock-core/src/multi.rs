use std::time::Duration;

use crate::{Error, ErrorKind, Guard, Mutex, Operation, Owner, Result};

/// Several locks as one: all or nothing, of one store or of several (R35).
///
/// Made by [`Locks::multi`](crate::Locks::multi), or from mutexes of different clients with [`MultiLock::new`]. The members
/// are sorted and taken in that order by everybody, so two multi-locks never wait for each other in a circle. If one
/// cannot be had, those that were taken are given back. The guard is good while all of them are.
///
/// # Cancel safety
///
/// As for [`Mutex`]: what was taken is given back in the background.
#[derive(Debug, Clone)]
pub struct MultiLock {
    members: Vec<Mutex>,
}

impl MultiLock {
    /// Joins mutexes; a lock that is named twice counts once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when there are none.
    pub fn new(mutexes: impl IntoIterator<Item = Mutex>) -> Result<Self> {
        let mut members: Vec<Mutex> = mutexes.into_iter().collect();
        if members.is_empty() {
            return Err(Error::invalid(
                "a multi-lock needs at least one lock: give it names",
            ));
        }
        members.sort_by(|a, b| key(a).cmp(&key(b)));
        members.dedup_by(|a, b| key(a) == key(b));
        Ok(Self { members })
    }

    /// Waits for all of them.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`], naming the member that failed. The shortest `wait_at_most` of the members' settings holds for
    /// all of them together.
    pub async fn lock(&self) -> Result<Guard> {
        let limit = self
            .members
            .iter()
            .filter_map(|member| member.ask.settings.wait_at_most)
            .min();
        let Some(limit) = limit else {
            let mut held = Vec::with_capacity(self.members.len());
            for member in &self.members {
                held.push(member.lock().await?);
            }
            return join(held);
        };
        self.lock_within(limit).await?.ok_or_else(|| {
            Error::new(
                ErrorKind::Busy,
                format!("not all locks were free within {limit:?}: try later, or wait longer"),
            )
            .with_operation(Operation::Acquire)
        })
    }

    /// Takes all of them if all are free; `None` when one is held by others.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::try_lock`], naming the member that failed.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        let mut held = Vec::with_capacity(self.members.len());
        for member in &self.members {
            match member.try_lock().await? {
                Some(guard) => held.push(guard),
                None => return give_back(held).await,
            }
        }
        join(held).map(Some)
    }

    /// Waits at most `limit` for all of them together; `None` when one was still held by others.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock_within`], naming the member that failed.
    pub async fn lock_within(&self, limit: Duration) -> Result<Option<Guard>> {
        let mut held = Vec::with_capacity(self.members.len());
        let mut deadline = None;
        for member in &self.members {
            let clock = &member.ask.client.clock;
            // The clock of the first member counts for all: clients may have different ones only in tests.
            let (clock, until) =
                deadline.get_or_insert_with(|| (clock.clone(), clock.now() + limit));
            let left = until.since(clock.now());
            match member.lock_within(left).await? {
                Some(guard) => held.push(guard),
                None => return give_back(held).await,
            }
        }
        join(held).map(Some)
    }

    /// Does the work while all are held, as [`Mutex::run`].
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run`].
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        self.lock().await?.run(work).await
    }

    /// The same locks for an owner, who can enter them again while holding them (R6).
    #[must_use]
    pub fn owned_by(mut self, owner: Owner) -> Self {
        for member in &mut self.members {
            member.ask.owner = Some(owner);
        }
        self
    }

    /// The locks, in the order in which they are taken.
    pub fn members(&self) -> &[Mutex] {
        &self.members
    }
}

/// The same everywhere: by store, then by name.
fn key(mutex: &Mutex) -> (&str, &str) {
    (mutex.ask.client.backend.identity(), mutex.name())
}

fn join(held: Vec<Guard>) -> Result<Guard> {
    let guard = Guard::join(held).ok_or_else(|| Error::invalid("a multi-lock has no members"))?;
    if guard.is_held() {
        return Ok(guard);
    }
    Err(Error::new(
        ErrorKind::TooLate,
        "the first locks were lost while waiting for the last: use a longer lease",
    )
    .with_operation(Operation::Acquire))
}

/// Nothing is left when the caller hears that it was in vain.
async fn give_back(held: Vec<Guard>) -> Result<Option<Guard>> {
    if let Some(guard) = Guard::join(held)
        && let Err(error) = guard.release().await
    {
        tracing::warn!(%error, "a member of a multi-lock could not be given back; its lease ends it");
    }
    Ok(None)
}
