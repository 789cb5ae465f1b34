//! The sale as a picture: what was sold beside what really left the stock.

use std::fmt::Write as _;
use std::io::IsTerminal;

use crate::demo::report::Report;

/// How many cells a bar has; with its words it fits a terminal of 80 columns.
const CELLS: u64 = 40;
const GONE: &str = "█";
const NOT_GONE: &str = "░";

/// One bar for each run, all at the same scale.
pub(crate) fn draw(reports: &[&Report]) -> String {
    let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let bars: Vec<Bar> = reports.iter().map(|report| Bar::of(report)).collect();
    let most = bars.iter().map(|bar| bar.sold).max().unwrap_or_default();
    let mut text = String::new();
    for bar in &bars {
        let _ = writeln!(text, "{}", bar.line(most, colours));
    }
    let _ = write!(
        text,
        "{:16}{GONE} sold, and gone from the stock   {NOT_GONE} sold, and still there: sold again",
        ""
    );
    text
}

struct Bar {
    run: &'static str,
    sold: u64,
    oversold: u64,
    exact: bool,
}

impl Bar {
    fn of(report: &Report) -> Self {
        Self {
            run: report.run(),
            sold: report.sold(),
            oversold: report.oversold(),
            exact: report.is_exact(),
        }
    }

    fn line(&self, most: u64, colours: bool) -> String {
        let all = cells(self.sold, most);
        // One item too many is one too many: it has a cell.
        let over = match self.oversold {
            0 => 0,
            n => cells(n, most).clamp(1, all.max(1)),
        };
        let bar = GONE.repeat(all.saturating_sub(over)) + &NOT_GONE.repeat(over);
        let verdict = match self.oversold {
            0 if self.exact => "exact".to_owned(),
            0 => "not exact".to_owned(),
            n => format!("oversold by {n}"),
        };
        let (colour, end) = match (colours, self.exact) {
            (true, true) => ("\x1b[32m", "\x1b[0m"),
            (true, false) => ("\x1b[31m", "\x1b[0m"),
            (false, _) => ("", ""),
        };
        let fill = " ".repeat(
            usize::try_from(CELLS)
                .unwrap_or_default()
                .saturating_sub(all.max(over)),
        );
        format!(
            "{:16}{colour}{bar}{end}{fill}  {colour}{verdict}{end}",
            self.run
        )
    }
}

/// How much of a bar a number fills, to the nearest cell.
fn cells(number: u64, most: u64) -> usize {
    let share = u128::from(number) * u128::from(CELLS) + u128::from(most) / 2;
    usize::try_from(share / u128::from(most.max(1))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(sold: u64, oversold: u64) -> Bar {
        Bar {
            run: "run",
            sold,
            oversold,
            exact: oversold == 0,
        }
    }

    #[test]
    fn a_bar_shows_how_much_was_sold_again() {
        let line = bar(5000, 2500).line(5000, false);
        assert_eq!(
            line,
            format!(
                "{:16}{}{}  oversold by 2500",
                "run",
                GONE.repeat(20),
                NOT_GONE.repeat(20)
            )
        );
        let line = bar(5000, 0).line(5000, false);
        assert_eq!(line, format!("{:16}{}  exact", "run", GONE.repeat(40)));
    }

    #[test]
    fn one_item_too_many_is_seen() {
        let line = bar(1_000_000, 1).line(1_000_000, false);
        assert_eq!(line.matches(NOT_GONE).count(), 1, "{line}");
        assert_eq!(line.matches(GONE).count(), 39, "{line}");
    }

    #[test]
    fn bars_have_one_scale_and_end_in_one_column() {
        let (long, short) = (bar(5000, 0).line(5000, false), bar(50, 0).line(5000, false));
        assert_eq!(long.chars().count(), short.chars().count());
        assert_eq!(short.matches(GONE).count(), 0, "{short}");
        assert_eq!(bar(0, 0).line(0, false).matches(GONE).count(), 0);
    }

    #[test]
    fn colours_are_for_terminals() {
        assert!(!bar(10, 5).line(10, false).contains('\x1b'));
        assert!(bar(10, 5).line(10, true).contains("\x1b[31m"));
        assert!(bar(10, 0).line(10, true).contains("\x1b[32m"));
    }
}
