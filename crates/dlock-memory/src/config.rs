use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dlock_core::kit::{UrlForm, UrlScheme};
use dlock_core::{Error, Result};

use crate::MemoryBackend;
use crate::store::Store;

/// Which store of this process to use.
///
/// ```
/// let config = dlock_memory::Config::from_url("memory:shop")?;
/// let backend = config.connect();
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    store: String,
}

impl Config {
    /// The URLs that [`from_url`](Config::from_url) reads, as data.
    pub const URL: UrlForm = UrlForm {
        backend: "memory",
        schemes: &[UrlScheme::new(
            "memory",
            "memory:NAME",
            "a store in this process",
        )],
        keys: &[],
    };

    /// Reads `memory:` or `memory:NAME`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid), naming the part of the URL that is wrong.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::URL.read(url, |url| {
            if !url.hosts().is_empty() {
                return Err(Error::invalid(
                    "the URL names a host, but this store lives in the process: write \"memory:\" or \"memory:NAME\"",
                ));
            }
            Ok(Self {
                store: url.path().to_owned(),
            })
        })
    }

    /// A client of that store. Everybody in this process who names the same store shares it.
    pub fn connect(self) -> MemoryBackend {
        static STORES: OnceLock<Mutex<HashMap<String, Arc<Store>>>> = OnceLock::new();
        let mut stores = STORES
            .get_or_init(Mutex::default)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let identity = format!("memory:{}", self.store);
        let store = stores
            .entry(self.store)
            .or_insert_with(|| Store::system(identity));
        MemoryBackend::client_of(store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named() {
        for (url, expected) in [
            ("redis:", "takes memory"),
            ("memory://host", "names a host"),
            ("memory:?lease=5s", "takes none"),
        ] {
            let error = Config::from_url(url).expect_err(url);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
