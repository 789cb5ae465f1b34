//! One client of the store with a queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::backend::{AttemptId, Busy, Hearing, Lease, Outcome, Request};
use dlock_core::{Capabilities, Error, ErrorKind, Fairness, HeldNow, Reach, Result, WakeUp};
use tokio::sync::oneshot;

use super::Server;
use super::flaws::Flaw;
use super::line::{Call, Line};
use super::table::{Grant, TURNS, Table, Way};

const SOON: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) flaw: Flaw,
    pub(crate) id: usize,
    pub(crate) server: Arc<Server>,
    pub(crate) line: Line,
    pub(crate) capabilities: Capabilities,
    pub(crate) identity: String,
    pub(crate) is_open: AtomicBool,
}

impl Client {
    pub(crate) fn new(flaw: Flaw, server: &Arc<Server>) -> Self {
        let mut capabilities = Capabilities::new("queued");
        capabilities.fencing = true;
        capabilities.fairness = Fairness::Fifo;
        capabilities.wake_up = WakeUp::Push { bound: SOON };
        capabilities.reach = Reach::Process;
        capabilities.shared = true;
        capabilities.downgrade = true;
        capabilities.permits = true;
        capabilities.inspect = true;
        capabilities.break_lock = true;
        capabilities.turns = u32::try_from(TURNS).unwrap();
        capabilities.wanted = Hearing::Told { bound: SOON };
        server.open.fetch_add(1, Ordering::SeqCst);
        let id = server.clients.fetch_add(1, Ordering::SeqCst);
        Self {
            flaw,
            id,
            server: server.clone(),
            line: Line::new(flaw),
            capabilities,
            identity: match flaw {
                Flaw::IdentityOfTheClient => format!("queued:{id}"),
                _ => "queued:".to_owned(),
            },
            is_open: AtomicBool::new(true),
        }
    }

    pub(crate) fn close_once(&self) {
        if self.flaw != Flaw::CloseLeavesTheConnection && self.is_open.swap(false, Ordering::SeqCst)
        {
            self.server.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// One request: there, the work, and back.
    pub(crate) async fn ask<T>(&self, work: impl FnOnce(&mut Table) -> T) -> Result<T> {
        let call = self.line.send().await?;
        let answer = work(&mut self.server.table());
        self.server.changes.notify_waiters();
        self.line.reply(call).await?;
        Ok(answer)
    }

    /// The owner in the store.
    pub(crate) fn owner(&self, request: &Request) -> AttemptId {
        match self.flaw {
            Flaw::OwnerIsMadeAnew => AttemptId::new(),
            Flaw::OwnerIsTheLabel => of_label(request.label()),
            _ => request.attempt(),
        }
    }

    pub(crate) fn held(&self, request: &Request, owner: AttemptId, grant: Grant) -> Outcome {
        let lease = Lease::new(request, grant.from).with_native(Arc::new(owner));
        Outcome::Held(match self.flaw {
            Flaw::NoTokenAtAll => lease,
            _ => lease.with_token(grant.token),
        })
    }

    /// A look beforehand, for those who look first and take later.
    pub(crate) async fn way(&self, request: &Request, way: Way) -> Result<Way> {
        let looks = [
            Flaw::LooksThenTakes,
            Flaw::FirstUseRaces,
            Flaw::TakeoverRaces,
        ];
        if !looks.contains(&self.flaw) || !self.ask(|table| table.looks_free(request)).await? {
            return Ok(way);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(Way::Unchecked)
    }

    /// What befell an attempt, as this backend reports it.
    pub(crate) fn troubled(&self, error: Error, was_sent: bool, is_try: bool) -> Result<Outcome> {
        let busy = Ok(Outcome::Busy(Busy::default()));
        let error = match was_sent {
            false => error.with_held(HeldNow::No),
            true => error,
        };
        match (self.flaw, error.kind()) {
            (Flaw::CutIsBusyForATry, ErrorKind::Unreachable) if is_try => busy,
            (Flaw::CutIsBusyForAWaiter, ErrorKind::Unreachable) if !is_try => busy,
            (Flaw::DeniedIsBusy, ErrorKind::Denied) => busy,
            (Flaw::DeniedIsUnreachable, ErrorKind::Denied) => {
                Err(Error::new(ErrorKind::Unreachable, "refused"))
            }
            (Flaw::CutIsAStoreError, ErrorKind::Unreachable) => {
                Err(Error::new(ErrorKind::Store, "cut"))
            }
            (Flaw::InDoubtIsNo, _) => Err(error.with_held(HeldNow::No)),
            (Flaw::LostTryHoldsNothing, _) if is_try => Err(error.with_held(HeldNow::No)),
            (Flaw::LostWaitHoldsNothing, _) if !is_try => Err(error.with_held(HeldNow::No)),
            _ => Err(error),
        }
    }

    /// Waits at the store for a place that was taken.
    pub(crate) async fn granted(
        &self,
        request: &Request,
        call: Call,
        mut place: oneshot::Receiver<Grant>,
    ) -> Result<Option<Grant>> {
        let deadline = async {
            match request.deadline() {
                Some(deadline) => request.clock().sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let mut deadline = std::pin::pin!(deadline);
        if self.flaw == Flaw::SubscribesTooLate {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if !place.is_empty() {
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
        }
        let mut gone = std::pin::pin!(self.line.gone(call));
        loop {
            let aged = self.server.aged.notified();
            let look_again = {
                let mut table = self.server.table();
                let key = table.key(request.name());
                let asleep = [
                    Flaw::ReleaseWakesNobody,
                    Flaw::BreakWakesNobody,
                    Flaw::DowngradeWakesNobody,
                    Flaw::AbandonWakesNobody,
                    Flaw::AbandonFreesWithoutWord,
                ];
                if !asleep.contains(&self.flaw) {
                    table.sweep(&key);
                }
                let look_again = table
                    .free_in(request.name())
                    .unwrap_or(Duration::from_secs(1));
                match self.flaw {
                    // Only now and then: somebody else may come between.
                    Flaw::TakeOverPassesTheQueue => look_again + Duration::from_millis(300),
                    Flaw::PlaceByLastQuestion => {
                        table.goes_to_the_end(&key, request.attempt());
                        look_again.min(Duration::from_millis(300))
                    }
                    _ => look_again,
                }
            };
            tokio::select! {
                biased;
                grant = &mut place => match grant {
                    Ok(grant) => {
                        tokio::select! {
                            biased;
                            () = self.line.heard(call) => {}
                            error = &mut gone => return Err(error),
                        }
                        if self.flaw == Flaw::PushIsSlow {
                            tokio::time::sleep(Duration::from_secs(1)).await;
                        }
                        if self.flaw == Flaw::GrantCountedFromWakeUp {
                            tokio::time::sleep(Duration::from_millis(500)).await;
                        }
                        return Ok(Some(grant));
                    }
                    // The row is gone, and with it the place: no word will come.
                    Err(_) => std::future::pending().await,
                },
                error = &mut gone => return Err(error),
                () = &mut deadline => return Ok(None),
                () = aged => {}
                () = tokio::time::sleep(look_again.max(Duration::from_millis(1))) => {
                    let mut table = self.server.table();
                    let key = table.key(request.name());
                    table.sweep(&key);
                    if self.flaw == Flaw::TakeOverPassesTheQueue {
                        table.settle(&key);
                    }
                }
            }
        }
    }
}

/// The same owner for the same label.
fn of_label(label: &str) -> AttemptId {
    let step = |id: u128, byte| id.wrapping_mul(257).wrapping_add(u128::from(byte));
    AttemptId::from(uuid::Uuid::from_u128(label.bytes().fold(1, step)))
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close_once();
    }
}

/// One who waits to be told.
pub(crate) struct Listener<'a>(&'a Client);

impl<'a> Listener<'a> {
    pub(crate) fn new(client: &'a Client) -> Self {
        client.server.listeners.fetch_add(1, Ordering::SeqCst);
        Self(client)
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        if self.0.flaw != Flaw::ListenerStays {
            self.0.server.listeners.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
