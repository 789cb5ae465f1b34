//! Lock name -> keys.
//!
//! | key | what it is |
//! |---|---|
//! | `PREFIX/NAME/r/LEASE-SLOT` | a reader |
//! | `PREFIX/NAME/w/LEASE-SLOT` | a writer: an exclusive lock; after a downgrade its value says `shared` |
//! | `PREFIX/NAME/x/LIMIT/LEASE-SLOT` | a permit of `LIMIT` |
//! | `PREFIX/!/ATTEMPT` | an attempt that was abandoned: a late request of it must fail |
//!
//! The classes are in this order so that each mode can name those that stand in its way by one range. The lease is the client's, in
//! hexadecimal digits; the slot is a small number that is used again (see `slots.rs`), so the key alone does not tell whose entry it is:
//! the value begins with the attempt, and the create revision is unique.

use dlock_core::{Mode, Name};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::txn::Range;

/// What stays as it is. Everything else is `%XX`, byte by byte, so a prefix of a name is a prefix of its code ([C3](dlock_core::contract#c3)).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b':');

#[derive(Debug, Clone)]
pub(crate) struct Keys {
    root: String,
}

/// The keys of one lock.
#[derive(Debug, Clone)]
pub(crate) struct LockKeys {
    root: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            root: format!("{prefix}/"),
        }
    }

    pub(crate) fn lock(&self, name: &Name) -> LockKeys {
        LockKeys {
            root: [self.root.as_str(), &encode(name), "/"].concat(),
        }
    }

    /// All entries of locks whose name starts with `prefix`, and with an empty one also the marks of abandoned attempts.
    pub(crate) fn starting_with(&self, prefix: &str) -> Range {
        Range::prefix(format!("{}{}", self.root, encode(prefix)))
    }

    /// No name's code holds a `!`.
    pub(crate) fn abandoned(&self, attempt: &str) -> Vec<u8> {
        [self.root.as_str(), "!/", attempt].concat().into_bytes()
    }

    /// The name in an entry's key; `None` for keys that are not entries.
    pub(crate) fn parse(&self, key: &[u8]) -> Option<Name> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.root)?;
        let mut parts = rest.split('/');
        let name = percent_decode_str(parts.next()?).decode_utf8().ok()?;
        let class = parts.next()?;
        if class == "x" {
            parts.next()?;
        }
        let _place = parts.next()?;
        if !matches!(class, "r" | "w" | "x") || parts.next().is_some() {
            return None;
        }
        Name::new(name).ok()
    }
}

impl LockKeys {
    /// An entry of the client with this lease.
    pub(crate) fn entry(&self, mode: Mode, lease: i64, slot: u32) -> Vec<u8> {
        let root = self.root.as_str();
        let place = format!("{lease:x}-{slot}");
        match mode {
            Mode::Shared => [root, "r/", &place].concat(),
            Mode::Exclusive => [root, "w/", &place].concat(),
            Mode::Permit { limit } => format!("{root}x/{limit}/{place}"),
            // A mode of a later core, which asks only for those that the capabilities name: alone is always safe.
            _ => [root, "w/", &place].concat(),
        }
        .into_bytes()
    }

    /// A key that no entry ever has.
    pub(crate) fn nobody(&self) -> Vec<u8> {
        format!("{}w/", self.root).into_bytes()
    }

    /// Everybody.
    pub(crate) fn all(&self) -> Range {
        Range::prefix(self.root.as_str())
    }

    /// Writers and permits: those a reader waits for.
    pub(crate) fn writers_and_permits(&self) -> Range {
        Range::new(format!("{}w/", self.root), format!("{}y", self.root))
    }

    /// Readers and writers: those a permit waits for.
    pub(crate) fn readers_and_writers(&self) -> Range {
        Range::new(format!("{}r/", self.root), format!("{}x/", self.root))
    }

    /// All permits.
    pub(crate) fn permits(&self) -> Range {
        Range::prefix(format!("{}x/", self.root))
    }

    /// Permits of any other limit.
    pub(crate) fn other_permits(&self, limit: u32) -> [Range; 2] {
        let root = &self.root;
        [
            Range::new(format!("{root}x/"), format!("{root}x/{limit}/")),
            // '0' comes right after '/'.
            Range::new(format!("{root}x/{limit}0"), format!("{root}x0")),
        ]
    }
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a good name")
    }

    #[test]
    fn keys_read_well() {
        let lock = Keys::new("dlock").lock(&name("stock:42/a b"));
        let entry = |mode| String::from_utf8(lock.entry(mode, 0xbee, 2)).expect("text");
        assert_eq!(entry(Mode::Exclusive), "dlock/stock:42%2Fa%20b/w/bee-2");
        assert_eq!(entry(Mode::Shared), "dlock/stock:42%2Fa%20b/r/bee-2");
        let permit = Mode::Permit { limit: 3 };
        assert_eq!(entry(permit), "dlock/stock:42%2Fa%20b/x/3/bee-2");
    }

    #[test]
    fn a_lock_never_sees_the_entries_of_another() {
        let keys = Keys::new("p");
        for (one, other) in [
            ("a", "a/b"),
            ("a", "a%2Fb"),
            ("a", "a0"),
            ("a/w", "a"),
            ("!", "a"),
        ] {
            for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: 1 }] {
                let entry = keys.lock(&name(other)).entry(mode, 1, 0);
                assert!(
                    !keys.lock(&name(one)).all().contains(&entry),
                    "{one} sees {other}"
                );
            }
        }
    }

    #[test]
    fn other_limits_are_exactly_the_others() {
        let lock = Keys::new("p").lock(&name("a"));
        for limit in [1, 2, 10, 11, 12, 21, 110, u32::MAX] {
            for other in [1, 2, 10, 11, 12, 21, 110, u32::MAX] {
                let entry = lock.entry(Mode::Permit { limit: other }, 1, 0);
                let seen = lock
                    .other_permits(limit)
                    .iter()
                    .any(|range| range.contains(&entry));
                assert_eq!(seen, limit != other, "{limit} and {other}");
                assert!(lock.permits().contains(&entry));
            }
        }
    }

    proptest! {
        #[test]
        fn keys_lead_back_to_names(text in "[^\\p{Cc}]{1,60}", prefix in "[a-z/]{1,8}") {
            let keys = Keys::new(&prefix);
            let name = name(&text);
            let entry = keys.lock(&name).entry(Mode::Permit { limit: 7 }, 1, 0);
            prop_assert_eq!(keys.parse(&entry), Some(name));
        }

        #[test]
        fn a_prefix_of_a_name_finds_it(text in "[^\\p{Cc}]{1,60}", cut in 0usize..60) {
            let keys = Keys::new("p");
            let start: String = text.chars().take(cut).collect();
            let entry = keys.lock(&name(&text)).entry(Mode::Shared, 1, 0);
            prop_assert!(keys.starting_with(&start).contains(&entry));
        }
    }
}
