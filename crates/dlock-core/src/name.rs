use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use crate::{Error, Result};

/// The name of a lock: any UTF-8 of 1 to 255 bytes without control characters.
///
/// Names are case-sensitive and spaces count, also at the end ([C3](crate::contract#c3)). A clone shares the text.
///
/// ```
/// use dlock_core::Name;
///
/// let name = Name::new("stock:42")?;
/// assert_eq!(name.as_str(), "stock:42");
/// assert!(Name::new("").is_err());
/// assert!(Name::new("a\nb").is_err());
/// let same: Name = "stock:42".parse()?; // or Name::try_from
/// assert_eq!(name, same);
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "String", into = "String")
)]
pub struct Name(Arc<str>);

impl Name {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Checks `name` and keeps it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when it is empty, longer than [`Name::MAX_BYTES`] or holds a
    /// control character.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        check_text("a lock name", name, Self::MAX_BYTES)?;
        if name.is_empty() {
            return Err(Error::invalid(
                "a lock name is empty: give it 1 to 255 bytes, for example \"stock:42\"",
            ));
        }
        Ok(Self(name.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Names and labels travel as data into every store, so both obey one rule.
pub(crate) fn check_text(what: &str, text: &str, max: usize) -> Result<()> {
    if text.len() > max {
        return Err(Error::invalid(format!(
            "{what} has {} bytes and the limit is {max}: shorten it, or use a hash of it",
            text.len()
        )));
    }
    if let Some(found) = text.chars().find(|c| c.is_control()) {
        return Err(Error::invalid(format!(
            "{what} holds the control character {found:?}: remove or encode it"
        )));
    }
    Ok(())
}

impl FromStr for Name {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<&str> for Name {
    type Error = Error;
    fn try_from(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<String> for Name {
    type Error = Error;
    fn try_from(name: String) -> Result<Self> {
        Self::new(name)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.as_str().to_owned()
    }
}

impl Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_in_bytes_and_inclusive() {
        assert!(Name::new("é".repeat(127) + "x").is_ok());
        assert!(Name::new("é".repeat(128)).is_err());
        assert!(Name::new("x").is_ok());
    }

    #[test]
    fn control_characters_are_refused_and_named() {
        for bad in ["a\0b", "tab\t", "del\u{7f}", "c1\u{85}"] {
            let error = Name::new(bad).expect_err(bad);
            assert!(error.to_string().contains("control character"), "{error}");
        }
    }

    #[test]
    fn every_way_to_make_a_name_checks_it() {
        let long = "x".repeat(256);
        for bad in ["", "a\nb", long.as_str()] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
            assert!(Name::try_from(bad).is_err(), "{bad:?}");
            assert!(Name::try_from(bad.to_owned()).is_err(), "{bad:?}");
        }
        let name = Name::new("stock:42").expect("a good name");
        assert_eq!("stock:42".parse::<Name>().ok().as_ref(), Some(&name));
        assert_eq!(Name::try_from("stock:42").ok().as_ref(), Some(&name));
        let owned = "stock:42".to_owned();
        assert_eq!(Name::try_from(owned).ok(), Some(name));
    }

    #[test]
    fn spaces_case_and_symbols_are_kept() {
        for good in [" a ", "A", "a/../b", "{x}:y", "🔒", "%2F", "'; drop table"] {
            assert_eq!(Name::new(good).expect(good).as_str(), good);
        }
    }
}
