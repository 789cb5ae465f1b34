//! docs/faults.md: the table that a run writes, and the part of it that must agree with the plan.

use std::collections::BTreeMap;

use super::faults::Fault;
use super::plan;
use super::store::Store;

/// Where the table begins and ends.
pub const BEGIN: &str = "<!-- written by the run: begin -->";
/// See [`BEGIN`].
pub const END: &str = "<!-- written by the run: end -->";

/// What a run saw in each scenario, and on which server.
pub type Seen = BTreeMap<(Store, Fault), (String, String)>;

/// The table: one line for each scenario.
#[must_use]
pub fn render(seen: &Seen) -> String {
    let mut text =
        format!("{BEGIN}\n\n| store | fault | expected | seen | server |\n|---|---|---|---|---|\n");
    for store in Store::ALL {
        for (fault, expected) in plan::of(store) {
            let (what, server) = seen
                .get(&(store, fault))
                .cloned()
                .unwrap_or_else(|| ("not run".to_owned(), String::new()));
            text += &format!(
                "| {} | {} | {} | {what} | {server} |\n",
                store.as_str(),
                fault.as_str(),
                expected.text()
            );
        }
    }
    text += &format!("\n{END}");
    text
}

/// The cells of a document's table that do not depend on the run: store, fault, expected verdict.
#[must_use]
pub fn cells(document: &str) -> Vec<[String; 3]> {
    let table = document.split(BEGIN).nth(1).unwrap_or_default();
    let table = table.split(END).next().unwrap_or_default();
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.filter_map(|row| {
        let mut cells = row.split('|').skip(1).map(|cell| cell.trim().to_owned());
        Some([cells.next()?, cells.next()?, cells.next()?])
    })
    .collect()
}

/// Those cells as the plan has them.
#[must_use]
pub fn planned() -> Vec<[String; 3]> {
    cells(&render(&Seen::new()))
}

/// A document with a new table in the place of its old one. Scenarios that were not run now keep what an earlier run saw.
#[must_use]
pub fn replace(document: &str, seen: &Seen) -> String {
    let mut all = earlier(document);
    all.extend(seen.clone());
    let (before, rest) = document.split_once(BEGIN).unwrap_or((document, ""));
    let after = rest.split_once(END).map_or("\n", |(_, after)| after);
    format!("{before}{}{after}", render(&all))
}

fn earlier(document: &str) -> Seen {
    let table = document.split(BEGIN).nth(1).unwrap_or_default();
    let rows = table.lines().filter(|line| line.starts_with("| "));
    rows.filter_map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, store, fault, _, what, server, ..] = cells[..] else {
            return None;
        };
        let key = (Store::from_name(store)?, Fault::from_name(fault)?);
        Some((key, (what.to_owned(), server.to_owned())))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_keeps_what_was_not_run_again() {
        let key = |fault| (Store::Redis, fault);
        let value = |what: &str| (what.to_owned(), "Redis 8".to_owned());
        let first = Seen::from([
            (key(Fault::None), value("one")),
            (key(Fault::Partition), value("two")),
        ]);
        let document = replace("before\n", &first);
        let second = Seen::from([(key(Fault::None), value("three"))]);
        let document = replace(&document, &second);
        assert!(document.starts_with("before\n"), "{document}");
        assert!(document.contains("| redis | none | safe | three | Redis 8 |"));
        assert!(document.contains("| redis | partition | safe | two | Redis 8 |"));
        assert_eq!(cells(&document), planned());
    }
}
