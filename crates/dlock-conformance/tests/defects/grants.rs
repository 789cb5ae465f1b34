//! Stores that grant what they must not.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_conformance::async_trait;
use dlock_core::backend::{AttemptId, Backend, Busy, Lease, Outcome, Request};
use dlock_core::{ErrorKind, Mode, Moment, Name, Released, Result};

use super::{Client, Defect};

/// A grant out of thin air, with a token that is higher than any other.
fn invented(request: &Request) -> Outcome {
    static TOKENS: AtomicU64 = AtomicU64::new(1 << 40);
    let token = TOKENS.fetch_add(1, Ordering::Relaxed);
    Outcome::Held(Lease::new(request, request.now()).with_token(token))
}

/// The same grant, with another token and another moment.
fn altered(attempt: Outcome, request: &Request, from: Option<Moment>, token: u64) -> Outcome {
    match attempt {
        Outcome::Held(lease) => {
            let from = from.unwrap_or(lease.counted_from());
            Outcome::Held(Lease::new(request, from).with_token(token))
        }
        busy => busy,
    }
}

/// Says that a grant brings many tokens, and counts in steps of one.
#[derive(Debug, Default)]
pub(crate) struct TokensNotSetAside(AtomicU64);

impl TokensNotSetAside {
    fn counted(&self, attempt: Outcome, request: &Request) -> Outcome {
        altered(
            attempt,
            request,
            None,
            self.0.fetch_add(1, Ordering::Relaxed),
        )
    }
}

#[async_trait]
impl Defect for TokensNotSetAside {
    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let attempt = client.store.try_acquire(request).await?;
        Ok(self.counted(attempt, request))
    }

    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let attempt = client.store.acquire(request).await?;
        Ok(self.counted(attempt, request))
    }
}

/// Grants what others hold.
#[derive(Debug, Default)]
pub(crate) struct TwoHolders;

#[async_trait]
impl Defect for TwoHolders {
    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        self.try_acquire(client, request).await
    }

    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        match client.store.try_acquire(request).await? {
            Outcome::Busy(_) => Ok(invented(request)),
            held => Ok(held),
        }
    }
}

/// Takes the client for the owner: whoever holds gets in again.
#[derive(Debug, Default)]
pub(crate) struct ReentersByClient(Mutex<HashSet<(usize, Name)>>);

#[async_trait]
impl Defect for ReentersByClient {
    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let key = (client.id, request.name().clone());
        let attempt = client.store.try_acquire(request).await?;
        let mut holds = self.0.lock().unwrap();
        match attempt {
            Outcome::Busy(_) if holds.contains(&key) => Ok(invented(request)),
            Outcome::Busy(busy) => Ok(Outcome::Busy(busy)),
            held => {
                holds.insert(key);
                Ok(held)
            }
        }
    }
}

/// One permit more than the limit.
#[derive(Debug, Default)]
pub(crate) struct PermitOverrun;

#[async_trait]
impl Defect for PermitOverrun {
    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        match self.try_acquire(client, request).await? {
            Outcome::Busy(_) => client.store.acquire(request).await,
            held => Ok(held),
        }
    }

    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        match client.store.try_acquire(request).await? {
            Outcome::Busy(_) if matches!(request.mode(), Mode::Permit { .. }) => {
                Ok(invented(request))
            }
            other => Ok(other),
        }
    }
}

/// Another limit for the same semaphore is taken for "all permits are out".
#[derive(Debug, Default)]
pub(crate) struct LimitMismatchIsBusy;

#[async_trait]
impl Defect for LimitMismatchIsBusy {
    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        match client.store.try_acquire(request).await {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(Outcome::Busy(Busy::default())),
            other => other,
        }
    }
}

/// Readers join whoever reads, and pass the writers that wait.
#[derive(Debug, Default)]
pub(crate) struct StarvesWriters(Mutex<HashMap<Name, Readers>>);

#[derive(Debug)]
struct Readers {
    /// The hold of the first one, which stands for all.
    hold: Lease,
    inside: HashSet<AttemptId>,
}

impl StarvesWriters {
    fn join(&self, request: &Request) -> Option<Outcome> {
        let mut locks = self.0.lock().unwrap();
        let readers = locks.get_mut(request.name())?;
        readers.inside.insert(request.attempt());
        Some(invented(request))
    }

    fn note(&self, request: &Request, attempt: &Outcome) {
        if let Outcome::Held(lease) = attempt {
            let readers = Readers {
                hold: lease.clone(),
                inside: HashSet::from([request.attempt()]),
            };
            self.0
                .lock()
                .unwrap()
                .insert(request.name().clone(), readers);
        }
    }
}

#[async_trait]
impl Defect for StarvesWriters {
    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        if request.mode() != Mode::Shared {
            return client.store.try_acquire(request).await;
        }
        if let Some(joined) = self.join(request) {
            return Ok(joined);
        }
        let attempt = client.store.try_acquire(request).await?;
        self.note(request, &attempt);
        Ok(attempt)
    }

    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        if request.mode() != Mode::Shared {
            return client.store.acquire(request).await;
        }
        if let Some(joined) = self.join(request) {
            return Ok(joined);
        }
        let attempt = client.store.acquire(request).await?;
        self.note(request, &attempt);
        Ok(attempt)
    }

    async fn release(&self, client: &Client, lease: &Lease) -> Result<Released> {
        let last = {
            let mut locks = self.0.lock().unwrap();
            let readers = locks.get_mut(lease.name());
            let left = readers.map(|r| (r.inside.remove(&lease.attempt()), r.inside.len()));
            match left {
                Some((true, 0)) => locks.remove(lease.name()).map(|readers| readers.hold),
                Some((true, _)) => return Ok(Released::Freed),
                _ => None,
            }
        };
        client.store.release(&last.unwrap_or(lease.clone())).await
    }
}

/// Every hold has the same token.
#[derive(Debug, Default)]
pub(crate) struct SameToken;

#[async_trait]
impl Defect for SameToken {
    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let attempt = client.store.try_acquire(request).await?;
        Ok(altered(attempt, request, None, 7))
    }

    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let attempt = client.store.acquire(request).await?;
        Ok(altered(attempt, request, None, 7))
    }
}

/// Tokens get smaller.
#[derive(Debug, Default)]
pub(crate) struct TokenGoesBack(AtomicU64);

#[async_trait]
impl Defect for TokenGoesBack {
    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let attempt = client.store.try_acquire(request).await?;
        let token = u64::MAX - self.0.fetch_add(1, Ordering::Relaxed);
        Ok(altered(attempt, request, None, token))
    }

    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let attempt = client.store.acquire(request).await?;
        let token = u64::MAX - self.0.fetch_add(1, Ordering::Relaxed);
        Ok(altered(attempt, request, None, token))
    }
}

/// Each client counts its own tokens.
#[derive(Debug, Default)]
pub(crate) struct TokenPerClient(Mutex<HashMap<usize, u64>>);

impl TokenPerClient {
    fn next(&self, client: &Client) -> u64 {
        let mut counters = self.0.lock().unwrap();
        let counter = counters.entry(client.id).or_default();
        *counter += 1;
        *counter
    }
}

#[async_trait]
impl Defect for TokenPerClient {
    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let attempt = client.store.try_acquire(request).await?;
        Ok(altered(attempt, request, None, self.next(client)))
    }

    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let attempt = client.store.acquire(request).await?;
        Ok(altered(attempt, request, None, self.next(client)))
    }
}

/// The lease counts from the reply.
#[derive(Debug, Default)]
pub(crate) struct ValidFromReply;

#[async_trait]
impl Defect for ValidFromReply {
    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let attempt = client.store.acquire(request).await?;
        let token = match &attempt {
            Outcome::Held(lease) => lease.token().map_or(0, u64::from),
            Outcome::Busy(_) => 0,
        };
        Ok(altered(attempt, request, Some(request.now()), token))
    }
}

/// An attempt that comes twice finds itself in its way.
#[derive(Debug, Default)]
pub(crate) struct NotIdempotent(Mutex<HashSet<AttemptId>>);

#[async_trait]
impl Defect for NotIdempotent {
    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        if self.0.lock().unwrap().contains(&request.attempt()) {
            return Ok(Outcome::Busy(Busy::default()));
        }
        let attempt = client.store.try_acquire(request).await?;
        if matches!(attempt, Outcome::Held(_)) {
            self.0.lock().unwrap().insert(request.attempt());
        }
        Ok(attempt)
    }
}

/// A store out of reach looks busy.
#[derive(Debug, Default)]
pub(crate) struct UnreachableIsBusy;

fn busy_if_unreachable(outcome: Result<Outcome>) -> Result<Outcome> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::Unreachable => Ok(Outcome::Busy(Busy::default())),
        other => other,
    }
}

#[async_trait]
impl Defect for UnreachableIsBusy {
    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        busy_if_unreachable(client.store.try_acquire(request).await)
    }

    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        busy_if_unreachable(client.store.acquire(request).await)
    }
}

/// A try waits for the holder.
#[derive(Debug, Default)]
pub(crate) struct TryWaits;

#[async_trait]
impl Defect for TryWaits {
    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        client.store.acquire(request).await
    }
}

/// Waits with the whole thread, so that nobody can stop it.
#[derive(Debug, Default)]
pub(crate) struct IgnoresTimeLimit;

#[async_trait]
impl Defect for IgnoresTimeLimit {
    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        for _ in 0..400 {
            if let Outcome::Held(lease) = client.store.try_acquire(request).await? {
                return Ok(Outcome::Held(lease));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Outcome::Busy(Busy::default()))
    }
}

/// Leaves a row for every acquire.
#[derive(Debug, Default)]
pub(crate) struct LeavesRows(AtomicU64);

#[async_trait]
impl Defect for LeavesRows {
    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        self.0.fetch_add(1, Ordering::Relaxed);
        client.store.acquire(request).await
    }

    fn residue(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
