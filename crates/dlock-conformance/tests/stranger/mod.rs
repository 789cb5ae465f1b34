//! A backend as a stranger might write it in a day, with one bug at a time.

mod shelf;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_conformance::{Ability, Fault, Faulty, Harness, Residue, async_trait};
use dlock_core::backend::{Backend, Busy, Lease, Outcome, Renewal, Request};
use dlock_core::{
    Capabilities, Error, ErrorKind, LockInfo, LossReason, Name, Reach, Released, Result, WakeUp,
};
use dlock_memory::{Control, MemoryBackend};

use shelf::Shelf;

bugs! { Bug in BUGS and
    // Of `tests/blind`: where there is a queue, it would do no harm.
    TokenKeptByAttempt:
    ChecksThenWrites "looks whether the lock is free, and writes in a second step", of_many_tries_at_once_one_succeeds;
    OwnerIsTheClient "the owner is the client, so its next attempt finds itself", attempts_through_one_backend_exclude_each_other;
    ReleaseByName "the release deletes by name", stale_release_leaves_a_later_hold;
    RenewalByName "the renewal updates by name", stale_renewal_leaves_a_later_hold;
    AbandonByName "the undo deletes by name", stale_abandon_leaves_a_later_hold;
    DowngradeByName "the downgrade updates by name", stale_downgrade_leaves_a_later_hold;
    RenewalRevives "the renewal does not look whether the hold has ended", ended_hold_cannot_be_renewed;
    ReleaseOfTheExpiredIsFreed "the release of a hold whose end has passed says freed", release_of_a_lost_hold_says_so;
    RepeatedAttemptIsBusy "an attempt that is sent again finds itself in its way", same_attempt_twice_is_one_hold;
    RepeatedAttemptHasANewToken "an attempt that is sent again gets another token", same_attempt_twice_is_one_hold;
    RepeatedAttemptKeepsItsEnd "an attempt that is sent again keeps its old end", repeated_attempt_extends_the_lease;
    RepeatedPermitIsAnother "a permit that is asked for again is another one", same_attempt_twice_takes_one_permit;
    RenewalAddsUp "the renewal adds the lease to the old end", renewals_do_not_add_up;
    RenewalForADay "the renewal keeps the hold for a day", holder_killed_after_renewals_frees_lock_within_lease;
    RenewalIsShort "the renewal extends by half of the lease", renewal_lasts_for_the_whole_lease;
    RenewalKeepsTheEnd "the renewal changes nothing and says extended", hold_outlives_many_leases_while_it_is_renewed;
    LeaseIsIgnored "every hold lasts thirty seconds, whatever the lease", expired_hold_is_free_for_a_try;
    LeaseIsHalved "the store keeps a hold for half of its lease", renewal_lasts_for_the_whole_lease;
    LeaseFromTheReply "the lease is counted from the reply", lease_counts_from_before_the_backend_was_asked;
    EndByTheClientsClock "the client's clock makes the end, the store's is compared with it", holds_end_in_time_by_a_store_whose_clock_is_wrong;
    TokenGoesWithTheRow "the counter is in the row that the release deletes", tokens_increase_from_holder_to_holder;
    TokenIsATime "the token is a time in milliseconds", tokens_increase_in_quick_succession;
    TokenIsTheTimeOfDay "the token is the store's time of day", tokens_increase_while_the_clock_of_the_store_moves;
    TokensInBlocks "each connection takes a block of tokens (the cache of a sequence)", tokens_increase_with_many_clients_and_hundreds_of_holds;
    ReadersShareAToken "readers get the token of the first one", tokens_increase_for_readers;
    BreakResetsTheCounter "breaking a lock begins its tokens anew", tokens_increase_after_a_break;
    InspectShowsTheCounter "inspect shows the next token, not the holder's", token_that_is_shown_is_the_holders;
    InspectShowsTheExpired "inspect shows holds whose end has passed", expired_holds_are_not_shown;
    ListShowsTheExpired "list shows holds whose end has passed", expired_holds_are_not_shown;
    ListFindsTheMiddle "list finds the prefix anywhere in a name", list_finds_the_held_locks_of_a_prefix;
    ListIgnoresCase "list does not tell upper from lower case", list_finds_the_held_locks_of_a_prefix;
    LabelIsDropped "the holder's label is not kept", inspect_shows_name_holder_and_label_as_given;
    NamesFoldCase "the column of names ignores case", names_that_look_alike_are_independent;
    NamesAreTrimmed "spaces around a name are cut off", names_that_look_alike_are_independent;
    NamesLoseAccents "what is not ASCII is left out of the key", names_that_look_alike_are_independent;
    NamesLoseSeparators "separators in names become one character", names_that_look_alike_are_independent;
    NamesAreCut "names are cut at a hundred characters", longest_names_are_independent;
    ErrorsAreBusy "any error of an attempt is taken for busy", cut_store_is_an_error_not_busy;
    RefusalIsBusy "a refusal is taken for busy", refused_client_is_told_so;
    RefusalIsUnreachable "a refusal is taken for an outage", refused_client_is_told_so;
    RefusedRenewalIsLost "a refused renewal is taken for a loss", refused_renewal_is_no_loss_while_the_lease_lasts;
    FailedRenewalIsLost "a failed renewal is taken for a loss", outage_shorter_than_the_lease_is_not_a_loss;
    FailedRenewalIsGood "a failed renewal is taken for a good one", loss_is_told_when_the_store_is_cut_off;
    RefusedReleaseIsFreed "a refused release says freed", refused_release_is_done_later;
    ConnectionIsKept "a connection that fell silent is used for ever", client_works_again_when_its_connections_fall_silent;
    RenewalConnectionIsKept "renewals have a connection of their own, which is used for ever", hold_outlives_connections_that_fall_silent;
    UndoIsNotRepeated "the undo of a call that hung is taken for done", cancelled_call_on_a_silent_connection_leaves_nothing;
    NoTombstone "an abandoned attempt is not remembered", attempt_that_arrives_after_its_abandon_holds_nothing;
    TombstoneOfASecond "an abandoned attempt is remembered for a second", attempt_that_arrives_seconds_after_its_abandon_holds_nothing;
    TombstoneGoesWithTheNext "an abandoned attempt is forgotten when the next holder releases", attempt_that_arrives_seconds_after_its_abandon_holds_nothing;
    AbandonForgetsReaders "the undo does not look among the readers", cancelled_reader_leaves_nothing;
    AbandonForgetsPermits "the undo does not look among the permits", cancelled_permit_leaves_nothing;
    AnotherLimitIsBusy "another limit of a semaphore goes unnoticed", another_limit_is_a_conflict;
    OnePermitTooMany "the count of permits is off by one", all_permits_can_be_held_and_no_more;
    DeadPermitsCount "permits of the dead are counted for ever", permit_of_a_killed_process_comes_back_within_lease;
    DeadReadersCount "readers that died are counted for ever", reader_killed_lets_a_writer_in_within_lease;
    ReadersShareAnEnd "one end for all readers, which the last one sets", killed_reader_does_not_end_the_hold_of_another;
    ReaderReleasesAll "the release of a reader deletes all of them", release_of_a_reader_touches_only_its_own;
    PermitReleasesAnother "the release of a permit takes whichever comes last", release_of_a_permit_touches_only_its_own;
    ReadersIgnoreWriters "a reader does not look for a writer", writers_exclude_readers_and_writers;
    WritersIgnoreReaders "a writer does not look for readers", writers_exclude_readers_and_writers;
    DowngradeOfTheGoneIsFine "the downgrade of a hold that is gone says done", downgrade_of_a_hold_that_is_gone_says_so;
    DowngradeForgetsTheOwner "after a downgrade the hold belongs to nobody", downgrade_lets_readers_in_and_no_writer;
    BreakAlwaysSaysYes "breaking a free lock says that somebody held it", break_frees_and_tells;
    RenewalsInAnyOrder "the answers of a renewal come in another order", renewal_answers_each_lease_in_order;
    RenewalsOfTheFoundOnly "only the holds that are there are answered for", renewal_answers_each_lease_in_order;
    RowIsLeft "a row stays for every hold", nothing_is_left_in_the_store;
    TombstonesAreLeft "tombstones stay for ever", nothing_is_left_in_the_store;
    CloseLeavesTheConnection "close does not end the connection", nothing_is_left_in_the_store;
}

/// The server and its harness.
pub(crate) struct Planted {
    bug: Bug,
    server: Arc<Mutex<Shelf>>,
    clients: AtomicUsize,
    open: Arc<AtomicU64>,
}

impl Planted {
    pub(crate) fn harness(bug: Bug) -> Arc<dyn Harness> {
        Arc::new(Self {
            bug,
            server: Arc::new(Mutex::new(Shelf::new(bug))),
            clients: AtomicUsize::new(0),
            open: Arc::default(),
        })
    }

    fn client(&self) -> Client {
        let mut capabilities = Capabilities::new("planted");
        capabilities.fencing = true;
        capabilities.reach = Reach::Process;
        capabilities.shared = true;
        capabilities.downgrade = true;
        capabilities.permits = true;
        capabilities.inspect = true;
        capabilities.break_lock = true;
        capabilities.wake_up = WakeUp::Poll {
            longest: Duration::from_millis(10),
        };
        self.open.fetch_add(1, Ordering::SeqCst);
        let line = Arc::new(Line {
            there: MemoryBackend::new(),
            back: MemoryBackend::new(),
            silent: AtomicBool::new(false),
        });
        Client {
            bug: self.bug,
            id: self.clients.fetch_add(1, Ordering::SeqCst),
            server: self.server.clone(),
            line,
            capabilities,
            open: self.open.clone(),
            is_open: AtomicBool::new(true),
        }
    }
}

#[async_trait]
impl Harness for Planted {
    fn name(&self) -> &str {
        "planted"
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(self.client()))
    }

    fn abilities(&self) -> &'static [Ability] {
        Ability::ALL
    }

    async fn faulty(&self) -> Result<Faulty> {
        let client = self.client();
        let fault = Arc::new(Disturb(self.bug, client.line.clone()));
        Ok(Faulty {
            backend: Arc::new(client),
            fault,
        })
    }

    async fn set_clock(&self, seconds_ahead: i64) -> Result<()> {
        self.server.lock().unwrap().ahead = seconds_ahead;
        Ok(())
    }

    async fn expire(&self, name: &Name) -> Result<()> {
        self.server.lock().unwrap().expire(name);
        Ok(())
    }

    async fn residue(&self) -> Result<Residue> {
        let rows = self.server.lock().unwrap().count();
        let open = self.open.load(Ordering::SeqCst);
        Ok(Residue::from([
            ("rows".to_owned(), rows),
            ("connections".to_owned(), open),
        ]))
    }
}

/// The way to the server and back, played by two clients of memory stores that are disturbed.
#[derive(Debug)]
struct Line {
    there: MemoryBackend,
    back: MemoryBackend,
    /// The connections that were open have fallen silent.
    silent: AtomicBool,
}

impl Line {
    async fn pass(backend: &MemoryBackend) -> Result<()> {
        let nothing = Name::new("x").unwrap();
        backend.inspect(&nothing).await.map(drop)
    }
}

#[derive(Debug)]
struct Client {
    bug: Bug,
    id: usize,
    server: Arc<Mutex<Shelf>>,
    line: Arc<Line>,
    capabilities: Capabilities,
    open: Arc<AtomicU64>,
    is_open: AtomicBool,
}

impl Client {
    /// One request: there, the work, and back.
    async fn ask<T>(&self, work: impl FnOnce(&mut Shelf) -> T) -> Result<T> {
        if self.bug == Bug::ConnectionIsKept && self.line.silent.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        Line::pass(&self.line.there).await?;
        let answer = work(&mut self.server.lock().unwrap());
        Line::pass(&self.line.back).await?;
        Ok(answer)
    }

    fn close_once(&self) {
        if self.is_open.swap(false, Ordering::SeqCst) {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.bug != Bug::CloseLeavesTheConnection {
            self.close_once();
        }
    }
}

#[async_trait]
impl Backend for Client {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        "planted:"
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        let mut from = request.now();
        let mut unchecked = false;
        if self.bug == Bug::ChecksThenWrites {
            unchecked = self.ask(|shelf| shelf.looks_free(request)).await?;
            tokio::task::yield_now().await;
        }
        let asked = self.ask(|shelf| shelf.try_acquire(request, self.id, unchecked));
        let answer = match asked.await {
            Ok(answer) => answer,
            Err(_) if self.bug == Bug::ErrorsAreBusy => Ok(None),
            Err(error) if error.kind() == ErrorKind::Denied => match self.bug {
                Bug::RefusalIsBusy => Ok(None),
                Bug::RefusalIsUnreachable => Err(Error::new(ErrorKind::Unreachable, "refused")),
                _ => Err(error),
            },
            Err(error) => Err(error),
        };
        if self.bug == Bug::LeaseFromTheReply {
            from = request.now();
        }
        Ok(match answer? {
            Some(token) => Outcome::Held(Lease::new(request, from).with_token(token)),
            None => Outcome::Busy(Busy::default()),
        })
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        if self.bug == Bug::RenewalConnectionIsKept && self.line.silent.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        let asked = self.ask(|shelf| {
            let one =
                |lease: &Arc<Lease>| shelf.renew(lease.name(), lease.attempt(), lease.duration());
            leases.iter().map(one).collect::<Vec<bool>>()
        });
        let mut answers: Vec<Renewal> = match asked.await {
            Ok(found) => found
                .into_iter()
                .filter(|found| *found || self.bug != Bug::RenewalsOfTheFoundOnly)
                .map(|found| match found {
                    true => Renewal::Extended,
                    false => Renewal::Lost(LossReason::Gone),
                })
                .collect(),
            Err(error) => {
                let answer = || match (self.bug, error.kind()) {
                    (Bug::FailedRenewalIsGood, _) => Renewal::Extended,
                    (Bug::RefusedRenewalIsLost, ErrorKind::Denied)
                    | (Bug::FailedRenewalIsLost, _) => Renewal::Lost(LossReason::Gone),
                    _ => Renewal::Failed(error.clone()),
                };
                leases.iter().map(|_| answer()).collect()
            }
        };
        if self.bug == Bug::RenewalsInAnyOrder {
            answers.sort_by_key(|answer| matches!(answer, Renewal::Extended));
        }
        answers
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        let asked = self.ask(|shelf| shelf.release(lease.name(), lease.attempt()));
        match asked.await {
            Ok(true) => Ok(Released::Freed),
            Ok(false) => Ok(Released::AlreadyLost),
            Err(error)
                if self.bug == Bug::RefusedReleaseIsFreed && error.kind() == ErrorKind::Denied =>
            {
                Ok(Released::Freed)
            }
            Err(error) => Err(error),
        }
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        if self.bug == Bug::UndoIsNotRepeated && self.line.silent.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.ask(|shelf| shelf.abandon(request)).await
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        let asked = self.ask(|shelf| shelf.downgrade(lease.name(), lease.attempt()));
        if asked.await? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Lost, "the hold is gone"))
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        self.ask(|shelf| shelf.inspect(name)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.ask(|shelf| shelf.list(prefix)).await
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        self.ask(|shelf| shelf.break_lock(name)).await
    }

    async fn close(&self) -> Result<()> {
        if self.bug != Bug::CloseLeavesTheConnection {
            self.close_once();
        }
        Ok(())
    }
}

struct Disturb(Bug, Arc<Line>);

impl Disturb {
    fn both(&self, change: impl Fn(Control)) {
        change(self.1.there.control());
        change(self.1.back.control());
    }
}

#[async_trait]
impl Fault for Disturb {
    async fn cut(&self) {
        self.both(|control| control.cut());
    }

    async fn hang(&self) {
        self.both(|control| control.hang());
    }

    async fn half_open(&self) {
        self.1.silent.store(true, Ordering::SeqCst);
        self.both(|control| control.half_open());
        if self.0 == Bug::UndoIsNotRepeated {
            // The work is done, and its answer does not come.
            self.1.back.control().hang();
        }
    }

    async fn deny(&self) {
        self.1.there.control().deny();
    }

    async fn heal(&self) {
        self.1.silent.store(false, Ordering::SeqCst);
        self.both(|control| control.heal());
    }

    async fn lose_reply(&self) {
        self.1.back.control().lose_reply(1);
    }

    async fn delay_replies(&self, delay: Duration) {
        self.1.back.control().delay_replies(delay);
    }
}
