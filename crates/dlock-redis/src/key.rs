//! Lock name -> Redis keys. All keys of one lock share one hash tag, so a cluster keeps them in one slot.

use dlock_core::backend::AttemptId;
use dlock_core::{Error, Name, Result};

/// What the keys beside a lock's own end with: its queue, its waiters, its holders, what is known of those, and abandoned attempts.
pub(crate) const SIDES: [&str; 5] = [":q", ":w", ":h", ":i", ":t"];
pub(crate) const HOLDERS: [&str; 2] = [":h", ":i"];
/// What must not exist beside a free lock that is not there.
pub(crate) const SIGNS: [&str; 3] = [":q", ":h", ":t"];

/// How the names of this client's keys are made.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: String,
    plain: bool,
}

impl Keys {
    /// `prefix:{name}` and what hangs on it; or, for plain locks, `prefix` and the name as they are.
    pub(crate) fn new(prefix: &str, plain: bool) -> Self {
        Self {
            prefix: prefix.to_owned(),
            plain,
        }
    }

    /// The lock's key. Injective ([C3](dlock_core::contract#c3)): what could end the hash tag is escaped, and so is the escape.
    pub(crate) fn lock(&self, name: &str) -> String {
        let mut key = String::with_capacity(self.prefix.len() + name.len() + 3);
        key.push_str(&self.prefix);
        if self.plain {
            key.push_str(name);
            return key;
        }
        key.push_str(":{");
        escape(name, &mut key);
        key.push('}');
        key
    }

    /// The lock's name, if this is a lock's key.
    pub(crate) fn name_of(&self, key: &str) -> Option<Name> {
        let rest = key.strip_prefix(self.prefix.as_str())?;
        if self.plain {
            return Name::new(rest).ok();
        }
        let tag = rest.strip_prefix(":{")?.strip_suffix('}')?;
        Name::new(unescape(tag)?).ok()
    }

    /// The `SCAN` pattern for the keys of all locks whose name starts with `start`.
    pub(crate) fn pattern(&self, start: &str) -> String {
        let mut text = self.prefix.clone();
        if self.plain {
            text.push_str(start);
            return quote(&text) + "*";
        }
        text.push_str(":{");
        escape(start, &mut text);
        quote(&text) + "*}"
    }

    /// The tombstone of one attempt at a plain lock.
    ///
    /// # Errors
    ///
    /// In a cluster, when no key can be in the same slot as this one, because of its braces.
    pub(crate) fn tombstone(key: &str, attempt: AttemptId, cluster: bool) -> Result<String> {
        let name = format!("dlock-abandoned:{attempt}");
        if cluster {
            beside(key, &name)
        } else {
            Ok(name)
        }
    }

    /// The channel on which a client hears that its turn has come.
    pub(crate) fn inbox(&self, client: &uuid::Uuid) -> String {
        format!("{}:inbox:{}", self.prefix, client.simple())
    }
}

/// A key that a cluster keeps in the same slot as `key`.
///
/// # Errors
///
/// When there is none: `key` has a closing brace but no hash tag.
pub(crate) fn beside(key: &str, before: &str) -> Result<String> {
    let tag = match hash_tag(key) {
        Some(tag) => tag,
        None if !key.contains('}') => key,
        None => {
            return Err(Error::invalid(format!(
                "the key {key:?} has a closing brace but no hash tag, so no other key can be kept beside it: choose another"
            )));
        }
    };
    Ok(format!("{before}{{{tag}}}"))
}

/// The part of a key that decides its slot, if it is not the whole key.
fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

fn escape(name: &str, into: &mut String) {
    for c in name.chars() {
        match c {
            '{' => into.push_str("%7B"),
            '}' => into.push_str("%7D"),
            '%' => into.push_str("%25"),
            other => into.push(other),
        }
    }
}

fn unescape(tag: &str) -> Option<String> {
    let mut name = String::with_capacity(tag.len());
    let mut rest = tag;
    while let Some((before, after)) = rest.split_once('%') {
        name.push_str(before);
        name.push(match after.get(..2)? {
            "7B" => '{',
            "7D" => '}',
            "25" => '%',
            _ => return None,
        });
        rest = after.get(2..)?;
    }
    name.push_str(rest);
    Some(name)
}

/// Takes the meaning away from what `SCAN MATCH` would read as a pattern.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '^' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_hash_tag_whatever_the_name() {
        let keys = Keys::new("dlock", false);
        for (name, key) in [
            ("stock:42", "dlock:{stock:42}"),
            ("{a}", "dlock:{%7Ba%7D}"),
            ("}", "dlock:{%7D}"),
            ("100%", "dlock:{100%25}"),
            (" x ", "dlock:{ x }"),
        ] {
            assert_eq!(keys.lock(name), key);
            assert_eq!(keys.name_of(key).expect(name).as_str(), name);
        }
        assert!(keys.name_of("dlock:{a}:q").is_none());
        assert!(keys.name_of("other:{a}").is_none());
    }

    #[test]
    fn a_key_beside_another_has_its_tag() {
        for (key, other) in [
            ("user:7", "t:{user:7}"),
            ("{a}b", "t:{a}"),
            ("x{a}b{c}", "t:{a}"),
            ("{}x{a}", "t:{{}x{a}}"),
        ] {
            match beside(key, "t:") {
                Ok(found) if !key.starts_with("{}") => assert_eq!(found, other),
                Ok(found) => panic!("{found}"),
                Err(_) => assert!(key.starts_with("{}")),
            }
        }
        assert!(beside("a}b", "t:").is_err());
    }

    proptest! {
        #[test]
        fn the_mapping_is_injective(a in "[a-c{}%7BD:]{1,8}", b in "[a-c{}%7BD:]{1,8}") {
            let keys = Keys::new("p", false);
            prop_assert_eq!(keys.lock(&a) == keys.lock(&b), a == b);
            let (ka, kb) = (keys.lock(&a), keys.lock(&b));
            prop_assert_eq!(hash_tag(&ka) == hash_tag(&kb), a == b);
        }

        #[test]
        fn every_name_is_found_again(name in "\\PC{1,60}") {
            let keys = Keys::new("p", false);
            prop_assume!(Name::new(&name).is_ok());
            let back = keys.name_of(&keys.lock(&name)).expect("a lock's key");
            prop_assert_eq!(back.as_str(), name.as_str());
        }
    }
}
