//! docs/faults.md says what the plan says.
#![allow(
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

use integration_tests::judge::{Fault, table};

const DOCUMENT: &str = include_str!("../../docs/faults.md");

#[test]
fn the_table_has_every_scenario_with_its_expected_verdict() {
    let missing: Vec<_> = table::planned()
        .into_iter()
        .filter(|row| !table::cells(DOCUMENT).contains(row))
        .collect();
    let all = (table::cells(DOCUMENT).len(), table::planned().len());
    let how = "run `ci/soak quick --write docs/faults.md`";
    assert!(missing.is_empty(), "missing: {missing:?}: {how}");
    assert_eq!(all.0, all.1, "lines that are not in the plan: {how}");
}

#[test]
fn every_fault_is_explained() {
    for fault in Fault::ALL {
        let line = format!("| {} | {} |", fault.as_str(), fault.text());
        assert!(
            DOCUMENT.contains(&line),
            "missing in docs/faults.md: {line}"
        );
    }
}
