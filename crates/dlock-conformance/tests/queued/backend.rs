//! What the client of the store with a queue answers to core.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_conformance::async_trait;
use dlock_core::backend::{Backend, Busy, Lease, Outcome, Renewal, Request};
use dlock_core::{
    Capabilities, Error, ErrorKind, LockInfo, LossReason, Mode, Name, Released, Result,
};

use super::client::{Client, Listener};
use super::flaws::Flaw;
use super::table::{Answer, Grant, Table, Way};

#[async_trait]
impl Backend for Client {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        let way = match self.way(request, Way::Try).await {
            Ok(way) => way,
            Err(error) => return self.troubled(error, false, true),
        };
        let sent = request.now();
        let call = match self.line.send().await {
            Ok(call) => call,
            Err(error) => return self.troubled(error, false, true),
        };
        let owner = self.owner(request);
        let mut answer = self.server.table().attempt(request, owner, self.id, way)?;
        for _ in 0..200 {
            if self.flaw != Flaw::TryWaitsForTheRow || matches!(answer, Answer::Held(_)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            answer = self.server.table().attempt(request, owner, self.id, way)?;
        }
        self.server.changes.notify_waiters();
        if let Err(error) = self.line.reply(call).await {
            return self.troubled(error, true, true);
        }
        let from = match self.flaw {
            Flaw::LeaseFromTheAnswer => request.now(),
            _ => sent,
        };
        match answer {
            Answer::Held(grant) => Ok(self.held(request, owner, Grant { from, ..grant })),
            _ => Ok(Outcome::Busy(Busy::default())),
        }
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        if self.flaw == Flaw::ContendedTooSoon {
            request.mark_contended();
        }
        let way = match self.way(request, Way::Queue).await {
            Ok(way) => way,
            Err(error) => return self.troubled(error, false, false),
        };
        let sent = request.now();
        let call = match self.line.send().await {
            Ok(call) => call,
            Err(error) => return self.troubled(error, false, false),
        };
        let owner = self.owner(request);
        let answer = self.server.table().attempt(request, owner, self.id, way)?;
        self.server.changes.notify_waiters();
        let grant = match answer {
            Answer::Held(grant) => Grant {
                from: sent,
                ..grant
            },
            Answer::Busy => return Ok(Outcome::Busy(Busy::default())),
            Answer::Queued(place) => {
                if self.flaw != Flaw::NeverContended {
                    request.mark_contended();
                }
                let _listener = Listener::new(self);
                match self.granted(request, call, place).await {
                    Ok(Some(grant)) => grant,
                    Ok(None) => {
                        if self.flaw != Flaw::BusyLeavesThePlace {
                            let mut table = self.server.table();
                            table.leave(request, owner);
                            table.give_back(request, owner);
                        }
                        return Ok(Outcome::Busy(Busy::default()));
                    }
                    Err(error) => return self.troubled(error, true, false),
                }
            }
        };
        if let Err(error) = self.line.reply(call).await {
            return self.troubled(error, true, false);
        }
        let from = match self.flaw {
            Flaw::GrantFromTheReceipt | Flaw::GrantCountedFromWakeUp => request.now(),
            _ => grant.from,
        };
        Ok(self.held(request, owner, Grant { from, ..grant }))
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let flaw = self.flaw;
        if flaw == Flaw::RenewsOneByOne && leases.len() > 1 {
            let mut answers = Vec::new();
            for lease in leases {
                answers.extend(self.renew(std::slice::from_ref(lease)).await);
            }
            return answers;
        }
        if flaw == Flaw::OneLostFailsAll {
            let is_there = |table: &mut Table, lease: &Lease| {
                let info = table.inspect(lease.name());
                let owner = lease.attempt().to_string();
                info.holders.iter().any(|holder| holder.owner == owner)
            };
            let all = self.ask(|table| leases.iter().all(|lease| is_there(table, lease)));
            if let Ok(false) = all.await {
                let failed = || Renewal::Failed(Error::new(ErrorKind::Store, "no such row"));
                return leases.iter().map(|_| failed()).collect();
            }
        }
        let asked = self.ask(|table| {
            let mut found = Vec::new();
            for (index, lease) in leases.iter().enumerate() {
                let last = leases
                    .iter()
                    .rposition(|other| other.name() == lease.name());
                let skipped = flaw == Flaw::RenewalOfSixtyFour && index >= 64
                    || flaw == Flaw::RenewalKeyedByName && last != Some(index);
                let owner = lease.native().copied().unwrap_or(lease.attempt());
                let duration = match flaw {
                    Flaw::RenewFirstDuration => leases[0].duration(),
                    _ => lease.duration(),
                };
                found.push(skipped || table.renew(lease.name(), owner, lease.mode(), duration));
            }
            found
        });
        let mut found = match asked.await {
            Ok(found) => found,
            Err(error) => {
                let answer = || match flaw {
                    Flaw::FailedRenewalIsLost => Renewal::Lost(LossReason::Gone),
                    Flaw::FailedRenewalIsGood => Renewal::Extended,
                    _ => Renewal::Failed(error.clone()),
                };
                return leases.iter().map(|_| answer()).collect();
            }
        };
        match flaw {
            Flaw::OneLostAllLost if found.contains(&false) => found.fill(false),
            Flaw::OneLostAllExtended if found.contains(&true) => found.fill(true),
            Flaw::LostIsLeftOut => found.retain(|found| *found),
            Flaw::RenewShiftsAnswers => found.fill(true),
            Flaw::RenewalsAreSorted => {
                let mut named: Vec<_> =
                    leases.iter().map(|lease| lease.name()).zip(found).collect();
                named.sort();
                found = named.into_iter().map(|(_, found)| found).collect();
            }
            _ => {}
        }
        let gone = || match flaw {
            Flaw::GoneIsFailed => Renewal::Failed(Error::new(ErrorKind::Store, "no such hold")),
            _ => Renewal::Lost(LossReason::Gone),
        };
        let answer = |found| if found { Renewal::Extended } else { gone() };
        found.into_iter().map(answer).collect()
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        let owner = lease.native().copied().unwrap_or(lease.attempt());
        if self.flaw == Flaw::ReleaseIsLater {
            let (server, lease) = (self.server.clone(), lease.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                server.table().release(lease.name(), owner, lease.mode());
                server.changes.notify_waiters();
            });
            return self.ask(|_| Released::Freed).await;
        }
        let asked = self.ask(|table| table.release(lease.name(), owner, lease.mode()));
        match (self.flaw, asked.await) {
            (Flaw::FailedReleaseIsLost, Err(_)) => Ok(Released::AlreadyLost),
            (_, Err(error)) => Err(error),
            (Flaw::ReleaseSaysFreed, _) => Ok(Released::Freed),
            (Flaw::ReleaseSaysLost, _) => Ok(Released::AlreadyLost),
            (Flaw::SecondReleaseIsAnError, Ok(false)) => {
                Err(Error::new(ErrorKind::Store, "there is no such hold"))
            }
            (_, Ok(true)) => Ok(Released::Freed),
            (_, Ok(false)) => Ok(Released::AlreadyLost),
        }
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        let owner = match self.flaw {
            Flaw::OwnerIsTheLabel => self.owner(request),
            _ => request.attempt(),
        };
        let asked = self.ask(|table| table.abandon(request, owner));
        match (self.flaw, asked.await) {
            (Flaw::FailedAbandonIsDone, _) => Ok(()),
            (Flaw::AbandonOfNothingIsAnError, Ok(false)) => {
                Err(Error::new(ErrorKind::Store, "there is no such attempt"))
            }
            (_, asked) => asked.map(drop),
        }
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        let owner = lease.native().copied().unwrap_or(lease.attempt());
        if self
            .ask(|table| table.downgrade(lease.name(), owner))
            .await?
        {
            return Ok(());
        }
        let kind = match self.flaw {
            Flaw::DowngradeOfTheGoneIsAStoreError => ErrorKind::Store,
            _ => ErrorKind::Lost,
        };
        Err(Error::new(kind, "the hold is gone"))
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        let asked = self.ask(|table| table.inspect(name)).await;
        match (self.flaw, asked) {
            (Flaw::CutIsShownAsFree, Err(_)) => Ok(LockInfo::new(name.clone())),
            (Flaw::InspectOfTheFreeIsAnError, Ok(info)) if !info.is_locked() => {
                Err(Error::new(ErrorKind::Store, "there is no such lock"))
            }
            (_, asked) => asked,
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let asked = self.ask(|table| table.list(prefix)).await;
        match (self.flaw, asked) {
            (Flaw::CutHasAnEmptyList, Err(_)) => Ok(Vec::new()),
            (_, asked) => asked,
        }
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        let asked = self.ask(|table| table.break_lock(name)).await;
        match (self.flaw, asked) {
            (Flaw::CutBreakIsFalse, Err(_)) => Ok(false),
            (_, asked) => asked,
        }
    }

    async fn others_wait(&self, name: &Name) -> bool {
        let waits = self.ask(|table| table.is_waited_for(name, |_| true)).await;
        match self.flaw {
            Flaw::OthersNeverWait => false,
            Flaw::OthersAlwaysWait => true,
            _ => waits.unwrap_or(false),
        }
    }

    async fn wanted(&self, lease: &Lease) {
        let Ok(call) = self.line.send().await else {
            return std::future::pending().await;
        };
        let counts = |mode| self.flaw != Flaw::ReadersWantNothing || mode != Mode::Shared;
        let waits = || self.server.table().is_waited_for(lease.name(), counts);
        match self.flaw {
            Flaw::TellsNever => return std::future::pending().await,
            Flaw::TellsAlways => return,
            Flaw::TellsOfNewcomersOnly => {
                while waits() {
                    self.server.changes.notified().await;
                }
            }
            _ => {}
        }
        let _listener = Listener::new(self);
        loop {
            let changes = self.server.changes.notified();
            if waits() {
                break;
            }
            changes.await;
        }
        self.line.heard(call).await;
    }

    async fn close(&self) -> Result<()> {
        if self.flaw == Flaw::CloseFreesAll {
            self.server.table().rows.clear();
        }
        if self.flaw == Flaw::SecondCloseIsAnError && !self.is_open.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "it is closed already"));
        }
        self.close_once();
        Ok(())
    }
}
