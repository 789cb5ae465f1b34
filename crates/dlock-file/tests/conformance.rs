//! The contract, on a folder of its own, with real processes that are killed.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use dlock_conformance::{Ability, Harness, Residue, async_trait};
use dlock_core::backend::Backend;
use dlock_core::{Error, ErrorKind, Name, Result};
use dlock_file::Config;

struct Folder {
    path: PathBuf,
}

fn open(path: &Path) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Config::new(path).connect()?))
}

#[async_trait]
impl Harness for Folder {
    fn name(&self) -> &str {
        "file"
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        open(&self.path)
    }

    fn abilities(&self) -> &'static [Ability] {
        &[Ability::Expire, Ability::Residue]
    }

    /// The suite's names are letters and digits, so the file's name is theirs.
    async fn expire(&self, name: &Name) -> Result<()> {
        let file = self.path.join("locks").join(format!("{name}.lock"));
        std::fs::remove_file(file).map_err(|error| Error::new(ErrorKind::Store, error.to_string()))
    }

    /// Not the gates: there are 64 at most, whatever happens.
    async fn residue(&self) -> Result<Residue> {
        let mut found = Residue::new();
        for part in ["locks", "clients", "wake"] {
            let files = std::fs::read_dir(self.path.join(part))
                .map_err(|error| Error::new(ErrorKind::Store, error.to_string()))?;
            found.insert(part.to_owned(), files.count() as u64);
        }
        Ok(found)
    }

    fn address(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }
}

fn main() -> ExitCode {
    if let Some(code) = dlock_conformance::process::serve(async |path| open(Path::new(path))) {
        return code;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    dlock_conformance::main(Folder {
        path: folder.path().to_owned(),
    })
}
