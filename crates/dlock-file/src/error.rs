//! I/O error -> `dlock_core::Error`.

use std::io;
use std::path::Path;

use dlock_core::{Error, ErrorKind};

/// What failed, where, and what to do about it.
pub(crate) fn failed(what: &str, path: &Path, source: io::Error) -> Error {
    let (kind, advice) = advise(source.kind());
    Error::new(
        kind,
        format!("cannot {what} {}: {source}{advice}", path.display()),
    )
    .with_backend("file")
    .with_source(source)
}

fn advise(kind: io::ErrorKind) -> (ErrorKind, &'static str) {
    match kind {
        io::ErrorKind::PermissionDenied => (
            ErrorKind::Denied,
            " (look at its owner and permissions, or choose another folder with file:/path)",
        ),
        io::ErrorKind::ReadOnlyFilesystem => (
            ErrorKind::Denied,
            " (choose a folder that can be written with file:/path)",
        ),
        io::ErrorKind::NotFound => (
            ErrorKind::Unreachable,
            " (was the folder removed? connect again to make it anew)",
        ),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (ErrorKind::Store, " (make room on that file system)")
        }
        io::ErrorKind::Unsupported => (
            ErrorKind::Unsupported,
            " (this file system has no locks: choose a local folder with file:/path)",
        ),
        _ => (ErrorKind::Store, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_its_kind_and_says_what_to_do() {
        for (source, kind, advice) in [
            (
                io::ErrorKind::PermissionDenied,
                ErrorKind::Denied,
                "permissions",
            ),
            (
                io::ErrorKind::ReadOnlyFilesystem,
                ErrorKind::Denied,
                "file:/path",
            ),
            (
                io::ErrorKind::NotFound,
                ErrorKind::Unreachable,
                "connect again",
            ),
            (io::ErrorKind::StorageFull, ErrorKind::Store, "make room"),
            (
                io::ErrorKind::Unsupported,
                ErrorKind::Unsupported,
                "local folder",
            ),
            (io::ErrorKind::Other, ErrorKind::Store, "/x"),
        ] {
            let error = failed("open", Path::new("/x"), io::Error::from(source));
            assert_eq!(error.kind(), kind, "{source:?}");
            assert!(error.to_string().contains(advice), "{error}");
        }
    }
}
