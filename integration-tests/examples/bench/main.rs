//! What locks cost on every store, beside raw commands and other libraries in the same run; writes docs/benchmarks.md and its plots.
//!
//! `ci/bench` runs it: `bench [--store redis,mysql-session] [--only cycle,names] [--rounds N] [--time SECONDS] [--watch SECONDS] [--full] [--part NAME] [--write]`
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark prints, and ends where its expectation breaks"
)]

mod baselines;
mod bell;
mod page;
mod plot;
mod pool;
mod raw_etcd;
mod raw_mysql;
mod raw_postgres;
mod raw_redis;
mod raw_zk;
mod sections;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_bench::{Bench, Counters, Dlock, Figure, Meter, Result, Scenario, Subject};
use integration_tests::{
    EtcdServer, Flavor, Folder, Postgres, PostgresServer, RedisServer, ZooKeeperServer,
};

use crate::baselines::{WORKER, asked, baselines, strict};

/// All, in the order of the page. What stands behind a dash is a mode.
const STORES: [&str; 12] = [
    "memory",
    "file",
    "redis",
    "redlock",
    "etcd",
    "zk",
    "mysql",
    "mysql-unique",
    "mysql-session",
    "mysql-advisory",
    "postgres",
    "postgres-session",
];

/// Masters of Redlock.
const NODES: usize = 5;

const PROCESSES: usize = 3;
const TASKS: usize = 64;

/// Tasks over three processes, eight in each.
const CREW: usize = 24;

/// What is kept is watched for much longer than a round, and is in one round what it is in the next.
const KEPT_ROUNDS: usize = 1;

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == WORKER) {
        return baselines::work(&words[1..]).await;
    }
    let plan = Plan::from_words(&words)?;
    let mut stores = Vec::new();
    for store in &plan.stores {
        stores.push(measure(&plan, store).await?);
    }
    let page = page::Page::new(&words, stores, plan.is_whole());
    // The first part of the page would lose what was not measured of a store.
    let is_partial = !plan.only.is_empty() && plan.part.is_none();
    match plan.write && !is_partial {
        true => page.write(plan.part.as_deref())?,
        false => println!("{}", page.text()),
    }
    Ok(())
}

/// What was asked for.
struct Plan {
    stores: Vec<String>,
    /// Kinds of scenarios; all when it is empty.
    only: Vec<String>,
    rounds: usize,
    time: Duration,
    /// How long is watched what is kept.
    watch: Duration,
    /// Also the sizes that take minutes: 100,000 locks, 10,000 waiters, 10,000 names.
    full: bool,
    write: bool,
    /// The part of the page that is written; the first one if none is named.
    part: Option<String>,
}

impl Plan {
    fn from_words(words: &[String]) -> Result<Self> {
        let mut plan = Self {
            stores: STORES.map(str::to_owned).to_vec(),
            only: Vec::new(),
            rounds: 5,
            time: Duration::from_secs(1),
            // A renewal interval of the default lease, in which each lock is renewed once.
            watch: Duration::from_secs(10),
            full: false,
            write: false,
            part: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} without a value"));
            match word.as_str() {
                "--store" => plan.stores = value()?.split(',').map(str::to_owned).collect(),
                "--only" => plan.only = value()?.split(',').map(str::to_owned).collect(),
                "--rounds" => plan.rounds = value()?.parse()?,
                "--time" => plan.time = Duration::from_secs_f64(value()?.parse()?),
                "--watch" => plan.watch = Duration::from_secs_f64(value()?.parse()?),
                "--full" => plan.full = true,
                "--write" => plan.write = true,
                "--part" => plan.part = Some(value()?.clone()),
                other => return Err(format!("unknown: {other}").into()),
            }
        }
        Ok(plan)
    }

    /// Whether all is measured that plots show.
    fn is_whole(&self) -> bool {
        let mut plotted = STORES.iter().filter(|store| !store.contains('-'));
        self.only.is_empty() && plotted.all(|store| self.stores.iter().any(|of| of == store))
    }

    fn bench(&self) -> Bench {
        Bench::new()
            .rounds(self.rounds)
            .round(self.time)
            .watch(self.watch)
            .seed(42)
    }
}

/// A store that was measured.
struct Measured {
    store: String,
    figures: Vec<Figure>,
    /// Of the machine, when it was done.
    load: String,
}

/// A server, or a folder, for as long as it is measured.
struct Started {
    url: String,
    meter: Option<Arc<dyn Meter>>,
    /// Ends with the value.
    _folder: Option<Folder>,
}

async fn start(store: &str) -> Result<Started> {
    let (store, mode) = store.split_once('-').unwrap_or((store, ""));
    let mut started = start_store(store).await?;
    if !mode.is_empty() {
        started.url = format!("{}?mode={mode}", started.url);
    }
    Ok(started)
}

async fn start_store(store: &str) -> Result<Started> {
    let started = |url: String, meter: Arc<dyn Meter>| Started {
        url,
        meter: Some(meter),
        _folder: None,
    };
    Ok(match store {
        "memory" => Started {
            url: "memory:".into(),
            meter: None,
            _folder: None,
        },
        "file" => {
            let folder = Folder::new("bench")?;
            Started {
                url: format!("file:{}", folder.path().display()),
                meter: None,
                _folder: Some(folder),
            }
        }
        "redis" => {
            let server = RedisServer::start().await?;
            started(server.url(), Arc::new(server))
        }
        "redlock" => {
            let servers = (0..NODES).map(|_| RedisServer::start());
            let nodes = Nodes(futures::future::try_join_all(servers).await?);
            started(nodes.url(), Arc::new(nodes))
        }
        "etcd" => {
            let server = EtcdServer::start().await?;
            started(server.url(), Arc::new(server))
        }
        "zk" => {
            let server = ZooKeeperServer::start().await?;
            started(server.url(), Arc::new(server))
        }
        "mysql" => {
            let server = Flavor::MariaDb.start().await?;
            started(server.url(), Arc::new(server))
        }
        "postgres" => {
            let settings = Postgres::set(&["max_connections=800"]);
            let server = PostgresServer::start_with(settings).await?;
            started(server.url(), Arc::new(server))
        }
        other => return Err(format!("unknown store: {other}").into()),
    })
}

/// Independent servers, whose costs are added up.
struct Nodes(Vec<RedisServer>);

impl Nodes {
    fn url(&self) -> String {
        let hosts = self.0.iter().map(|node| node.addr().to_string());
        // They keep nothing, so without this a new one would count as one that has forgotten.
        format!(
            "redlock://{}?persistent=true",
            hosts.collect::<Vec<_>>().join(",")
        )
    }
}

#[async_trait]
impl Meter for Nodes {
    async fn read(&self) -> Result<Counters> {
        let mut all = Counters::default();
        let sum = |one: Option<f64>, other: Option<f64>| Some(one.unwrap_or_default() + other?);
        for node in &self.0 {
            let one = node.read().await?;
            all = Counters {
                commands: sum(all.commands, one.commands),
                bytes: sum(all.bytes, one.bytes),
                cpu: one.cpu.map(|cpu| all.cpu.unwrap_or_default() + cpu),
            };
        }
        Ok(all)
    }
}

async fn measure(plan: &Plan, store: &str) -> Result<Measured> {
    let started = start(store).await?;
    let program = std::env::current_exe()?;
    let dlock = Dlock::new(&started.url).started_by(program, &[WORKER, "dlock"]);
    let program = std::env::current_exe()?;
    let asked = asked(Dlock::new(&started.url).started_by(program, &[WORKER, "asked"]));
    let program = std::env::current_exe()?;
    let strict = strict(Dlock::new(&started.url).started_by(program, &[WORKER, "strict"]));
    let others = baselines(store, &started.url);
    let mut bench = plan.bench();
    if let Some(meter) = &started.meter {
        bench = bench.meter(meter.clone());
    }
    let store_name = store.to_owned();
    bench = bench.tell(move |what| eprintln!("{store_name}: {what}"));
    let mut figures = Vec::new();
    for scenario in scenarios(plan, store) {
        let mut subjects: Vec<&dyn Subject> = vec![&dlock];
        if matches!(scenario, Scenario::Waiters { .. }) {
            subjects.push(&strict);
        }
        if is_shared(scenario) {
            subjects.push(&asked);
        }
        let fit = others.iter().filter(|other| other.fits(scenario));
        subjects.extend(fit.map(|other| other as &dyn Subject));
        let bench = match scenario.is_kept() {
            true => bench.clone().rounds(KEPT_ROUNDS),
            false => bench.clone(),
        };
        figures.extend(bench.run(scenario, &subjects).await?);
    }
    Ok(Measured {
        store: store.to_owned(),
        figures,
        load: page::load(),
    })
}

/// Whether tasks of one client want the same lock, so that it makes a difference that they pass it on.
fn is_shared(scenario: Scenario) -> bool {
    match scenario {
        Scenario::Sale { contenders } => contenders > 1,
        Scenario::Processes {
            contenders,
            processes,
        } => contenders > processes,
        _ => false,
    }
}

fn scenarios(plan: &Plan, store: &str) -> Vec<Scenario> {
    let mut all = all_scenarios(plan, store);
    if !plan.only.is_empty() {
        all.retain(|scenario| plan.only.iter().any(|only| only == scenario.kind()));
    }
    all
}

fn all_scenarios(plan: &Plan, store: &str) -> Vec<Scenario> {
    let sizes = [1, 2, 8, 50, 200];
    let mut all = vec![Scenario::Cycle];
    all.extend(sizes.map(|contenders| Scenario::Sale { contenders }));
    let several = sizes.into_iter().filter(|&size| size > 1 && size < 200);
    all.extend(several.map(|contenders| Scenario::Clients { contenders }));
    if store != "memory" {
        all.extend([3, 8, CREW, 50, 200].map(|contenders| Scenario::Processes {
            contenders,
            processes: PROCESSES,
        }));
        all.push(Scenario::ProcessClients {
            contenders: CREW,
            processes: PROCESSES,
        });
        all.push(Scenario::HandOff);
    }
    all.extend([10, 1_000].map(|names| Scenario::Names {
        tasks: TASKS,
        names,
    }));
    // The growth with the names alone: one task, nobody else there.
    let names: &[usize] = if plan.full {
        &[10, 100, 1_000, 10_000]
    } else {
        &[10, 100, 1_000]
    };
    all.extend(
        names
            .iter()
            .map(|&names| Scenario::Names { tasks: 1, names }),
    );
    let held: &[usize] = if plan.full {
        &[1_000, 10_000, 100_000]
    } else {
        &[1_000, 10_000]
    };
    all.extend(held.iter().map(|&locks| Scenario::Held { locks }));
    let waiters: &[usize] = if plan.full {
        &[64, 1_000, 10_000]
    } else {
        &[64, 1_000]
    };
    all.extend(waiters.iter().map(|&waiters| Scenario::Waiters { waiters }));
    all
}
