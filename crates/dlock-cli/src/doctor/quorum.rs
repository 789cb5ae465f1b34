//! How many servers decide together, and what that is worth.

use crate::doctor::{Finding, Level};

pub(crate) fn judge(members: usize) -> Finding {
    let (level, text) = match members {
        0 | 1 => (
            Level::Note,
            "one server: when it is down nothing can be locked, and its disk is the only copy; run three".to_owned(),
        ),
        2 => (
            Level::Note,
            "two servers, which need each other: worse than one when either is down; run three".to_owned(),
        ),
        n if n % 2 == 0 => (
            Level::Note,
            format!("{n} servers survive no more losses than {} would: leave one out, or add one", n - 1),
        ),
        n => (
            Level::Good,
            format!("{n} servers: locks survive the loss of {}", (n - 1) / 2),
        ),
    };
    Finding::new(level, "members", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_odd_number_from_three_on_is_good() {
        for (members, level, says) in [
            (1, Level::Note, "one server"),
            (2, Level::Note, "two servers"),
            (3, Level::Good, "the loss of 1"),
            (4, Level::Note, "than 3 would"),
            (5, Level::Good, "the loss of 2"),
        ] {
            let found = judge(members);
            assert_eq!(found.level, level, "{members}");
            assert!(found.text.contains(says), "{}", found.text);
        }
    }
}
