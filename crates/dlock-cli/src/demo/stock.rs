//! The table that the workers buy from: one number, read and written without any protection of its own.

use std::path::Path;
use std::pin::Pin;

use async_trait::async_trait;
use dlocks::backend::BackendUrl;

use crate::demo::stock_file::FileStock;
use crate::exit::Failure;

/// A number in a store. A backend that can keep it adds a file with its implementation, and a line to [`STORES`].
#[async_trait]
pub(crate) trait Stock: Send + Sync {
    /// Puts it there. What a sale leaves that was killed must go by itself some time.
    async fn fill(&self, items: u64) -> Result<(), Failure>;
    async fn read(&self) -> Result<u64, Failure>;
    /// Changes what is there.
    async fn write(&self, items: u64) -> Result<(), Failure>;
    /// Leaves nothing behind.
    async fn remove(&self) -> Result<(), Failure>;
}

type Opened<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn Stock>, Failure>> + 'a>>;

/// A store that keeps data beside its locks.
struct Store {
    name: &'static str,
    schemes: &'static [&'static str],
    /// By the backend's URL and the sale's name.
    open: for<'a> fn(&'a str, &'a str) -> Opened<'a>,
}

const STORES: &[Store] = &[
    #[cfg(feature = "redis")]
    Store {
        name: "redis",
        schemes: &[
            "redis",
            "rediss",
            "redis+unix",
            "redis+sentinel",
            "rediss+sentinel",
            "redis+cluster",
            "rediss+cluster",
        ],
        open: |url, id| Box::pin(super::stock_redis::open(url, id)),
    },
    #[cfg(feature = "etcd")]
    Store {
        name: "etcd",
        schemes: &["etcd", "etcds"],
        open: |url, id| Box::pin(super::stock_etcd::open(url, id)),
    },
    #[cfg(feature = "zk")]
    Store {
        name: "zk",
        schemes: &["zk", "zks"],
        open: |url, id| Box::pin(super::stock_zk::open(url, id)),
    },
    #[cfg(feature = "mysql")]
    Store {
        name: "mysql",
        schemes: &["mysql"],
        open: |url, id| Box::pin(super::stock_mysql::open(url, id)),
    },
    #[cfg(feature = "postgres")]
    Store {
        name: "postgres",
        schemes: &["postgres", "postgresql"],
        open: |url, id| Box::pin(super::stock_postgres::open(url, id)),
    },
];

/// Locks of this host; a file is where its data would be.
const LOCAL: &[&str] = &["file", "memory"];

/// Where the stock of a sale lives, as text for the workers' command line. Never secret.
///
/// In the store if it lets us, else in a file; then a line says why.
pub(crate) async fn place(url: &str, id: &str, folder: &Path) -> String {
    let scheme = BackendUrl::parse(url).map_or(String::new(), |url| url.scheme().to_owned());
    let file = format!("path:{}", folder.join(id).display());
    let store = STORES
        .iter()
        .find(|store| store.schemes.contains(&scheme.as_str()));
    let why = match store {
        Some(store) => match tried(store, url, id).await {
            Ok(()) => return format!("{}:{id}", store.name),
            Err(failure) => failure.message,
        },
        None if LOCAL.contains(&scheme.as_str()) => return file,
        None => format!("{scheme} keeps only locks"),
    };
    eprintln!("dlock: the stock is a file of this host and not in the store: {why}");
    file
}

/// Whether we may do there what a sale does.
async fn tried(store: &Store, url: &str, id: &str) -> Result<(), Failure> {
    let stock = (store.open)(url, id).await?;
    stock.fill(1).await?;
    stock.write(0).await?;
    stock.read().await?;
    stock.remove().await
}

pub(crate) async fn open(url: &str, place: &str) -> Result<Box<dyn Stock>, Failure> {
    let (kind, id) = place.split_once(':').unwrap_or_default();
    if kind == "path" {
        return Ok(Box::new(FileStock::open(Path::new(id))?));
    }
    match STORES.iter().find(|store| store.name == kind) {
        Some(store) => (store.open)(url, id).await,
        None => Err(Failure::usage(format!(
            "unknown place for the stock: {place:?}"
        ))),
    }
}
