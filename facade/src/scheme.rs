//! Which URL scheme belongs to which backend.

use std::sync::Arc;

use dlock_core::backend::{Backend, BackendUrl};
use dlock_core::{Error, ErrorKind, Operation, Result};

use crate::registry::{opening, registered};

/// Every scheme this version knows, and the feature that brings it.
const SCHEMES: &[Scheme] = &[
    scheme("memory", "memory", cfg!(feature = "memory")),
    scheme("file", "file", cfg!(feature = "file")),
    scheme("redis", "redis", cfg!(feature = "redis")),
    scheme("rediss", "redis", cfg!(feature = "redis")),
    scheme("redis+unix", "redis", cfg!(feature = "redis")),
    scheme("redis+sentinel", "redis", cfg!(feature = "redis")),
    scheme("rediss+sentinel", "redis", cfg!(feature = "redis")),
    scheme("redis+cluster", "redis", cfg!(feature = "redis")),
    scheme("rediss+cluster", "redis", cfg!(feature = "redis")),
    scheme("redlock", "redlock", cfg!(feature = "redlock")),
    scheme("redlocks", "redlock", cfg!(feature = "redlock")),
    scheme("etcd", "etcd", cfg!(feature = "etcd")),
    scheme("etcds", "etcd", cfg!(feature = "etcd")),
    scheme("etcd+srv", "etcd", cfg!(feature = "etcd")),
    scheme("etcds+srv", "etcd", cfg!(feature = "etcd")),
    scheme("mysql", "mysql", cfg!(feature = "mysql")),
    scheme("postgres", "postgres", cfg!(feature = "postgres")),
    scheme("postgresql", "postgres", cfg!(feature = "postgres")),
    scheme("zk", "zk", cfg!(feature = "zk")),
    scheme("zks", "zk", cfg!(feature = "zk")),
];

struct Scheme {
    name: &'static str,
    feature: &'static str,
    enabled: bool,
}

const fn scheme(name: &'static str, feature: &'static str, enabled: bool) -> Scheme {
    Scheme {
        name,
        feature,
        enabled,
    }
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

/// Whether a scheme belongs to a backend of this crate, enabled or not.
pub(crate) fn is_ours(scheme: &str) -> bool {
    SCHEMES.iter().any(|known| known.name == scheme)
}

async fn dispatch(url: &str) -> Result<Arc<dyn Backend>> {
    let parsed = BackendUrl::parse(url)?;
    if let Some(opening) = opening(parsed.scheme(), url) {
        return opening.await;
    }
    let Some(scheme) = SCHEMES
        .iter()
        .find(|known| known.enabled && known.name == parsed.scheme())
    else {
        return Err(not_here(parsed.scheme()));
    };
    match scheme.feature {
        #[cfg(feature = "memory")]
        "memory" => Ok(Arc::new(dlock_memory::Config::from_url(url)?.connect())),
        #[cfg(feature = "file")]
        "file" => Ok(Arc::new(dlock_file::Config::from_url(url)?.connect()?)),
        #[cfg(feature = "redis")]
        "redis" => Ok(Arc::new(
            dlock_redis::Config::from_url(url)?.connect().await?,
        )),
        #[cfg(feature = "redlock")]
        "redlock" => Ok(Arc::new(
            dlock_redlock::Config::from_url(url)?.connect().await?,
        )),
        #[cfg(feature = "etcd")]
        "etcd" => Ok(Arc::new(
            dlock_etcd::Config::from_url(url)?.connect().await?,
        )),
        #[cfg(feature = "mysql")]
        "mysql" => Ok(Arc::new(
            dlock_mysql::Config::from_url(url)?.connect().await?,
        )),
        #[cfg(feature = "postgres")]
        "postgres" => Ok(Arc::new(
            dlock_postgres::Config::from_url(url)?.connect().await?,
        )),
        #[cfg(feature = "zk")]
        "zk" => Ok(Arc::new(dlock_zk::Config::from_url(url)?.connect().await?)),
        _ => Err(not_here(scheme.name)),
    }
}

fn not_here(scheme: &str) -> Error {
    if let Some(known) = SCHEMES.iter().find(|known| known.name == scheme) {
        return Error::new(
            ErrorKind::Unsupported,
            format!(
                "this program was built without {scheme:?}: enable the feature {:?} of the crate dlocks",
                known.feature
            ),
        );
    }
    let mut known = compiled_in();
    let registered = registered();
    known.extend(registered.iter().map(String::as_str));
    let mut known = known.join(", ");
    if known.is_empty() {
        known = "none: enable a backend's feature of the crate dlocks".to_owned();
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
        let error = open("mongodb://localhost").await.expect_err("unknown");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let text = error.to_string();
        assert!(
            text.starts_with("connect: invalid input: the URL's scheme \"mongodb\""),
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
            ("memory://h:port", "the port of \"h\" is not a number"),
        ] {
            let error = open(url).await.expect_err(url);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
