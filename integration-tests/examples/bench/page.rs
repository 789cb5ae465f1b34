//! docs/benchmarks.md: what stands between its two marks, and its plots.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use dlock_bench::{Figure, Result, Scenario, Spread};

use crate::Measured;
use crate::plot::{Line, draw, number};

pub(crate) struct Page {
    command: String,
    stores: Vec<Measured>,
}

impl Page {
    pub(crate) fn new(words: &[String], stores: Vec<Measured>) -> Self {
        let words = words.iter().filter(|word| *word != "--write");
        let words: Vec<_> = words.map(String::as_str).collect();
        Self {
            command: format!("ci/bench {}", words.join(" ")).trim().to_owned(),
            stores,
        }
    }

    /// Writes what stands between the marks of a part of the page, and leaves the others as they are.
    pub(crate) fn write(&self, part: Option<&str>) -> Result<()> {
        let (begin, end) = marks(part);
        let docs = docs();
        let page = docs.join("benchmarks.md");
        let text = std::fs::read_to_string(&page)?;
        let (before, rest) = text.split_once(&begin).ok_or("no place for the figures")?;
        let (_, after) = rest.split_once(&end).ok_or("no end of that place")?;
        if part.is_none() {
            let folder = docs.join("benchmarks");
            std::fs::create_dir_all(&folder)?;
            for (name, _, svg) in self.plots() {
                std::fs::write(folder.join(format!("{name}.svg")), svg)?;
            }
        }
        let figures = self.text(part.is_none());
        Ok(std::fs::write(
            page,
            format!("{before}{begin}\n\n{figures}\n{end}{after}"),
        )?)
    }

    pub(crate) fn text(&self, with_plots: bool) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "Made on {} with `{}`, on {}. {}{}\n",
            said(&["date", "-u", "+%F"]),
            self.command,
            machine(),
            load(),
            build()
        );
        for (name, title, _) in self.plots().into_iter().filter(|_| with_plots) {
            let _ = writeln!(text, "![{title}](benchmarks/{name}.svg)\n");
        }
        for measured in &self.stores {
            let _ = writeln!(text, "### {}\n\n{}", measured.store, table(measured));
            let kept = kept(measured);
            if !kept.is_empty() {
                let _ = writeln!(text, "{kept}");
            }
        }
        text
    }

    fn plots(&self) -> Vec<(&'static str, &'static str, String)> {
        let mut plots = Vec::new();
        for (kind, title, x, y) in [
            (
                "sale",
                "One lock, tasks of one client",
                "tasks",
                "acquisitions per second",
            ),
            (
                "clients",
                "One lock, a client for each task",
                "tasks",
                "hand-offs per second",
            ),
            (
                "processes",
                "One lock, tasks in three processes",
                "tasks",
                "acquisitions per second",
            ),
            (
                "held",
                "Locks held at once",
                "locks",
                "microseconds to take one more",
            ),
        ] {
            let lines = self.lines(kind);
            plots.extend(draw(title, x, y, &lines).map(|svg| (kind, title, svg)));
        }
        plots
    }

    fn lines(&self, kind: &str) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        // One line for each store, and for what it is compared to: its modes, and our own other ways, stand in the tables.
        for measured in self.stores.iter().filter(|of| !of.store.contains('-')) {
            let of_kind = measured.figures.iter().filter(|figure| {
                figure.scenario.kind() == kind && !figure.subject.starts_with("dlock,")
            });
            for figure in of_kind {
                let is_ours = figure.subject == "dlock";
                let name = match is_ours {
                    true => measured.store.clone(),
                    false => format!("{}: {}", measured.store, figure.subject),
                };
                let point = (figure.scenario.size() as f64, figure.middle());
                match lines.iter_mut().find(|line| line.name == name) {
                    Some(line) => line.points.push(point),
                    None => lines.push(Line {
                        name,
                        points: vec![point],
                        dashed: !is_ours,
                    }),
                }
            }
        }
        lines
    }
}

/// Between these stands a part of the page.
fn marks(part: Option<&str>) -> (String, String) {
    let part = part.map_or_else(String::new, |part| format!(" {part}"));
    let mark = |word: &str| format!("<!-- written by ci/bench{part}: {word} -->");
    (mark("begin"), mark("end"))
}

/// Where docs/ is.
fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// Everything that is a cycle or a turn: ours, and each baseline of the same run as a ratio.
fn table(measured: &Measured) -> String {
    let mut text = String::from(
        "| | dlock | p50, p99 | at the server, each | beside it | | dlock is so many times that |\n|---|---|---|---|---|---|---|\n",
    );
    for ours in &measured.figures {
        let is_kept = matches!(
            ours.scenario,
            Scenario::Held { .. } | Scenario::Waiters { .. }
        );
        if ours.subject != "dlock" || is_kept {
            continue;
        }
        let times = format!(
            "{}, {} µs",
            number(ours.micros_at(0.5)),
            number(ours.micros_at(0.99))
        );
        let first = format!(
            "| {} | {} | {times} | {} |",
            ours.scenario,
            with_unit(ours),
            at_server(ours)
        );
        let same = measured.figures.iter();
        let others =
            same.filter(|other| other.scenario == ours.scenario && other.subject != "dlock");
        let mut lines = 0;
        for other in others {
            let ratio = ours.ratio_to(other);
            let start = if lines == 0 {
                first.as_str()
            } else {
                "| | | | |"
            };
            let cost = at_server(other);
            let cost = if cost.is_empty() {
                cost
            } else {
                format!(" ({cost})")
            };
            let _ = writeln!(
                text,
                "{start} {} | {}{cost} | {} |",
                other.subject,
                with_unit(other),
                spread(ratio)
            );
            lines += 1;
        }
        if lines == 0 {
            let _ = writeln!(text, "{first} | | |");
        }
    }
    text
}

/// What only has to be kept: locks that are held, tasks that wait.
fn kept(measured: &Measured) -> String {
    let kept = measured.figures.iter().filter(|figure| {
        matches!(
            figure.scenario,
            Scenario::Held { .. } | Scenario::Waiters { .. }
        )
    });
    let rows: Vec<String> = kept
        .map(|figure| {
            let note = |name: &str, parts: f64| {
                let note = figure.note(name);
                note.map_or("".to_owned(), |value| number((value / parts).max(0.0)))
            };
            let take = match figure.scenario {
                Scenario::Held { .. } => number(figure.middle()),
                _ => String::new(),
            };
            format!(
                "| {}: {} | {take} | {} | {} | {} | {} | {} | {} |",
                figure.scenario,
                figure.subject,
                note("release_us", 1.0),
                note("bytes_each", 1.0),
                note("own_cpu_us", 1e3),
                note("server_commands", 1.0),
                note("server_bytes", 1.0),
                note("server_cpu_us", 1e3)
            )
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "| kept | take, µs each | free, µs each | memory of the client, bytes each | CPU of the client, ms per second | server: commands per second | bytes per second | CPU, ms per second |\n\
         |---|---|---|---|---|---|---|---|\n{}\n",
        rows.join("\n")
    )
}

fn with_unit(figure: &Figure) -> String {
    let unit = match figure.scenario.unit() {
        "per second" => "/s",
        "hand-offs per second" => "hand-offs/s",
        unit => unit,
    };
    let Spread {
        middle,
        least,
        most,
    } = figure.spread();
    let space = if unit == "/s" { "" } else { " " };
    format!(
        "{}{space}{unit} ({} to {})",
        number(middle),
        number(least),
        number(most)
    )
}

fn spread(ratio: Spread) -> String {
    let Spread {
        middle,
        least,
        most,
    } = ratio;
    format!(
        "**{}** ({} to {})",
        number(middle),
        number(least),
        number(most)
    )
}

fn at_server(figure: &Figure) -> String {
    let parts = [
        ("acquired_per_second", "had per second"),
        ("server_commands", "commands"),
        ("server_bytes", "bytes"),
        ("server_cpu_us", "µs of CPU"),
    ];
    let parts = parts.into_iter().filter_map(|(name, unit)| {
        let value = number(figure.note(name)?);
        Some(format!("{value} {unit}"))
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} cores, {}", said(&["uname", "-srm"]))
}

fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let words: Vec<&str> = load.split(' ').take(3).collect();
    format!(
        "The load at its end was {} (1, 5 and 15 minutes).",
        words.join(", ")
    )
}

/// Figures of a program that was built for tests are no more than a trial of this page.
fn build() -> &'static str {
    match cfg!(debug_assertions) {
        true => {
            " **Built without optimisation**: a trial of the page, in which the client's part is several times what it is."
        }
        false => "",
    }
}

/// What a program prints.
fn said(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}
