//! What goes into SQL: names of tables, and times.

use std::time::Duration;

use dlock_core::{Error, Result};

const LONGEST_PREFIX: usize = 40;
/// The server's times end in the year 294276.
const LONGEST_TIME: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A prefix becomes part of SQL, inside the quotes of a table's name, so it is checked here.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    check("table_prefix", prefix, LONGEST_PREFIX, true)
}

/// So does the schema.
pub(crate) fn check_schema(schema: &str) -> Result<()> {
    check("schema", schema, 63, false)
}

fn check(what: &str, text: &str, longest: usize, may_be_empty: bool) -> Result<()> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if text.len() > longest
        || !text.chars().all(good)
        || text.starts_with(|c: char| c.is_ascii_digit())
        || (text.is_empty() && !may_be_empty)
    {
        return Err(Error::invalid(format!(
            "{what} is {text:?}: it must be at most {longest} small letters, digits and '_', and not begin with a digit"
        )));
    }
    Ok(())
}

/// A duration as it stands in a row.
pub(crate) fn micros(time: Duration) -> i64 {
    i64::try_from(time.min(LONGEST_TIME).as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_get_into_sql() {
        for good in ["", "dlock_", "locks2_", "a".repeat(40).as_str()] {
            check_prefix(good).expect(good);
        }
        for bad in [
            "a b",
            "a\"",
            "a;",
            "ä",
            "1a",
            "a.b",
            "A",
            "a".repeat(41).as_str(),
        ] {
            check_prefix(bad).expect_err(bad);
        }
        check_schema("public").expect("a schema");
        check_schema("").expect_err("no schema");
    }

    #[test]
    fn times_fit_into_the_servers() {
        assert_eq!(micros(Duration::from_millis(2)), 2000);
        assert_eq!(micros(Duration::MAX), 3_153_600_000_000_000);
    }
}
