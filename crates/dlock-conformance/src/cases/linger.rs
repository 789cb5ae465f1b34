//! [C21](dlock_core::contract#c21): locks that linger at their client after a release.

use std::time::Duration;

use dlock_core::{Capability, Guard, Hearing, Released, Result};

use crate::case::case_list;
use crate::{Ability, Need, World};

const PASS_ON: Need = Need::Can(Capability::PassOn);

case_list! {
    C21 lock_that_lingers_is_taken_again_without_the_store [PASS_ON, Need::Able(Ability::Cut)]
        "core does this; look whether `Capabilities::turns` says how many tokens a grant really brings";
    C21 lock_that_lingers_keeps_others_out [PASS_ON]
        "a hold ends before its lease although it is renewed";
    C21 lock_that_lingers_goes_back_when_its_time_has_passed [PASS_ON]
        "`release` answers `Freed` and leaves the hold in the store";
    C21 lock_that_lingers_goes_to_whoever_waits [PASS_ON]
        "`wanted` does not resolve, or `others_wait` says no, though an attempt stands in the queue";
    C21 others_wait_for_one_rest_however_often_it_is_used [PASS_ON]
        "`Capabilities::wanted` says `Told`, and nobody is told: core then takes silence for proof that nobody waits";
    C21 tokens_increase_over_a_lingering_lock [PASS_ON, Need::Can(Capability::Fencing)]
        "the store gives away tokens that `Capabilities::turns` sets aside for a grant";
    C21 lock_that_was_lost_while_it_lingered_is_asked_for [PASS_ON, Need::Deadline, Need::Able(Ability::Cut)]
        "`renew` says `Extended` for a hold that the store has given to another";
}

fn token(guard: &Guard) -> u64 {
    guard.token().map_or(0, |token| token.get())
}

/// Longer than any case takes.
const LONG: Duration = Duration::from_secs(600);

async fn lock_that_lingers_is_taken_again_without_the_store(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.long().linger(LONG)).await?;
    let mutex = locks.mutex(&name)?;
    let first = mutex.lock().await?;
    assert_eq!(first.release().await?, Released::Freed);
    fault.cut().await;
    for _ in 0..world.capabilities.turns.saturating_sub(2).clamp(1, 5) {
        let guard = world.soon("the lock that lingers", mutex.lock()).await?;
        assert!(guard.is_held());
        assert_eq!(guard.release().await?, Released::Freed);
    }
    fault.heal().await;
    assert_eq!(locks.stats().acquired, 1, "the store was asked again");
    locks.close().await?;
    world.expect_free(&name).await
}

async fn lock_that_lingers_keeps_others_out(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(world.short().linger(LONG)).await?;
    world.freed(locks.mutex(&name)?.lock().await?).await?;
    let other = world.client().await?.mutex(&name)?;
    // For longer than a lease: it is renewed all the while.
    for _ in 0..4 {
        tokio::time::sleep(world.lease() / 2).await;
        assert!(other.try_lock().await?.is_none(), "another client got in");
    }
    assert!(locks.mutex(&name)?.lock().await?.is_held());
    locks.close().await?;
    world.expect_free(&name).await
}

async fn lock_that_lingers_goes_back_when_its_time_has_passed(world: World) -> Result<()> {
    let name = world.name();
    let linger = Duration::from_millis(300);
    let locks = world.client_with(world.long().linger(linger)).await?;
    world.freed(locks.mutex(&name)?.lock().await?).await?;
    world
        .expect_free_within(linger + world.timings.settle, &name)
        .await?;
    assert_eq!(locks.stats().losses.total(), 0);
    world.expect_quiet(&locks).await
}

async fn lock_that_lingers_goes_to_whoever_waits(world: World) -> Result<()> {
    let name = world.name();
    // A holder that is not told asks with its renewals, and one that cannot ask keeps the lock for as long as it lingers.
    let linger = match world.capabilities.wanted {
        Hearing::Never => Duration::from_millis(500),
        _ => LONG,
    };
    let locks = world.client_with(world.short().linger(linger)).await?;
    let mutex = locks.mutex(&name)?;
    let mine = mutex.lock().await?;
    let last = token(&mine);
    world.freed(mine).await?;
    let other = world.client().await?.mutex(&name)?;
    let limit = world.lease() + world.timings.settle;
    let theirs = world
        .within(limit, "the other client", other.lock())
        .await?;
    assert!(theirs.is_held());
    assert!(!world.has(Capability::Fencing) || token(&theirs) > last);
    assert!(mutex.try_lock().await?.is_none(), "two holders");
    world.freed(theirs).await?;
    world.freed(mutex.lock().await?).await?;
    locks.close().await
}

/// The lock rests many times, each time for less than it may: whoever waits is not kept out by all of these rests.
async fn others_wait_for_one_rest_however_often_it_is_used(world: World) -> Result<()> {
    let name = world.name();
    let (linger, pause) = (Duration::from_millis(400), Duration::from_millis(300));
    let locks = world.client_with(world.long().linger(linger)).await?;
    let mutex = locks.mutex(&name)?;
    let mine = mutex.lock().await?;
    let other = world.client().await?.mutex(&name)?;
    let theirs = tokio::spawn(async move { other.lock().await });
    tokio::time::sleep(pause).await;
    world.freed(mine).await?;
    let limit = linger + world.timings.settle;
    let began = tokio::time::Instant::now();
    while !theirs.is_finished() {
        assert!(
            began.elapsed() < limit,
            "another client has waited for {limit:?}, through {} uses of a lock that lingers for {linger:?}",
            locks.stats().acquired + locks.stats().passed_on
        );
        tokio::time::sleep(pause).await;
        // Once it was given back it is theirs, where there is no queue with the next question.
        if locks.stats().released == 0
            && let Ok(guard) = tokio::time::timeout(pause, mutex.lock()).await
        {
            world.freed(guard?).await?;
        }
    }
    world.freed(theirs.await.expect("no panic")?).await?;
    locks.close().await
}

async fn tokens_increase_over_a_lingering_lock(world: World) -> Result<()> {
    let name = world.name();
    let settings = world.long().linger(Duration::from_millis(200));
    let locks = world.client_with(settings).await?;
    let mutex = locks.mutex(&name)?;
    let other = world.client().await?.mutex(&name)?;
    let mut tokens = Vec::new();
    let turns = world.capabilities.turns.min(64) + 2;
    for _ in 0..2 {
        for _ in 0..turns {
            let guard = mutex.lock().await?;
            tokens.push(token(&guard));
            world.freed(guard).await?;
        }
        let limit = world.lease() + world.timings.settle;
        let theirs = world
            .within(limit, "the other client", other.lock())
            .await?;
        tokens.push(token(&theirs));
        world.freed(theirs).await?;
    }
    let increase = tokens.is_sorted_by(|one, next| one < next);
    assert!(increase, "tokens in the order of their holders: {tokens:?}");
    locks.close().await
}

async fn lock_that_was_lost_while_it_lingered_is_asked_for(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.short().linger(LONG)).await?;
    let mutex = locks.mutex(&name)?;
    world.freed(mutex.lock().await?).await?;
    fault.cut().await;
    let other = world.client().await?.mutex(&name)?;
    let limit = world.lease() * 2 + world.timings.settle;
    let theirs = world
        .within(limit, "the other client", other.lock())
        .await?;
    fault.heal().await;
    let again = mutex.try_lock().await;
    assert!(
        !again.is_ok_and(|guard| guard.is_some()),
        "the lock was taken up again though another client has it"
    );
    assert!(theirs.is_held());
    assert_eq!(locks.stats().losses.total(), 0, "nobody was in");
    world.freed(theirs).await
}
