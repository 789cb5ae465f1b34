//! Lock name -> what stands in the database.

use std::time::Duration;

use dlock_core::{Error, Name, Result};
use sha2::{Digest, Sha256};

const LONGEST_PREFIX: usize = 40;

/// A prefix becomes part of SQL, inside the quotes of a table's name, so it is checked here.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if prefix.len() > LONGEST_PREFIX
        || !prefix.chars().all(good)
        || prefix.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err(Error::invalid(format!(
            "table_prefix is {prefix:?}: it must be at most {LONGEST_PREFIX} letters, digits and '_', and not begin with a digit"
        )));
    }
    Ok(())
}

/// A duration as it stands in a row.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The name for `GET_LOCK`: its names belong to the whole server, have at most 64 characters, and differ in more than case only if their
/// bytes do. So it is always a digest, of the prefix and the name, in letters and digits of one case.
pub(crate) fn advisory(prefix: &str, database: &str, name: &Name) -> String {
    format!("dlock:{}", hex_digest(prefix, database, name, 28))
}

/// The name for `GET_LOCK` that one of those who wait for a lock takes, while it waits: it has so many places.
pub(crate) fn place_of_waiter(prefix: &str, database: &str, name: &Name, place: u8) -> String {
    format!("dlock:w{place}:{}", hex_digest(prefix, database, name, 24))
}

/// Two names for `GET_LOCK`, of one lock: see `bell.rs`.
#[derive(Debug, Clone)]
pub(crate) struct BellLocks {
    pub(crate) front: String,
    pub(crate) bell: String,
}

/// The names for `GET_LOCK` by which those who wait for a lock of a mode with leases are woken: see `bell.rs`.
pub(crate) fn bell_locks(mode: &str, prefix: &str, database: &str, name: &Name) -> BellLocks {
    let digest = hex_digest(prefix, database, name, 20);
    BellLocks {
        front: format!("dlock:front:{mode}:{digest}"),
        bell: format!("dlock:bell:{mode}:{digest}"),
    }
}

fn hex_digest(prefix: &str, database: &str, name: &Name, bytes: usize) -> String {
    let mut digest = Sha256::new();
    // Neither holds a zero, so no two triples look the same.
    for part in [database, "\0", prefix, "\0", name.as_str()] {
        digest.update(part.as_bytes());
    }
    hex(digest.finalize().iter().take(bytes))
}

/// Bytes as digits.
pub(crate) fn hex<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> String {
    let digit = |four: u8| char::from_digit(u32::from(four), 16).unwrap_or('0');
    let pair = |byte: &u8| [digit(byte >> 4), digit(byte & 15)];
    bytes.into_iter().flat_map(pair).collect()
}

/// The digest of a name, inside of one table.
pub(crate) fn digest_of(name: &Name) -> [u8; 32] {
    Sha256::digest(name.as_str().as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advisory_names_are_short_and_keep_names_apart() {
        let name = |text: &str| Name::new(text).expect("a good name");
        let long = "x".repeat(255);
        let all: std::collections::HashSet<String> =
            ["a", "A", "a ", " a", "ä", &long, &long[..254]]
                .iter()
                .map(|text| advisory("p_", "d", &name(text)))
                .chain([
                    advisory("p_", "e", &name("a")),
                    advisory("q_", "d", &name("a")),
                ])
                .collect();
        assert_eq!(all.len(), 9);
        assert!(all.iter().all(|text| text.len() <= 64), "{all:?}");
        let place = place_of_waiter("p_", "d", &name(&long), 7);
        assert!(place.len() <= 64 && !all.contains(&place), "{place}");
        let locks = |mode| bell_locks(mode, "p_", "d", &name(&long));
        let (lease, unique) = (locks("lease"), locks("unique"));
        assert!(lease.front.len() <= 64 && unique.front.len() <= 64);
        assert_ne!(lease.front, lease.bell);
        assert_ne!(lease.bell, unique.bell);
    }

    #[test]
    fn bytes_are_written_as_digits() {
        assert_eq!(hex(&[0x00, 0x0F, 0xA5, 0xFF]), "000fa5ff");
    }

    #[test]
    fn only_plain_prefixes_get_into_sql() {
        for good in ["", "dlock_", "Locks2_", "a".repeat(40).as_str()] {
            check_prefix(good).expect(good);
        }
        for bad in ["a b", "a`", "a;", "ä", "1a", "a.b", "a".repeat(41).as_str()] {
            check_prefix(bad).expect_err(bad);
        }
    }
}
