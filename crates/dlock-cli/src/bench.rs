//! `dlock bench`: what locks cost with this store, from here.

use std::io::IsTerminal;
use std::time::Duration;

use clap::{Args, ValueEnum};
use comfy_table::Table;
use dlock_bench::{Bench, Dlock, Figure, Scenario, Spread};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::cli::time;
use crate::connect::{Store, shown};
use crate::exit::{ExitResult, Failure, UNAVAILABLE};
use crate::show;

/// How many processes contend for one lock.
const PROCESSES: usize = 3;

/// How many tasks take locks of many names.
const TASKS: usize = 64;

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Tasks take and free locks in a closed loop, in short rounds after a warm-up, on names that nobody else uses. The figure is the median of the rounds, with the least and the most. \
What it shows is this machine, its way to the store and the store together.

Examples:
  dlock bench --backend redis://cache:6379
  dlock bench --backend etcd://etcd-1,etcd-2,etcd-3 --only cycle,hand-off
  dlock bench --only sale --contenders 1,8,64 --rounds 5 --time 3s
  dlock bench --backend memory: --only held --held 100000 --json")]
pub(crate) struct BenchArgs {
    /// Only these [default: all that the store's locks reach]
    #[arg(long, value_delimiter = ',', value_name = "WHAT")]
    only: Vec<Kind>,
    /// How many tasks want the same lock, one number after the other
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N",
        default_value = "1,2,8,50,200"
    )]
    contenders: Vec<u32>,
    /// How many locks are held at once
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "1000")]
    held: Vec<u32>,
    /// How many tasks wait for a lock that is not given back
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "1000")]
    waiters: Vec<u32>,
    /// How many locks 64 tasks choose from
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "1000")]
    names: Vec<u32>,
    /// How many rounds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// How long a round is
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    time: Duration,
    /// How long nothing is counted before
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = time)]
    warm_up: Duration,
    /// How long locks that are held, and tasks that wait, are watched in each round: in a third of the lease each lock is renewed once
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    watch: Duration,
    /// Where chance begins
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// One task takes and frees a free lock
    Cycle,
    /// Tasks of one client want the same lock
    Sale,
    /// The same, with a client for each
    Clients,
    /// The same, with the tasks in three processes
    Processes,
    /// The same, with a client for each
    ProcessClients,
    /// 64 tasks on many locks
    Names,
    /// From the release in one process to the lock in another
    HandOff,
    /// Many locks are held
    Held,
    /// Many tasks wait
    Waiters,
}

impl Kind {
    fn scenarios(self, args: &BenchArgs) -> Vec<Scenario> {
        let of = |sizes: &[u32], make: &dyn Fn(usize) -> Scenario| {
            let sizes = sizes.iter().filter(|&&size| size > 0);
            sizes.map(|&size| make(size as usize)).collect::<Vec<_>>()
        };
        let over_processes = |make: &dyn Fn(usize) -> Scenario| {
            // Each process has a task at least.
            let sizes: Vec<u32> = args.contenders.iter().map(|&size| size.max(3)).collect();
            let mut all = of(&sizes, make);
            all.dedup();
            all
        };
        match self {
            Self::Cycle => vec![Scenario::Cycle],
            Self::HandOff => vec![Scenario::HandOff],
            Self::Sale => of(&args.contenders, &|contenders| Scenario::Sale {
                contenders,
            }),
            Self::Clients => of(&args.contenders, &|contenders| Scenario::Clients {
                contenders,
            }),
            Self::Processes => over_processes(&|contenders| Scenario::Processes {
                contenders,
                processes: PROCESSES,
            }),
            Self::ProcessClients => over_processes(&|contenders| Scenario::ProcessClients {
                contenders,
                processes: PROCESSES,
            }),
            Self::Names => of(&args.names, &|names| Scenario::Names {
                tasks: TASKS,
                names,
            }),
            Self::Held => of(&args.held, &|locks| Scenario::Held { locks }),
            Self::Waiters => of(&args.waiters, &|waiters| Scenario::Waiters { waiters }),
        }
    }
}

pub(crate) async fn run(store: &Store, args: &BenchArgs) -> ExitResult {
    let url = store.url()?;
    let program = std::env::current_exe().map_err(failed)?;
    let subject = Dlock::new(&url).started_by(program, &["__bench-worker"]);
    // A wrong URL is told before anything is begun, with the code that it has everywhere.
    let locks = store.connect(dlocks::Settings::new()).await?;
    let reaches = locks.capabilities().has(dlocks::Capability::HostWide);
    crate::connect::leave(&locks).await;

    let kinds = match args.only.as_slice() {
        [] => Kind::value_variants(),
        only => only,
    };
    let scenarios = kinds.iter().flat_map(|kind| kind.scenarios(args));
    let (scenarios, left_out): (Vec<_>, Vec<_>) =
        scenarios.partition(|scenario| reaches || !scenario.is_over_processes());
    let bar = bar(scenarios.len() * usize::from(args.rounds));
    let told = bar.clone();
    let bench = Bench::new()
        .rounds(args.rounds.into())
        .round(args.time)
        .warm_up(args.warm_up)
        .watch(args.watch)
        .seed(args.seed)
        .tell(move |what| {
            told.set_message(what.to_owned());
            told.inc(1);
        });
    let mut figures = Vec::new();
    for scenario in scenarios {
        let measured = bench.run(scenario, &[&subject]).await;
        figures.extend(measured.map_err(failed)?);
    }
    bar.finish_and_clear();

    if store.json {
        let left_out = left_out.iter().map(ToString::to_string);
        show::print(&json!({
            "backend": shown(&url),
            "version": env!("CARGO_PKG_VERSION"),
            "seed": args.seed,
            "rounds": args.rounds,
            "round_ms": args.time.as_millis() as u64,
            "warm_up_ms": args.warm_up.as_millis() as u64,
            "watch_ms": args.watch.as_millis() as u64,
            "figures": figures.iter().map(Figure::to_json).collect::<Vec<_>>(),
            "left_out": left_out.collect::<Vec<_>>(),
        }))?;
        return Ok(0);
    }
    show::print(&format!("Locks: {}\n", shown(&url)))?;
    show::print_table(&table(&figures))?;
    for scenario in left_out {
        show::print(&format!(
            "left out: {scenario}: the locks of this store do not reach another process"
        ))?;
    }
    Ok(0)
}

/// What a process does that [`run`] has started.
pub(crate) async fn work() -> ExitResult {
    let subject = Dlock::in_worker().map_err(failed)?;
    dlock_bench::serve(&subject).await.map_err(failed)?;
    Ok(0)
}

fn failed(error: impl Into<dlock_bench::Error>) -> Failure {
    Failure::new(
        UNAVAILABLE,
        format!("the benchmark ended early: {}", error.into()),
    )
}

fn bar(steps: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}

fn table(figures: &[Figure]) -> Table {
    let mut table = show::table(&[
        "what",
        "median",
        "least to most",
        "unit",
        "p50",
        "p99",
        "max",
        "more",
    ]);
    for figure in figures {
        let Spread {
            middle,
            least,
            most,
        } = figure.spread();
        let at = |part: f64| match figure.times.is_empty() {
            true => "-".to_owned(),
            false => show::micros(figure.micros_at(part) as u64),
        };
        let more = figure.notes.iter().map(|(name, value)| {
            let name = name.replace('_', " ");
            format!("{name} {}", number(*value))
        });
        let (middle, spread) = match figure.is_empty() {
            true => ("none".to_owned(), "-".to_owned()),
            false => (
                number(middle),
                format!("{} to {}", number(least), number(most)),
            ),
        };
        table.add_row([
            figure.scenario.to_string(),
            middle,
            spread,
            figure.scenario.unit().to_owned(),
            at(0.5),
            at(0.99),
            at(1.0),
            more.collect::<Vec<_>>().join(", "),
        ]);
    }
    table
}

/// Three digits are all that rounds agree in.
fn number(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
