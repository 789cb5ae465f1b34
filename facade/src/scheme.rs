//! Which URL scheme belongs to which backend.

use std::sync::Arc;

use dlock_core::{Backend, BackendUrl, Error, ErrorKind, Operation, Result};

/// Every scheme this version knows, and the feature that brings it.
const SCHEMES: &[Scheme] = &[Scheme {
    name: "memory",
    feature: "memory",
    enabled: cfg!(feature = "memory"),
}];

struct Scheme {
    name: &'static str,
    feature: &'static str,
    enabled: bool,
}

/// The URL schemes that this program was built with.
pub fn compiled_in() -> Vec<&'static str> {
    SCHEMES
        .iter()
        .filter(|scheme| scheme.enabled)
        .map(|scheme| scheme.name)
        .collect()
}

/// Connects to a store by its URL and gives the bare backend, for those who build their own
/// [`Locks`](dlock_core::Locks) on it. Several can be open at once.
///
/// # Errors
///
/// As for [`connect`](crate::connect).
pub async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    dispatch(url).await.map_err(|error| {
        if error.operation().is_none() {
            error.with_operation(Operation::Connect)
        } else {
            error
        }
    })
}

async fn dispatch(url: &str) -> Result<Arc<dyn Backend>> {
    let parsed = BackendUrl::parse(url)?;
    match parsed.scheme() {
        #[cfg(feature = "memory")]
        "memory" => Ok(Arc::new(dlock_memory::Config::from_url(url)?.connect())),
        other => Err(not_here(other)),
    }
}

fn not_here(scheme: &str) -> Error {
    if let Some(known) = SCHEMES.iter().find(|known| known.name == scheme) {
        return Error::new(
            ErrorKind::Unsupported,
            format!(
                "this program was built without {scheme:?}: enable the feature {:?} of the crate dlock",
                known.feature
            ),
        );
    }
    let mut known = compiled_in().join(", ");
    if known.is_empty() {
        known = "none: enable a backend's feature of the crate dlock".to_owned();
    }
    Error::invalid(format!(
        "the URL's scheme {scheme:?} is not known; this program was built with: {known}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unknown_scheme_lists_the_known_ones() {
        let error = open("postgres://localhost").await.expect_err("unknown");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let text = error.to_string();
        assert!(
            text.starts_with("connect: invalid input: the URL's scheme \"postgres\""),
            "{text}"
        );
        for scheme in compiled_in() {
            assert!(text.contains(scheme), "{text}");
        }
    }

    #[tokio::test]
    async fn every_known_scheme_is_dispatched_or_names_its_feature() {
        for scheme in SCHEMES {
            let outcome = open(&format!("{}:?nonsense=1", scheme.name)).await;
            let error = outcome.expect_err("no backend takes this parameter");
            if scheme.enabled {
                assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
                assert!(
                    !error.to_string().contains("not known; this program"),
                    "{error}"
                );
            } else {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains(scheme.feature), "{error}");
            }
        }
    }

    #[tokio::test]
    async fn a_bad_url_names_the_part() {
        for (url, expected) in [
            ("no-scheme", "has no scheme"),
            ("memory://h:port", "port \"port\""),
        ] {
            let error = open(url).await.expect_err(url);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
