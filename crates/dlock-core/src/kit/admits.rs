//! Who may hold beside whom.

use std::fmt::Display;

use crate::{Error, ErrorKind, HeldNow, Mode, Result};

/// Whether one more who wants `mode` may hold beside those who hold now ([C1](crate::contract#c1), [C19](crate::contract#c19)): a writer alone,
/// readers together, and permits of the same limit up to it.
///
/// ```
/// use dlock_core::Mode::{Exclusive, Permit, Shared};
/// use dlock_core::kit::admits;
///
/// assert!(admits([], Exclusive) && !admits([Shared], Exclusive));
/// assert!(admits([Shared, Shared], Shared) && !admits([Exclusive], Shared));
/// assert!(admits([Permit { limit: 2 }], Permit { limit: 2 }));
/// assert!(!admits([Permit { limit: 2 }; 2], Permit { limit: 2 }));
/// ```
pub fn admits(holders: impl IntoIterator<Item = Mode>, mode: Mode) -> bool {
    let mut holders = holders.into_iter();
    match mode {
        Mode::Exclusive => holders.next().is_none(),
        Mode::Shared => holders.all(|holder| holder == mode),
        Mode::Permit { limit } => {
            let mut count = 0;
            holders.all(|holder| {
                count += 1;
                holder == mode && count < limit
            }) && limit > 0
        }
    }
}

/// Everybody must give the same limit while a semaphore is in use ([C19](crate::contract#c19)): `used` are those who hold and wait.
///
/// # Errors
///
/// [`other_limit`] for the first who has another.
pub fn check_limit(used: impl IntoIterator<Item = Mode>, mode: Mode) -> Result<()> {
    let Mode::Permit { limit } = mode else {
        return Ok(());
    };
    let mut used = used.into_iter().filter_map(|mode| match mode {
        Mode::Permit { limit } => Some(limit),
        _ => None,
    });
    match used.find(|used| *used != limit) {
        Some(used) => Err(other_limit(used, mode)),
        None => Ok(()),
    }
}

/// A semaphore that is in use with `used` permits was asked for with another limit, or as another kind of lock.
pub fn other_limit(used: impl Display, asked: Mode) -> Error {
    let asked = match asked {
        Mode::Permit { limit } => limit.to_string(),
        mode => format!("as {mode}"),
    };
    Error::new(
        ErrorKind::Conflict,
        format!(
            "this semaphore is in use with {used} permits, not {asked}: everybody must give the same limit"
        ),
    )
    .with_held(HeldNow::No)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Exclusive, Permit, Shared};

    #[test]
    fn who_holds_beside_whom() {
        let two = Permit { limit: 2 };
        for (holders, mode, expected) in [
            (vec![], Exclusive, true),
            (vec![], Shared, true),
            (vec![], two, true),
            (vec![Exclusive], Exclusive, false),
            (vec![Exclusive], Shared, false),
            (vec![Exclusive], two, false),
            (vec![Shared], Exclusive, false),
            (vec![Shared; 9], Shared, true),
            (vec![Shared, Exclusive], Shared, false),
            (vec![Shared], two, false),
            (vec![two], two, true),
            (vec![two, two], two, false),
            (vec![Permit { limit: 3 }], two, false),
            (vec![two], Shared, false),
            (vec![two], Exclusive, false),
        ] {
            assert_eq!(
                admits(holders.clone(), mode),
                expected,
                "{holders:?} {mode:?}"
            );
        }
    }

    #[test]
    fn another_limit_is_a_conflict_and_nothing_else_is() {
        let (two, three) = (Permit { limit: 2 }, Permit { limit: 3 });
        assert!(check_limit([Shared, two, two], two).is_ok());
        assert!(check_limit([three], Shared).is_ok());
        let error = check_limit([two, three], two).expect_err("another limit");
        assert_eq!(
            (error.kind(), error.held_now()),
            (ErrorKind::Conflict, HeldNow::No)
        );
        assert!(
            error.message().contains("in use with 3 permits, not 2"),
            "{error}"
        );
    }
}
