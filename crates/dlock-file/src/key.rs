//! Lock name -> file name and gate. Injective, also on a file system that ignores case ([C3](dlock_core::contract#c3)).

use sha2::{Digest, Sha256};

use dlock_core::Name;

/// How many gates there are. Fixed for the format: every process must map a name to the same gate.
pub(crate) const GATES: u64 = 64;

/// File names have at most 255 bytes; this leaves room for the ending.
const LONGEST: usize = 200;

const ENDING: &str = ".lock";

/// Where a lock lives in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    /// The file's name in `locks/`.
    pub(crate) file: String,
    /// Which gate guards it.
    pub(crate) gate: u64,
}

impl Key {
    pub(crate) fn of(name: &Name) -> Self {
        Self::of_encoded(encode(name))
    }

    /// The key of a file in `locks/`; `None` when it is none of ours.
    pub(crate) fn of_file(file: &str) -> Option<Self> {
        let encoded = file.strip_suffix(ENDING)?;
        Some(Self::of_encoded(encoded.to_owned()))
    }

    fn of_encoded(encoded: String) -> Self {
        Self {
            gate: fnv(encoded.as_bytes()) % GATES,
            file: encoded + ENDING,
        }
    }
}

/// Readable where it can be: lower-case letters, digits and `-_.` stay, other bytes become `%xx`. A name that gets too long
/// becomes `~` and its SHA-256; no encoded name starts with `~`.
fn encode(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len() + 8);
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02x}")),
        }
    }
    if encoded.len() <= LONGEST {
        return encoded;
    }
    let mut hashed = String::from("~");
    for byte in Sha256::digest(name.as_bytes()) {
        hashed.push_str(&format!("{byte:02x}"));
    }
    hashed
}

/// FNV-1a: the same in every version of this crate, which the standard library's hasher does not promise.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn file(name: &str) -> String {
        Key::of(&Name::new(name).expect(name)).file
    }

    #[test]
    fn plain_names_stay_readable() {
        assert_eq!(file("stock-42.a_b"), "stock-42.a_b.lock");
        assert_eq!(file("stock:42"), "stock%3a42.lock");
    }

    #[test]
    fn names_cannot_leave_the_folder() {
        for name in ["..", ".", "/etc/passwd", "a/../../b", "~", "%2f"] {
            let file = file(name);
            assert!(!file.contains('/') && file.ends_with(".lock"), "{file}");
        }
    }

    #[test]
    fn different_names_have_different_files_even_without_case() {
        let long = "é".repeat(127);
        let names = [
            "a",
            "A",
            "a ",
            " a",
            "%61",
            "a%",
            "a.lock",
            "Ä",
            "ä",
            "~",
            &long,
            &long[2..],
        ];
        let files: HashSet<String> = names.iter().map(|n| file(n).to_lowercase()).collect();
        assert_eq!(files.len(), names.len());
    }

    #[test]
    fn file_names_fit_and_keys_never_change() {
        assert!(file(&"🔒".repeat(63)).len() <= 255);
        let key = Key::of(&Name::new("stock:42").expect("good"));
        assert_eq!(Key::of_file(&key.file), Some(key.clone()));
        assert_eq!(
            key.gate, 18,
            "part of the format: processes of two versions share a folder"
        );
    }
}
