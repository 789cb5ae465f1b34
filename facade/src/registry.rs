//! Schemes that the program brings itself: backends that this crate does not know.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};

use dlock_core::backend::{Backend, BackendUrl};
use dlock_core::{Error, Result};

type Opening = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>>> + Send>>;
type Open = Arc<dyn Fn(String) -> Opening + Send + Sync>;

static REGISTERED: RwLock<BTreeMap<String, Open>> = RwLock::new(BTreeMap::new());

/// Lets a backend of your own join [`connect`](crate::connect), [`open`](crate::open), [`builder`](crate::builder) and all else that
/// takes a URL in this program. Call it once, early in `main`.
///
/// The URL is given to `open` as it was written, but for `?lease=…`, which goes to the settings.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlocks::Error> {
/// use std::sync::Arc;
/// use dlocks::backend::Backend;
///
/// # mod my_store {
/// #     pub async fn connect(_: &str) -> Result<dlocks::memory::MemoryBackend, dlocks::Error> { Ok(dlocks::memory::MemoryBackend::new()) }
/// # }
/// dlocks::register("mystore", async |url: String| {
///     Ok(Arc::new(my_store::connect(&url).await?) as Arc<dyn Backend>)
/// })?;
/// let locks = dlocks::connect("mystore://db-1?lease=10s").await?;
/// let guard = locks.mutex("stock:42")?.lock().await?;
/// # let _ = guard.release().await?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "memory"))]
/// # fn main() {}
/// ```
///
/// # Errors
///
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when `scheme` is no scheme of a URL in lower case, is one that this crate knows,
/// enabled or not, or was registered before: a URL must not mean two stores.
pub fn register<F>(scheme: &str, open: impl Fn(String) -> F + Send + Sync + 'static) -> Result<()>
where
    F: Future<Output = Result<Arc<dyn Backend>>> + Send + 'static,
{
    let parsed = BackendUrl::parse(&format!("{scheme}:"))?;
    if parsed.scheme() != scheme {
        return Err(Error::invalid(format!(
            "the scheme {scheme:?} has upper-case letters or a ':': write it in lower case, as it stands before the ':' of a URL"
        )));
    }
    if crate::scheme::is_ours(scheme) {
        return Err(Error::invalid(format!(
            "the scheme {scheme:?} is one of this crate's own: choose another for your backend"
        )));
    }
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    if registered.contains_key(scheme) {
        return Err(Error::invalid(format!(
            "the scheme {scheme:?} was registered before: each has one backend"
        )));
    }
    let open: Open = Arc::new(move |url| Box::pin(open(url)));
    registered.insert(scheme.to_owned(), open);
    Ok(())
}

/// The schemes that were registered, in order.
pub(crate) fn registered() -> Vec<String> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    registered.keys().cloned().collect()
}

/// The backend of a registered scheme; `None` when it is not one.
pub(crate) fn opening(scheme: &str, url: &str) -> Option<Opening> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let open = registered.get(scheme)?.clone();
    drop(registered);
    Some(open(url.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn nothing(_: String) -> Result<Arc<dyn Backend>> {
        Err(Error::invalid("a backend of the test"))
    }

    #[tokio::test]
    async fn a_registered_scheme_is_opened_and_listed() {
        register("of-a-test", nothing).expect("a new scheme");
        let error = crate::connect("of-a-test://h/p?x=1")
            .await
            .expect_err("the backend says so");
        assert!(
            error.to_string().contains("a backend of the test"),
            "{error}"
        );
        let error = crate::open("nobodys:").await.expect_err("unknown");
        assert!(error.to_string().contains("of-a-test"), "{error}");
    }

    #[test]
    fn a_scheme_has_one_meaning() {
        register("twice", nothing).expect("a new scheme");
        for (scheme, expected) in [
            ("twice", "was registered before"),
            ("redis", "one of this crate's own"),
            ("Upper", "upper-case"),
            ("with space", "scheme"),
            ("", "scheme"),
        ] {
            let error = register(scheme, nothing).expect_err(scheme);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
