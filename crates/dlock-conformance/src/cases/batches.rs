//! Many holds at once: renewals in one batch, releases and undos side by side. Told to the backend directly, so that nobody renews behind the
//! case's back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{Capability, Mode, Moment, Released, Result};
use futures::future::try_join_all;

use super::leases::{ROOMY, expect_free_after, take};
use crate::case::case_list;
use crate::{Ability, Need, World};

case_list! {
    C10 long_batch_of_renewals_extends_every_hold [Need::Deadline, Need::Movable]
        "a batch is cut at the most that one request takes, and the rest is called extended: renew it in several requests";
    C10 holds_of_one_name_in_a_batch_are_all_renewed [Need::Lease, Need::Can(Capability::Shared)]
        "a batch is gathered by name, so that of several holds of a name one is left: gather it by attempt";
    C10 each_hold_of_a_batch_is_renewed_for_its_own_lease [Need::Lease]
        "a batch has one lease for all: send each hold's own";
    C10 long_batch_of_renewals_takes_few_trips [Need::Deadline, Need::Movable, Need::Able(Ability::DelayReplies)]
        "the holds of a batch are renewed one after the other: ask for all of them before the first answer is waited for";
    C16 many_releases_and_undos_at_once_free_every_hold [Need::Movable]
        "requests that are sent together are cut at the most that one request takes, and the rest is called done";
}

/// More than any round number that somebody cuts a batch at, twice over, and more than core puts into one (256).
const HOLDS: usize = 300;

/// How many requests the case has under way.
const AT_ONCE: usize = 25;

/// A scene of many holds that are renewed in one batch.
struct Many {
    backend: Arc<dyn Backend>,
    lease: Duration,
    holds: Vec<Arc<Lease>>,
    /// When the last batch was sent.
    renewed: Moment,
}

impl Many {
    /// Renews all of them, if that is due; `false` when the machine was stalled for so long that they may have ended in earnest.
    async fn renew(&mut self, world: &World) -> bool {
        let sent = world.now();
        if sent < self.renewed + self.lease / 4 {
            return true;
        }
        let answers = self.backend.renew(&self.holds).await;
        assert_eq!(answers.len(), self.holds.len(), "one answer for each hold");
        let in_time = world.now() < self.renewed + self.lease * 9 / 10;
        let found = answers
            .iter()
            .position(|answer| !matches!(answer, Renewal::Extended));
        if let (true, Some(at)) = (in_time, found) {
            panic!(
                "of {} holds in a batch, number {at} was not renewed: {:?}",
                self.holds.len(),
                answers.get(at)
            );
        }
        self.renewed = sent;
        in_time
    }
}

async fn long_batch_of_renewals_extends_every_hold(world: World) -> Result<()> {
    // A scene in which the machine was stalled until leases were over shows nothing, and is set anew.
    for _ in 0..3 {
        if are_all_extended(&world).await? {
            return Ok(());
        }
    }
    panic!(
        "the machine was stalled for most of a lease, three times: nothing can be told from this run"
    );
}

/// Whether all holds of a long batch were seen to be kept; `false` when nobody can tell.
async fn are_all_extended(world: &World) -> Result<bool> {
    let (unique, other) = (world.name(), world.backend().await?);
    let lease = world.chosen_lease(ROOMY);
    let names: Vec<String> = (0..HOLDS).map(|n| format!("{unique}n{n}")).collect();
    let mut many = Many {
        backend: world.backend().await?,
        lease,
        holds: Vec::new(),
        renewed: world.now(),
    };
    let mut is_known = true;
    for names in names.chunks(AT_ONCE) {
        if many.holds.is_empty() {
            many.renewed = world.now();
        }
        let takes = names.iter().map(async |name| {
            let request = world.request_lasting(name, Mode::Exclusive, lease);
            take(&many.backend, &request).await
        });
        let taken = try_join_all(takes).await?;
        many.holds.extend(taken.into_iter().map(Arc::new));
        is_known &= many.renew(world).await;
    }
    // Until every lease as it was granted is over, and the second that stores may need to see it.
    let over = world.now() + lease + Duration::from_secs(1);
    while is_known && world.now() < over {
        tokio::time::sleep(lease / 10).await;
        is_known &= many.renew(world).await;
    }
    for holds in names.chunks(AT_ONCE) {
        is_known = is_known && many.renew(world).await;
        if !is_known {
            break;
        }
        let looks = holds.iter().map(async |name| {
            let probe = world.request(name, Mode::Exclusive);
            let found = other.try_acquire(&probe).await?;
            // Read after the answer: a lease that is good now was good when the other one was told.
            let is_good = world.now() < many.renewed + lease * 9 / 10;
            other.abandon(&probe).await?;
            let is_kept = matches!(found, Outcome::Busy(_));
            assert!(
                is_kept || !is_good,
                "another client got {name:?}, one of {HOLDS} holds whose renewal was answered with `Extended`"
            );
            Ok::<_, dlock_core::Error>(is_kept)
        });
        is_known &= try_join_all(looks)
            .await?
            .into_iter()
            .all(|is_kept| is_kept);
    }
    for holds in many.holds.chunks(AT_ONCE) {
        try_join_all(holds.iter().map(|hold| many.backend.release(hold))).await?;
    }
    Ok(is_known)
}

async fn holds_of_one_name_in_a_batch_are_all_renewed(world: World) -> Result<()> {
    let mut modes = vec![Mode::Shared];
    if world.has(Capability::Permits) {
        modes.push(Mode::Permit { limit: 3 });
    }
    let each = modes.into_iter().map(async |mode| {
        for _ in 0..3 {
            if are_neighbours_extended(&world, mode).await? {
                return Ok(());
            }
        }
        panic!("the machine was stalled for most of a lease, three times: nothing can be told from this run");
    });
    try_join_all(each).await?;
    Ok(())
}

/// Whether three holds of a name were seen to be there after their first leases; `false` when nobody can tell.
async fn are_neighbours_extended(world: &World, mode: Mode) -> Result<bool> {
    let name = world.name();
    let mut many = Many {
        backend: world.backend().await?,
        lease: ROOMY,
        holds: Vec::new(),
        renewed: world.now(),
    };
    for _ in 0..3 {
        let request = world.request_lasting(&name, mode, ROOMY);
        many.holds
            .push(Arc::new(take(&many.backend, &request).await?));
    }
    let mut is_known = true;
    let over = world.now() + ROOMY + Duration::from_secs(1);
    while is_known && world.now() < over {
        tokio::time::sleep(ROOMY / 10).await;
        is_known &= many.renew(world).await;
    }
    // The store's own word on each of them: that somebody is there says nothing about the others.
    for hold in &many.holds {
        let released = many.backend.release(hold).await?;
        is_known &= world.now() < many.renewed + ROOMY * 9 / 10;
        assert!(
            released == Released::Freed || !is_known,
            "one of three holds of a name ({mode}), whose renewal was answered with `Extended`, had ended: {released:?}"
        );
    }
    Ok(is_known)
}

async fn each_hold_of_a_batch_is_renewed_for_its_own_lease(world: World) -> Result<()> {
    let (long, short) = (ROOMY * 2, world.lease());
    let hold = async |backend: &Arc<dyn Backend>, lease| -> Result<(Request, Arc<Lease>)> {
        let request = world.request_lasting(&world.name(), Mode::Exclusive, lease);
        let hold = Arc::new(take(backend, &request).await?);
        Ok((request, hold))
    };
    let each = [true, false].map(async |long_first| {
        let backend = world.backend().await?;
        let (patient, lasting) = hold(&backend, long).await?;
        let (brief, passing) = hold(&backend, short).await?;
        let mut batch = vec![lasting, passing];
        if !long_first {
            batch.reverse();
        }
        let sent = world.now();
        let answers = backend.renew(&batch).await;
        if world.now() < sent + short / 2 {
            let extended = |answer: &Renewal| matches!(answer, Renewal::Extended);
            assert!(answers.iter().all(extended), "{answers:?}");
        }
        let what = "a hold that was renewed together with a longer one ends with its own lease";
        expect_free_after(short, &world, brief.name(), what).await?;
        tokio::time::sleep(ROOMY / 2).await;
        let what = "the hold was renewed together with a shorter one";
        super::leases::expect_kept(&world, &patient, sent, what).await?;
        backend.abandon(&patient).await
    });
    try_join_all(each).await?;
    Ok(())
}

async fn long_batch_of_renewals_takes_few_trips(world: World) -> Result<()> {
    const SLOW: Duration = Duration::from_millis(50);
    const BATCH: u16 = 150;
    let unique = world.name();
    let (backend, fault) = world.faulty_backend().await?;
    let names: Vec<String> = (0..BATCH).map(|n| format!("{unique}n{n}")).collect();
    let mut holds = Vec::new();
    for names in names.chunks(AT_ONCE) {
        let takes = names
            .iter()
            .map(async |name| take(&backend, &world.request(name, Mode::Exclusive)).await);
        holds.extend(try_join_all(takes).await?.into_iter().map(Arc::new));
    }
    fault.delay_replies(SLOW).await;
    let started = Instant::now();
    let answers = backend.renew(&holds).await;
    let took = started.elapsed();
    fault.heal().await;
    assert_eq!(
        answers.len(),
        usize::from(BATCH),
        "one answer for each hold"
    );
    // With a trip for each it takes longer than that; and then a lease of some seconds is over before the last of them is renewed.
    let limit = Duration::from_secs(2) + world.timings.tolerance;
    assert!(SLOW * u32::from(BATCH) > limit, "the case can tell");
    assert!(
        took <= limit,
        "{BATCH} holds were renewed in {took:?} by a store that is {SLOW:?} away: expected {limit:?} at most"
    );
    for holds in holds.chunks(AT_ONCE) {
        try_join_all(holds.iter().map(|hold| backend.release(hold))).await?;
    }
    Ok(())
}

async fn many_releases_and_undos_at_once_free_every_hold(world: World) -> Result<()> {
    const EACH: usize = HOLDS / 2;
    let unique = world.name();
    let (backend, other) = (world.backend().await?, world.backend().await?);
    let requests: Vec<Request> = (0..2 * EACH)
        .map(|n| world.request(&format!("{unique}n{n}"), Mode::Exclusive))
        .collect();
    let mut holds = Vec::new();
    for requests in requests.chunks(AT_ONCE) {
        let takes = requests.iter().map(|request| take(&backend, request));
        holds.extend(try_join_all(takes).await?);
    }
    // All at once, so that a backend that sends requests together has to.
    let (released, undone) = (&holds[..EACH], &requests[EACH..]);
    let found = try_join_all(released.iter().map(|hold| backend.release(hold))).await?;
    let freed = |found: &Released| *found == Released::Freed;
    assert!(found.iter().all(freed), "of {EACH} releases: {found:?}");
    try_join_all(undone.iter().map(|request| backend.abandon(request))).await?;
    for requests in requests.chunks(AT_ONCE) {
        let looks = requests.iter().map(async |old| {
            let request = world.request(old.name(), Mode::Exclusive);
            let found = other.try_acquire(&request).await?;
            assert!(
                matches!(found, Outcome::Held(_)),
                "{:?} is still held: it was given back together with {} others",
                old.name(),
                2 * EACH - 1
            );
            other.abandon(&request).await
        });
        try_join_all(looks).await?;
    }
    Ok(())
}
