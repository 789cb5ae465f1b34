//! docs/benchmarks.md: what stands between its two marks, and its plots.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use dlock_bench::{Figure, Result, Scenario, Spread};

use crate::plot::{Line, draw, number};
use crate::sections::{self, MADE, Section};
use crate::{Measured, STORES};

pub(crate) struct Page {
    command: String,
    stores: Vec<Measured>,
    /// Whether there is a line for every store in every plot.
    is_whole: bool,
}

/// One picture, and where the figures stand in it.
struct Plot {
    file: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
    point: fn(&Figure) -> Option<(f64, f64)>,
}

/// Those of one kind of scenario, by their own unit.
fn of_kind(figure: &Figure, kind: &str) -> Option<(f64, f64)> {
    let is_one = figure.scenario.kind() == kind && !figure.subject.starts_with("dlock,");
    is_one.then(|| (figure.scenario.size() as f64, figure.middle()))
}

/// What it costs the client and the server together that nothing happens.
fn idle(figure: &Figure) -> Option<(f64, f64)> {
    let Scenario::Waiters { waiters } = figure.scenario else {
        return None;
    };
    let micros = |name: &str| figure.note(name).unwrap_or_default();
    Some((
        waiters as f64,
        (micros("own_cpu_us") + micros("server_cpu_us")) / 1e3,
    ))
}

/// A cycle of one task on one of many names.
fn by_names(figure: &Figure) -> Option<(f64, f64)> {
    match figure.scenario {
        Scenario::Names { tasks: 1, names } => Some((names as f64, figure.micros_at(0.5))),
        _ => None,
    }
}

const PLOTS: [Plot; 6] = [
    Plot {
        file: "sale",
        title: "One lock, tasks of one client",
        x: "tasks",
        y: "acquisitions per second",
        point: |figure| of_kind(figure, "sale"),
    },
    Plot {
        file: "clients",
        title: "One lock, a client for each task",
        x: "tasks",
        y: "hand-offs per second",
        point: |figure| of_kind(figure, "clients"),
    },
    Plot {
        file: "processes",
        title: "One lock, tasks in three processes",
        x: "tasks",
        y: "acquisitions per second",
        point: |figure| of_kind(figure, "processes"),
    },
    Plot {
        file: "held",
        title: "Locks held at once",
        x: "locks",
        y: "microseconds to take one more",
        point: |figure| of_kind(figure, "held"),
    },
    Plot {
        file: "waiters",
        title: "Tasks that wait",
        x: "tasks",
        y: "ms of CPU per second, client and server",
        point: idle,
    },
    Plot {
        file: "names",
        title: "A cycle, by the number of names in use",
        x: "names",
        y: "microseconds",
        point: by_names,
    },
];

impl Page {
    pub(crate) fn new(words: &[String], stores: Vec<Measured>, is_whole: bool) -> Self {
        let words = words.iter().filter(|word| *word != "--write");
        let words: Vec<_> = words.map(String::as_str).collect();
        Self {
            command: format!("ci/bench {}", words.join(" ")).trim().to_owned(),
            stores,
            is_whole,
        }
    }

    /// Writes what stands between the marks of a part of the page: the sections of the stores that were measured. The others stay as they are, and so do the plots, if
    /// they would lack some.
    pub(crate) fn write(&self, part: Option<&str>) -> Result<()> {
        let (begin, end) = marks(part);
        let docs = docs();
        let page = docs.join("benchmarks.md");
        let text = std::fs::read_to_string(&page)?;
        let (before, rest) = text.split_once(&begin).ok_or("no place for the figures")?;
        let (old, after) = rest.split_once(&end).ok_or("no end of that place")?;
        let (head, old) = sections::parse(old);
        let mut text = String::new();
        if part.is_none() && self.is_whole {
            let folder = docs.join("benchmarks");
            std::fs::create_dir_all(&folder)?;
            for plot in &PLOTS {
                let lines = self.lines(plot.point);
                if let Some(svg) = draw(plot.title, plot.x, plot.y, &lines) {
                    std::fs::write(folder.join(format!("{}.svg", plot.file)), svg)?;
                    let _ = writeln!(text, "![{}](benchmarks/{}.svg)\n", plot.title, plot.file);
                }
            }
        } else {
            for plot in head.iter().filter(|line| line.starts_with("![")) {
                let _ = writeln!(text, "{plot}\n");
            }
        }
        let all = sections::merge(old, self.sections(), &STORES);
        let all: Vec<_> = all.into_iter().map(|section| section.text).collect();
        text.push_str(&all.join("\n"));
        Ok(std::fs::write(
            page,
            format!("{before}{begin}\n\n{text}\n{end}{after}"),
        )?)
    }

    /// All that was measured, as text.
    pub(crate) fn text(&self) -> String {
        let all = self.sections().into_iter().map(|section| section.text);
        all.collect::<Vec<_>>().join("\n")
    }

    fn sections(&self) -> Vec<Section> {
        let section = |measured: &Measured| {
            let mut text = format!(
                "### {}\n\n{MADE}{} with `{}`, on {}. The load at its end was {} (1, 5 and 15 minutes).{}\n\n{}",
                measured.store,
                said(&["date", "-u", "+%F"]),
                self.command,
                machine(),
                measured.load,
                build(),
                table(measured)
            );
            let kept = kept(measured);
            if !kept.is_empty() {
                let _ = write!(text, "\n{kept}");
            }
            Section {
                store: measured.store.clone(),
                text,
            }
        };
        self.stores.iter().map(section).collect()
    }

    fn lines(&self, point: fn(&Figure) -> Option<(f64, f64)>) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        // One line for each store, and for what it is compared to: its modes stand in the tables.
        for measured in self.stores.iter().filter(|of| !of.store.contains('-')) {
            for figure in &measured.figures {
                let Some(point) = point(figure).filter(|_| !figure.is_empty()) else {
                    continue;
                };
                let name = match figure.subject.strip_prefix("dlock") {
                    Some("") => measured.store.clone(),
                    // Another way of ours.
                    Some(_) => format!("{}, each in its queue", measured.store),
                    None => format!("{}: {}", measured.store, figure.subject),
                };
                match lines.iter_mut().find(|line| line.name == name) {
                    Some(line) => line.points.push(point),
                    None => lines.push(Line {
                        name,
                        points: vec![point],
                        dashed: figure.subject != "dlock",
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
        if ours.subject != "dlock" || ours.scenario.is_kept() {
            continue;
        }
        let times = match ours.is_empty() {
            true => String::new(),
            false => format!(
                "{}, {} µs",
                number(ours.micros_at(0.5)),
                number(ours.micros_at(0.99))
            ),
        };
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
            let ratio = ratio(ours, other);
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
                ratio
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
    let kept = measured
        .figures
        .iter()
        .filter(|figure| figure.scenario.is_kept());
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
    if figure.is_empty() {
        return "none in the round".to_owned();
    }
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
    let empty = match figure.empty_rounds {
        0 => String::new(),
        empty => format!("; none in {empty} of {} rounds", figure.rounds.len()),
    };
    format!(
        "{}{space}{unit} ({} to {}{empty})",
        number(middle),
        number(least),
        number(most)
    )
}

/// How many times the other this is; nothing where one of them never had a turn.
fn ratio(ours: &Figure, other: &Figure) -> String {
    let Spread {
        middle,
        least,
        most,
    } = ours.ratio_to(other);
    if ours.is_empty() || other.is_empty() || !middle.is_finite() {
        return "-".to_owned();
    }
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

/// Of the last 1, 5 and 15 minutes.
pub(crate) fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let words: Vec<&str> = load.split(' ').take(3).collect();
    words.join(", ")
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;
    use dlock_bench::{Bench, Client, Dlock, Hold, Subject};

    use super::*;

    /// Gives the lock once and never again within the round.
    struct Slow;

    #[async_trait]
    impl Subject for Slow {
        fn name(&self) -> &str {
            "slow"
        }

        async fn client(&self) -> Result<Arc<dyn Client>> {
            Ok(Arc::new(Self))
        }
    }

    #[async_trait]
    impl Client for Slow {
        async fn lock(&self, _: &str) -> Result<Box<dyn Hold>> {
            tokio::time::sleep(Duration::from_millis(60)).await;
            Ok(Box::new(Self))
        }
    }

    #[async_trait]
    impl Hold for Slow {
        async fn release(self: Box<Self>) -> Result<()> {
            Ok(())
        }
    }

    async fn measured(scenario: Scenario, others: &[&dyn Subject]) -> Measured {
        let bench = Bench::new().rounds(2).round(Duration::from_millis(30));
        let bench = bench.warm_up(Duration::from_millis(1));
        let bench = bench.watch(Duration::from_millis(50));
        let memory = Dlock::new("memory:");
        let mut subjects: Vec<&dyn Subject> = vec![&memory];
        subjects.extend(others);
        let figures = bench.run(scenario, &subjects).await;
        Measured {
            store: "memory".to_owned(),
            figures: figures.expect("figures"),
            load: "0.1, 0.2, 0.3".to_owned(),
        }
    }

    #[tokio::test]
    async fn who_never_had_the_lock_has_no_figure_and_no_ratio() {
        let measured = measured(Scenario::Cycle, &[&Slow]).await;
        let table = table(&measured);
        assert!(
            table.ends_with("| slow | none in the round | - |\n"),
            "{table}"
        );
    }

    #[tokio::test]
    async fn waiters_and_names_have_a_place_in_a_plot() {
        let waiters = measured(Scenario::Waiters { waiters: 3 }, &[]).await;
        let names = measured(Scenario::Names { tasks: 1, names: 5 }, &[]).await;
        let crowd = measured(Scenario::Names { tasks: 2, names: 5 }, &[]).await;
        let ours = |measured: &Measured| measured.figures[0].clone();
        assert_eq!(idle(&ours(&waiters)).map(|point| point.0), Some(3.0));
        assert!(by_names(&ours(&names)).is_some_and(|(x, y)| x == 5.0 && y > 0.0));
        assert_eq!(by_names(&ours(&crowd)), None);
        assert_eq!(idle(&ours(&names)), None);
        let page = Page::new(&[], vec![names], false);
        assert_eq!(page.lines(by_names)[0].name, "memory");
    }
}
