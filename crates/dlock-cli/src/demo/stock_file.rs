//! The stock as a file, for backends of this host and for those that keep no data.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use crate::demo::stock::Stock;
use crate::exit::{Failure, UNAVAILABLE};

/// Always as many digits as the largest number has, so that no write has to cut the file.
const DIGITS: usize = 20;

pub(crate) struct FileStock {
    file: Arc<File>,
    path: PathBuf,
}

impl FileStock {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| failed(path, &error))?;
        Ok(Self {
            file: Arc::new(file),
            path: path.to_owned(),
        })
    }

    /// On another thread, as every trip to a table takes its time and lets others go on.
    async fn trip<T: Send + 'static>(
        &self,
        step: impl FnOnce(&File) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let file = self.file.clone();
        match tokio::task::spawn_blocking(move || step(&file)).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(failed(&self.path, &error)),
            Err(error) => Err(failed(&self.path, &error)),
        }
    }
}

#[async_trait]
impl Stock for FileStock {
    async fn fill(&self, items: u64) -> Result<(), Failure> {
        self.write(items).await
    }

    async fn read(&self) -> Result<u64, Failure> {
        let text = self
            .trip(|file| {
                let mut bytes = [0; DIGITS];
                file.read_exact_at(&mut bytes, 0)?;
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            })
            .await?;
        text.parse().map_err(|error| failed(&self.path, &error))
    }

    async fn write(&self, items: u64) -> Result<(), Failure> {
        self.trip(move |file| file.write_all_at(format!("{items:0DIGITS$}").as_bytes(), 0))
            .await
    }

    async fn remove(&self) -> Result<(), Failure> {
        // The next run writes it anew, and the folder is removed as a whole.
        Ok(())
    }
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(
        UNAVAILABLE,
        format!("cannot use the stock {}: {error}", path.display()),
    )
}
