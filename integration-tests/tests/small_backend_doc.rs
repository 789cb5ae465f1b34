//! docs/write-a-backend.md shows the code of the small backend as it is: `DLOCK_UPDATE_DOCS=1` writes it anew.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

use std::fs;
use std::path::{Path, PathBuf};

const START: &str = "<!-- code: ";
const END: &str = "<!-- end of code -->";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What is between `// [step]` and the next such mark.
fn step(file: &str, step: &str) -> String {
    let path = root()
        .join("integration-tests/tests/small_backend")
        .join(file);
    let code = fs::read_to_string(&path).expect(file);
    let is_mark = |line: &str| {
        let line = line.trim();
        line.starts_with("// [") && line.ends_with(']')
    };
    let mark = format!("// [{step}]");
    let lines = code.lines().skip_while(|line| line.trim() != mark).skip(1);
    let part: Vec<&str> = lines.take_while(|line| !is_mark(line)).collect();
    assert!(!part.is_empty(), "no step {step:?} in {file}");
    part.join("\n").trim_matches('\n').to_owned()
}

#[test]
fn the_document_shows_the_code_as_it_is() {
    let path = root().join("docs/write-a-backend.md");
    let old = fs::read_to_string(&path).expect("the document");
    let mut new = String::new();
    let mut rest = old.as_str();
    let mut steps = 0;
    while let Some((before, after)) = rest.split_once(START) {
        let (what, after) = after.split_once(" -->\n").expect("the end of the mark");
        let (_, after) = after.split_once(END).expect("the end of the code");
        let (file, name) = what.split_once(' ').expect("a file and a step");
        let code = step(file, name);
        new += &format!("{before}{START}{what} -->\n\n```rust,ignore\n{code}\n```\n\n{END}");
        rest = after;
        steps += 1;
    }
    new += rest;
    assert!(steps >= 7, "only {steps} steps");
    if std::env::var_os("DLOCK_UPDATE_DOCS").is_some() {
        fs::write(&path, &new).expect("the document can be written");
        return;
    }
    assert!(
        new == old,
        "docs/write-a-backend.md is out of date: run this test with DLOCK_UPDATE_DOCS=1"
    );
}

#[test]
fn the_backend_is_small() {
    let code = fs::read_to_string(root().join("integration-tests/tests/small_backend/backend.rs"));
    let lines = code.expect("the backend").lines().count();
    assert!(lines <= 300, "{lines} lines");
}
