//! [C3](dlock_core::contract#c3): names.

use dlock_core::{Capability, ErrorKind, MultiLock, Name, Result};

use crate::case::case_list;
use crate::{Need, World};

case_list! {
    C3 hostile_names_are_data;
    C3 names_that_look_alike_are_independent;
    C3 names_with_the_same_short_hash_are_independent
        "the key is a hash of the name, with too few bits";
    C3 longest_names_are_independent;
    C3 second_lock_does_not_free_the_first;
    C3 dropping_one_guard_keeps_the_others;
    C3 cancelling_one_attempt_keeps_the_others;
    C3 bad_arguments_are_refused_at_once;
    C3 inspect_shows_name_holder_and_label_as_given [Need::Can(Capability::Inspect)];
    C3 list_finds_the_held_locks_of_a_prefix [Need::Can(Capability::Inspect)];
}

/// Names that break stores which splice them into something, around a part that is unique.
fn hostile(unique: &str) -> Vec<String> {
    vec![
        format!("{unique} with spaces"),
        format!(" {unique}"),
        format!("/{unique}"),
        format!("{unique}/"),
        format!("../{unique}"),
        format!("{unique}/.."),
        format!("{unique}/../../etc/passwd"),
        format!("./{unique}"),
        format!("//{unique}//"),
        format!("{{{unique}}}"),
        format!("}}{{{unique}"),
        format!("{unique}:holder:waiters"),
        format!("{unique}'; drop table locks; --"),
        format!("\"{unique}\""),
        format!("`{unique}`"),
        format!("{unique}\\"),
        format!("\\x00{unique}"),
        format!("%2F{unique}%00"),
        format!("%s%n{unique}"),
        format!("{unique}*?[a-z]"),
        format!("$({unique})"),
        format!("{unique}&a=b#c"),
        format!("🔒{unique}"),
        format!("{unique}-ключ-鍵-مفتاح"),
        format!("{unique}\u{202e}\u{200d}"),
        format!("-{unique}"),
        format!(".{unique}"),
        format!("~{unique}"),
        format!("{unique}."),
        format!("{unique}.lock"),
        format!("nul{unique}\u{fffd}"),
    ]
}

async fn hostile_names_are_data(world: World) -> Result<()> {
    let locks = world.client().await?;
    let names = hostile(&world.name());
    let mut guards = Vec::new();
    for name in &names {
        let guard = locks.mutex(name)?.try_lock().await?;
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is busy, another one is held")));
    }
    for (name, guard) in names.iter().zip(guards) {
        assert_eq!(guard.name().as_str(), name);
        world.expect_held(name, &guard).await?;
        world.freed(guard).await?;
        world.expect_free(name).await?;
    }
    Ok(())
}

async fn names_that_look_alike_are_independent(world: World) -> Result<()> {
    let unique = world.name();
    let upper = unique.to_uppercase();
    let alike = vec![
        unique.clone(),
        upper,
        format!("{unique} "),
        format!("{unique}  "),
        format!(" {unique}"),
        format!("{unique}\u{a0}"),
        format!("{unique}/"),
        format!("{unique}//"),
        format!("/{unique}"),
        format!("{unique}0"),
        format!("{unique}00"),
        format!("{unique}:"),
        format!("{{{unique}}}"),
        format!("{unique}é"),
        format!("{unique}e\u{301}"),
        format!("{unique}e"),
        format!("{unique}ß"),
        format!("{unique}ss"),
        format!("{unique}\u{212a}"),
        format!("{unique}k"),
        format!("{unique}K"),
        format!("{unique}%41"),
        format!("{unique}A"),
        format!("{unique}a"),
        format!("{unique}_"),
        format!("{unique}\u{200b}"),
        format!("{unique}."),
    ];
    all_are_independent(&world, &alike).await
}

/// Pairs that common hashes of 32 bits take for the same: CRC-32, FNV-1a, Java's, djb2. What is behind them alike changes nothing. A key that is a
/// hash of the name must be wider.
async fn names_with_the_same_short_hash_are_independent(world: World) -> Result<()> {
    let pairs = [
        ["plumless", "buckeroo"],
        ["costarring", "liquid"],
        ["Aa", "BB"],
        ["hetairas", "mentioner"],
    ];
    let unique = world.name();
    let names: Vec<String> = pairs
        .iter()
        .flatten()
        .map(|start| format!("{start}{unique}"))
        .collect();
    all_are_independent(&world, &names).await
}

async fn longest_names_are_independent(world: World) -> Result<()> {
    let unique = world.name();
    let wide = |last: &str| {
        let mut name = unique.clone();
        while name.len() + 'é'.len_utf8() + last.len() <= Name::MAX_BYTES {
            name.push('é');
        }
        name + last
    };
    let plain = |last: &str| {
        let fill = "x".repeat(Name::MAX_BYTES - unique.len() - last.len());
        format!("{unique}{fill}{last}")
    };
    let slashes = {
        let fill = "/".repeat(Name::MAX_BYTES - unique.len());
        format!("{unique}{fill}")
    };
    let names = [
        plain("a"),
        plain("b"),
        plain("A"),
        plain(" "),
        wide("1"),
        wide("2"),
        slashes,
    ];
    all_are_independent(&world, &names).await
}

/// Holds all of them at once, and frees them one by one.
async fn all_are_independent(world: &World, names: &[String]) -> Result<()> {
    let locks = world.client().await?;
    let mut guards = Vec::new();
    for name in names {
        let guard = locks.mutex(name)?.try_lock().await?;
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is taken for another name")));
    }
    for (name, guard) in names.iter().zip(&guards) {
        world.expect_held(name, guard).await?;
    }
    let mut left = names.iter().zip(guards).peekable();
    while let Some((name, guard)) = left.next() {
        world.freed(guard).await?;
        world.expect_free(name).await?;
        if let Some((next, guard)) = left.peek() {
            world.expect_held(next, guard).await?;
        }
    }
    Ok(())
}

async fn second_lock_does_not_free_the_first(world: World) -> Result<()> {
    let (first, second) = (world.name(), world.name());
    let locks = world.client().await?;
    let a = locks.mutex(&first)?.lock().await?;
    let b = locks.mutex(&second)?.lock().await?;
    world.expect_held(&first, &a).await?;
    world.expect_held(&second, &b).await?;
    world.freed(b).await?;
    world.expect_held(&first, &a).await?;
    assert!(a.is_held());
    world.freed(a).await
}

async fn dropping_one_guard_keeps_the_others(world: World) -> Result<()> {
    let names: Vec<String> = (0..4).map(|_| world.name()).collect();
    let locks = world.client().await?;
    let mut guards = Vec::new();
    for name in &names {
        guards.push(locks.mutex(name)?.lock().await?);
    }
    drop(guards.remove(1));
    world.expect_free(&names[1]).await?;
    for (name, guard) in [&names[0], &names[2], &names[3]].into_iter().zip(&guards) {
        world.expect_held(name, guard).await?;
    }
    for guard in guards {
        assert!(guard.is_held());
        world.freed(guard).await?;
    }
    Ok(())
}

async fn cancelling_one_attempt_keeps_the_others(world: World) -> Result<()> {
    let (mine, theirs) = (world.name(), world.name());
    let (a, b) = (world.client().await?, world.client().await?);
    let blocker = b.mutex(&theirs)?.lock().await?;
    let guard = a.mutex(&mine)?.lock().await?;
    let waits = a.mutex(&theirs)?;
    let waits = tokio::spawn(async move { waits.lock().await });
    world.expect_waiting(&theirs, 1).await?;
    waits.abort();
    world.freed(blocker).await?;
    // A task that was running when it was aborted may have got the lock: its guard goes with its result.
    drop(waits.await);
    world.expect_free(&theirs).await?;
    world.expect_held(&mine, &guard).await?;
    assert!(guard.is_held());
    world.freed(guard).await
}

async fn bad_arguments_are_refused_at_once(world: World) -> Result<()> {
    let locks = world.client().await?;
    let invalid = |error: dlock_core::Error| assert_eq!(error.kind(), ErrorKind::Invalid);
    for bad in ["", "a\0b", "line\nbreak", "tab\t", "\u{7f}", "\u{85}"] {
        invalid(locks.mutex(bad).expect_err(bad));
        invalid(locks.inspect(bad).await.expect_err(bad));
        invalid(locks.break_lock(bad).await.expect_err(bad));
    }
    invalid(locks.mutex("x".repeat(256)).expect_err("too long"));
    invalid(MultiLock::new(Vec::new()).expect_err("no locks"));
    if world.has(Capability::Permits) {
        invalid(locks.semaphore("x", 0).expect_err("no permits"));
    } else {
        let error = locks.semaphore("x", 1).expect_err("no permits");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    if !world.has(Capability::Shared) {
        let error = locks.rw_lock("x").expect_err("no shared mode");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    Ok(())
}

async fn inspect_shows_name_holder_and_label_as_given(world: World) -> Result<()> {
    for label in ["the 'night' job; \"x\" -- ё🔒 %00", ""] {
        let locks = world.client_with(world.long().label(label)).await?;
        let name = format!("{} ' é", world.name());
        let free = world.probe().await?.inspect(&name).await?;
        assert!(!free.is_locked() && free.waiters.is_empty());
        let guard = locks.mutex(&name)?.lock().await?;
        let info = world.probe().await?.inspect(&name).await?;
        assert_eq!(info.name.as_str(), name);
        assert_eq!(info.holders.len(), 1);
        let holder = &info.holders[0];
        assert_eq!(holder.owner, guard.owner_id());
        assert_eq!(holder.label, label);
        assert_eq!(holder.mode, guard.mode());
        if world.has(Capability::Fencing) {
            assert_eq!(holder.token, guard.token());
        }
        if let Some(left) = holder.expires_in {
            assert!(left <= locks.lease(), "{left:?} is more than the lease");
        }
        world.freed(guard).await?;
        world.expect_unused(&name).await?;
    }
    Ok(())
}

async fn list_finds_the_held_locks_of_a_prefix(world: World) -> Result<()> {
    let locks = world.client().await?;
    let prefix = format!("{}/a%_", world.name());
    // The last four start with something that only looks like the prefix.
    let names = [
        format!("{prefix}1"),
        format!("{prefix}2/x y"),
        prefix.clone(),
        prefix.replace("a%_", "abc1"),
        prefix.replace("a%_", "a%x1"),
        prefix.replace("a%_", "A%_1"),
        format!("x{prefix}"),
    ];
    let mut guards = Vec::new();
    for name in &names {
        guards.push(locks.mutex(name)?.lock().await?);
    }
    let listed = async || -> Result<Vec<String>> {
        let found = world.probe().await?.list(&prefix).await?;
        assert!(found.iter().all(|lock| lock.is_locked()));
        Ok(found.iter().map(|lock| lock.name.to_string()).collect())
    };
    let expected = [&names[2], &names[0], &names[1]];
    assert_eq!(listed().await?.iter().collect::<Vec<_>>(), expected);
    for guard in guards {
        world.freed(guard).await?;
    }
    assert!(listed().await?.is_empty());
    Ok(())
}
