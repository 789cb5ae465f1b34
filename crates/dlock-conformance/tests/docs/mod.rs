//! The tables in the project's `docs/conformance.md`. They are not there when the crate was taken from the registry.

use std::path::PathBuf;
use std::sync::Mutex;

/// Set it to write the tables anew.
pub(crate) const UPDATE: &str = "DLOCK_UPDATE_DOCS";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance.md")
}

pub(crate) fn read() -> Option<String> {
    std::fs::read_to_string(path()).ok()
}

/// Replaces what is between the marks of a table, if that was asked for.
pub(crate) fn write(table: &str, content: &str) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap();
    if std::env::var_os(UPDATE).is_none() {
        return;
    }
    let text = read().unwrap();
    let (start, end) = (
        format!("<!-- {table} -->\n"),
        format!("<!-- end of {table} -->"),
    );
    let (before, rest) = text.split_once(&start).unwrap();
    let (_, after) = rest.split_once(&end).unwrap();
    std::fs::write(path(), format!("{before}{start}\n{content}\n{end}{after}")).unwrap();
}
