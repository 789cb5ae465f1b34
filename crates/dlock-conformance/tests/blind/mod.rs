//! The forty mistakes of [`LIST`], planted: most of them in the store with a queue, and some of those are among its flaws already.

mod list;

use std::sync::Arc;

use dlock_conformance::{Harness, Timings};

pub(crate) use list::LIST;

use crate::queued::{self, FLAWS, Flaw};
use crate::stranger::{Bug, Planted};

/// The cases that were added to the suite after the list was written: the first figure is that of the others.
pub(crate) const ADDED: &[&str] = &[
    "long_batch_of_renewals_extends_every_hold",
    "holds_of_one_name_in_a_batch_are_all_renewed",
    "each_hold_of_a_batch_is_renewed_for_its_own_lease",
    "long_batch_of_renewals_takes_few_trips",
    "many_releases_and_undos_at_once_free_every_hold",
    "hold_that_ended_goes_to_the_first_who_waits",
    "ended_hold_cannot_be_downgraded",
    "undo_of_a_hold_lets_in_who_waits",
];

/// A mistake of the list, where it is planted, the case of the suite as it was then that caught it, and the one that does now.
pub(crate) struct Mistake {
    pub(crate) name: &'static str,
    pub(crate) place: Place,
    pub(crate) at_first: &'static str,
    pub(crate) now: &'static str,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    Queued(Flaw),
    Polled(Bug),
}

impl Mistake {
    pub(crate) fn harness(&self, timings: Timings) -> Arc<dyn Harness> {
        match self.place {
            Place::Queued(flaw) => queued::harness(flaw, timings),
            Place::Polled(bug) => Planted::harness(bug),
        }
    }

    /// Whether it is also among those that were planted before, and for which cases were written.
    pub(crate) fn was_known(&self) -> bool {
        match self.place {
            Place::Queued(flaw) => FLAWS.iter().any(|(known, ..)| *known == flaw),
            Place::Polled(_) => false,
        }
    }
}

macro_rules! blind {
    ($($name:ident is $store:ident $bugs:ident::$bug:ident: $($at_first:ident)?, $($now:ident)?;)*) => {
        pub(crate) const BLIND: &[Mistake] = &[$(Mistake {
            name: stringify!($name),
            place: Place::$store($bugs::$bug),
            at_first: concat!($(stringify!($at_first))?),
            now: concat!($(stringify!($now))?),
        },)*];
    };
}

blind! {
    OwnerIsTheLabel is Queued Flaw::OwnerIsTheLabel: attempts_through_one_backend_exclude_each_other, attempts_through_one_backend_exclude_each_other;
    RepeatIsBusy is Queued Flaw::RepeatIsBusy: same_attempt_twice_is_one_hold, same_attempt_twice_is_one_hold;
    RepeatDrawsNewToken is Queued Flaw::RepeatHasANewToken: same_attempt_twice_is_one_hold, same_attempt_twice_is_one_hold;
    ExpiryInWholeSeconds is Queued Flaw::ExpiryInWholeSeconds: old_holder_is_invalid_before_the_next_one_holds, old_holder_is_invalid_before_the_next_one_holds;
    LeaseNeverUnderAMinute is Queued Flaw::LeaseNeverUnderAMinute: expired_hold_is_free_for_a_try, expired_hold_is_free_for_a_try;
    TakeOverPassesTheQueue is Queued Flaw::TakeOverPassesTheQueue: , hold_that_ended_goes_to_the_first_who_waits;
    TryLeavesAPlace is Queued Flaw::TryLeavesAPlace: try_lock_never_waits_for_a_holder, try_lock_never_waits_for_a_holder;
    TryWaitsForTheRow is Queued Flaw::TryWaitsForTheRow: try_lock_never_waits_for_a_holder, try_lock_never_waits_for_a_holder;
    PlaceByLastQuestion is Queued Flaw::PlaceByLastQuestion: waiter_that_waits_long_keeps_its_place, waiter_that_waits_long_keeps_its_place;
    NotContended is Queued Flaw::NeverContended: abandoned_waiter_leaves_the_queue, abandoned_waiter_leaves_the_queue;
    GrantCountedFromWakeUp is Queued Flaw::GrantCountedFromWakeUp: validity_counts_from_the_grant_for_a_waiter, validity_counts_from_the_grant_for_a_waiter;
    SubscribesTooLate is Queued Flaw::SubscribesTooLate: no_wake_up_is_missed_when_release_and_wait_meet, no_wake_up_is_missed_when_release_and_wait_meet;
    QueueKeyCollides is Queued Flaw::QueueHasAName: parts_of_a_lock_have_names_of_their_own, parts_of_a_lock_have_names_of_their_own;
    NameCutAt191 is Queued Flaw::NameCutAt191: longest_names_are_independent, longest_names_are_independent;
    NameHashedTo32Bits is Queued Flaw::NameHashedTo32Bits: names_with_the_same_short_hash_are_independent, names_with_the_same_short_hash_are_independent;
    LabelSpliced is Queued Flaw::LabelSpliced: inspect_shows_name_holder_and_label_as_given, inspect_shows_name_holder_and_label_as_given;
    OneEndForAllReaders is Queued Flaw::OneEndForAllReaders: renewal_of_one_hold_leaves_the_end_of_its_neighbour, renewal_of_one_hold_leaves_the_end_of_its_neighbour;
    LastReaderSetsTheEnd is Queued Flaw::LastReaderSetsTheEnd: killed_reader_does_not_end_the_hold_of_another, killed_reader_does_not_end_the_hold_of_another;
    DeadPermitsCount is Queued Flaw::DeadPermitsCount: permit_of_a_killed_process_comes_back_within_lease, permit_of_a_killed_process_comes_back_within_lease;
    RepeatTakesSecondPermit is Queued Flaw::RepeatTakesSecondPermit: same_attempt_twice_takes_one_permit, same_attempt_twice_takes_one_permit;
    DowngradeWakesNobody is Queued Flaw::DowngradeWakesNobody: downgrade_wakes_readers_in_their_turn, downgrade_wakes_readers_in_their_turn;
    FindsByMode is Queued Flaw::FindsByMode: hold_is_found_by_its_attempt_after_a_downgrade, hold_is_found_by_its_attempt_after_a_downgrade;
    DowngradeRevives is Queued Flaw::DowngradeRevives: , ended_hold_cannot_be_downgraded;
    RenewByName is Queued Flaw::RenewalKeyedByName: , holds_of_one_name_in_a_batch_are_all_renewed;
    RenewAddsUp is Queued Flaw::RenewalAdds: renewals_do_not_add_up, renewals_do_not_add_up;
    RenewFirstDuration is Queued Flaw::RenewFirstDuration: , each_hold_of_a_batch_is_renewed_for_its_own_lease;
    RenewRevives is Queued Flaw::RenewalRevives: ended_hold_cannot_be_renewed, ended_hold_cannot_be_renewed;
    RenewShiftsAnswers is Queued Flaw::RenewShiftsAnswers: renewal_answers_each_lease_in_order, renewal_answers_each_lease_in_order;
    OneLostFailsAll is Queued Flaw::OneLostFailsAll: renewal_answers_each_lease_in_order, renewal_answers_each_lease_in_order;
    RenewsOneByOne is Queued Flaw::RenewsOneByOne: , long_batch_of_renewals_takes_few_trips;
    ReleaseErrorIsLost is Queued Flaw::FailedReleaseIsLost: release_while_cut_is_unknown_and_done_later, release_while_cut_is_unknown_and_done_later;
    ReleaseGoneIsError is Queued Flaw::SecondReleaseIsAnError: release_is_idempotent_and_tells_what_it_found, release_is_idempotent_and_tells_what_it_found;
    AbandonFreesWithoutWord is Queued Flaw::AbandonFreesWithoutWord: , undo_of_a_hold_lets_in_who_waits;
    TombstoneInTheRow is Queued Flaw::TombstoneInTheRow: attempt_that_arrives_seconds_after_its_abandon_holds_nothing, attempt_that_arrives_seconds_after_its_abandon_holds_nothing;
    InDoubtIsNo is Queued Flaw::InDoubtIsNo: lost_reply_to_a_try_neither_leaks_nor_lies, lost_reply_to_a_try_neither_leaks_nor_lies;
    AbandonUnknownIsError is Queued Flaw::AbandonOfNothingIsAnError: abandon_is_idempotent_and_leaves_others_alone, abandon_is_idempotent_and_leaves_others_alone;
    BreakTellsNobody is Queued Flaw::BreakWakesNobody: break_wakes_the_next_waiter, break_wakes_the_next_waiter;
    BreakLeavesReaders is Queued Flaw::BreakLeavesReaders: break_ends_every_hold_of_the_name, break_ends_every_hold_of_the_name;
    TokenKeptByAttempt is Polled Bug::TokenKeptByAttempt: tokens_increase_under_contention, tokens_increase_under_contention;
    TurnsOverlap is Queued Flaw::TokenIgnoresTurns: all_tokens_of_a_grant_are_below_the_next_one, all_tokens_of_a_grant_are_below_the_next_one;
}
