//! Which servers the tests have seen, for the report at the end of a run.

use std::collections::HashSet;
use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// A file that gets a line for each server and version that a test process has started. `ci/test` sets it, and prints it at its end.
const FILE: &str = "DLOCK_TEST_SERVERS";

/// Notes a server and its version, once in each process.
pub(crate) fn note(server: &str, version: &str) {
    static NOTED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let Some(path) = env::var_os(FILE) else {
        return;
    };
    let line = format!("{server} {version}\n");
    let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    if noted.get_or_insert_default().insert(line.clone()) {
        // One write of a short line is whole, also when other processes write too. A report is no reason to fail.
        let file = OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
