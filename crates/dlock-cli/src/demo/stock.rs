//! The table that the workers buy from: one number, read and written without any protection of its own.

use std::path::Path;

use async_trait::async_trait;

use crate::demo::stock_file::FileStock;
#[cfg(feature = "redis")]
use crate::demo::stock_redis::RedisStock;
use crate::exit::Failure;

/// A number in a store. A backend that can keep it adds a file with its implementation, and a line to [`place`] and [`open`].
#[async_trait]
pub(crate) trait Stock: Send + Sync {
    async fn read(&self) -> Result<u64, Failure>;
    async fn write(&self, items: u64) -> Result<(), Failure>;
    /// Leaves nothing behind.
    async fn remove(&self) -> Result<(), Failure>;
}

/// Where the stock of a sale lives, as text for the workers' command line: a path now, a key or a table for stores that keep
/// data. Never secret.
pub(crate) fn place(url: &str, id: &str, folder: &Path) -> String {
    #[cfg(feature = "redis")]
    if crate::redis_link::reaches(url) {
        return format!("key:{id}");
    }
    let _ = url;
    format!("path:{}", folder.join(id).display())
}

pub(crate) async fn open(url: &str, place: &str) -> Result<Box<dyn Stock>, Failure> {
    let _ = url;
    match place.split_once(':') {
        Some(("path", path)) => Ok(Box::new(FileStock::open(Path::new(path))?)),
        #[cfg(feature = "redis")]
        Some(("key", key)) => match crate::redis_link::connect(url).await? {
            Some(connection) => Ok(Box::new(RedisStock::new(connection, key))),
            None => Err(Failure::usage("this Redis keeps no stock")),
        },
        _ => Err(Failure::usage(format!(
            "unknown place for the stock: {place:?}"
        ))),
    }
}
