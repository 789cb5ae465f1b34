//! Many scenarios: every one once, or random ones for as long as wanted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;

use super::faults::{Fault, Form};
use super::plan::{self, Expected};
use super::scenario::{RoundReport, Scenario};
use super::store::{Site, Store};
use super::table::{self, Seen};

/// For how long a lock lingers where it is passed on: longer than the pauses of the workers, shorter than a lease.
pub const PASSED_ON: Duration = Duration::from_millis(500);

type Failure = Box<dyn std::error::Error>;

/// What is asked for on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Only this store.
    pub store: Option<Store>,
    /// Only this fault.
    pub fault: Option<Fault>,
    /// The dice.
    pub seed: u64,
    /// For how long.
    pub minutes: u64,
    /// How many scenarios side by side.
    pub jobs: usize,
    /// Only this round of a soak.
    pub round: Option<u64>,
    /// Where histories go.
    pub folder: PathBuf,
    /// How much of faults that have many places.
    pub form: Form,
    /// The document whose table is written anew.
    pub write: Option<PathBuf>,
}

impl Options {
    /// Reads `--name value` pairs.
    ///
    /// # Errors
    /// What is wrong with them, and what may be said.
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let mut options = Self {
            store: None,
            fault: None,
            seed: 1,
            minutes: 30,
            jobs: 8,
            round: None,
            folder: PathBuf::from("target/judge"),
            form: Form::Share,
            write: None,
        };
        let mut words = words.iter();
        while let Some(name) = words.next() {
            let value = words.next();
            let value = value.ok_or_else(|| format!("{name} needs a value"))?;
            let number = || {
                let number = value.parse::<u64>();
                number.map_err(|_| format!("{name} needs a number, not {value:?}"))
            };
            match name.as_str() {
                "--store" => {
                    let names: Vec<_> = Store::ALL.iter().map(|store| store.as_str()).collect();
                    let store = Store::from_name(value);
                    let say = || format!("no store {value:?}: one of {}", names.join(", "));
                    options.store = Some(store.ok_or_else(say)?);
                }
                "--fault" => {
                    let names: Vec<_> = Fault::ALL.iter().map(|fault| fault.as_str()).collect();
                    let fault = Fault::from_name(value);
                    let say = || format!("no fault {value:?}: one of {}", names.join(", "));
                    options.fault = Some(fault.ok_or_else(say)?);
                }
                "--seed" => options.seed = number()?,
                "--minutes" => options.minutes = number()?,
                "--round" => options.round = Some(number()?),
                "--jobs" => options.jobs = usize::try_from(number()?.clamp(1, 64)).unwrap_or(1),
                "--bytes" => {
                    options.form = match value.as_str() {
                        "share" => Form::Share,
                        "all" => Form::Whole,
                        _ => return Err(format!("--bytes {value:?}: share or all")),
                    }
                }
                "--folder" => options.folder = value.into(),
                "--write" => options.write = Some(value.into()),
                _ => return Err(format!("unknown option {name}")),
            }
        }
        Ok(options)
    }

    fn scenario(&self, store: Store, faults: Vec<Fault>, seed: u64) -> Result<Scenario, Failure> {
        Ok(Scenario {
            store,
            faults,
            seed,
            program: std::env::current_exe()?,
            folder: self.folder.clone(),
            passed_on: None,
            plant: None,
            form: self.form,
        })
    }
}

/// One scenario of the plan, with what came of it.
#[derive(Debug)]
pub struct Run {
    /// On which store.
    pub store: Store,
    /// What happened.
    pub fault: Fault,
    /// What was expected.
    pub expected: Expected,
    /// What came of it.
    pub outcome: crate::Result<RoundReport>,
}

impl Run {
    /// Why it is not as expected, if it is not.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        let name = format!("{} × {}", self.store.as_str(), self.fault.as_str());
        let outcome = match &self.outcome {
            Ok(outcome) => outcome,
            Err(error) => return Some(format!("{name}: {error}")),
        };
        let against = outcome.against(self.expected);
        if against.is_empty() {
            return None;
        }
        let shown: Vec<_> = against
            .iter()
            .take(5)
            .map(|one| format!("\n  {one}"))
            .collect();
        Some(format!(
            "{name}: {} findings against the verdict; history {}{}",
            against.len(),
            outcome.history.display(),
            shown.concat()
        ))
    }
}

/// Runs every scenario of a store once, several side by side.
///
/// # Errors
/// When the servers that they share do not start.
pub async fn every_fault(
    only: Option<Fault>,
    template: &Scenario,
    jobs: usize,
) -> crate::Result<Vec<Run>> {
    let plan = plan::of(template.store).into_iter();
    let plan = plan.filter(|(fault, _)| only.is_none_or(|only| only == *fault));
    these(plan.collect(), template, jobs).await
}

/// Runs these scenarios of a store, several side by side.
///
/// # Errors
/// When the servers that they share do not start.
pub async fn these(
    plan: Vec<(Fault, Expected)>,
    template: &Scenario,
    jobs: usize,
) -> crate::Result<Vec<Run>> {
    let store = template.store;
    let shared = Arc::new(Site::start(store, None).await?);
    let runs = plan.into_iter().map(|(fault, expected)| {
        let scenario = Scenario {
            faults: vec![fault],
            ..template.clone()
        };
        let shared = (!fault.hits_servers()).then(|| shared.clone());
        async move {
            let limit = Duration::from_secs(match scenario.form {
                Form::Share => 240,
                Form::Whole => 3600,
            });
            let outcome = tokio::time::timeout(limit, scenario.run(shared)).await;
            let outcome = outcome.unwrap_or_else(|_| {
                Err(crate::Error::TimedOut {
                    what: format!("the scenario {}", fault.as_str()),
                    limit,
                    last: String::new(),
                })
            });
            Run {
                store,
                fault,
                expected,
                outcome,
            }
        }
    });
    Ok(futures::stream::iter(runs)
        .buffer_unordered(jobs)
        .collect()
        .await)
}

/// Every scenario once. Whether all were as expected.
///
/// # Errors
/// When something could not be run at all.
#[allow(clippy::print_stdout, reason = "its output is what it is for")]
pub async fn quick(options: &Options) -> Result<bool, Failure> {
    let start = Instant::now();
    let mut good = true;
    let mut seen = Seen::new();
    let stores = Store::ALL.into_iter();
    for store in stores.filter(|store| options.store.is_none_or(|only| only == *store)) {
        let template = options.scenario(store, Vec::new(), options.seed)?;
        for run in every_fault(options.fault, &template, options.jobs).await? {
            let name = format!("{} × {}", store.as_str(), run.fault.as_str());
            if let Ok(outcome) = &run.outcome {
                let took = outcome.took.as_secs_f32();
                println!("{name}: {} ({took:.1} s)", outcome.text());
                let what = (outcome.text(), outcome.version.clone());
                seen.insert((store, run.fault), what);
            }
            if let Some(complaint) = run.complaint() {
                good = false;
                println!("NOT AS EXPECTED {complaint}");
            }
        }
    }
    if let Some(path) = &options.write {
        let document = std::fs::read_to_string(path)?;
        std::fs::write(path, table::replace(&document, &seen))?;
    }
    println!("{} scenarios in {:.0?}", seen.len(), start.elapsed());
    Ok(good)
}

/// Random scenarios, one round after the other, several side by side. Each round has a seed of its own, which runs it again.
///
/// # Errors
/// When something could not be run at all.
#[allow(clippy::print_stdout, reason = "its output is what it is for")]
pub async fn soak(options: &Options) -> Result<bool, Failure> {
    let start = Instant::now();
    let end = start + Duration::from_secs(options.minutes * 60);
    println!(
        "soak: seed {}, {} minutes, {} side by side, histories in {}",
        options.seed,
        options.minutes,
        options.jobs,
        options.folder.display()
    );
    let rounds = options.round.map_or(0..u64::MAX, |round| round..round + 1);
    let rounds = rounds.take_while(|_| Instant::now() < end || options.round.is_some());
    let mut running = futures::stream::iter(rounds)
        .map(|round| one_round(options, round))
        .buffer_unordered(options.jobs);
    let (mut total, mut holds, mut bad) = (0_u64, 0, Vec::new());
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let mut servers: BTreeMap<String, u64> = BTreeMap::new();
    while let Some((round, run)) = running.next().await {
        total += 1;
        let words = match &run.outcome {
            Ok(outcome) => {
                holds += outcome.holds;
                let names = outcome.kinds().into_iter();
                for (kind, count) in names {
                    *kinds.entry(kind.as_str().to_owned()).or_default() += count;
                }
                let server = format!("{} ({})", run.store.as_str(), outcome.version);
                *servers.entry(server).or_default() += 1;
                outcome.text()
            }
            Err(error) => error.to_string(),
        };
        let minutes = start.elapsed().as_secs_f32() / 60.0;
        println!(
            "[{minutes:5.1} of {} min] round {round}: {} × {}: {words}",
            options.minutes,
            run.store.as_str(),
            run.fault.as_str(),
        );
        if let Some(complaint) = run.complaint() {
            println!(
                "NOT AS EXPECTED {complaint}\n  again: {}",
                again(options, round)
            );
            bad.push(round);
        }
    }
    println!(
        "summary: seed {}, {total} rounds, {holds} holds, {:.1} minutes, {} not as expected {bad:?}\n  found: {kinds:?}\n  on: {servers:?}",
        options.seed,
        start.elapsed().as_secs_f32() / 60.0,
        bad.len(),
    );
    Ok(bad.is_empty())
}

fn again(options: &Options, round: u64) -> String {
    let store = options.store.map_or(String::new(), |store| {
        format!(" --store {}", store.as_str())
    });
    // The dice choose among the faults of the plan, so the same round has another one without this.
    let fault = options.fault.map_or(String::new(), |fault| {
        format!(" --fault {}", fault.as_str())
    });
    let bytes = match options.form {
        Form::Share => "",
        Form::Whole => " --bytes all",
    };
    format!(
        "ci/soak --seed {} --round {round}{store}{fault}{bytes}",
        options.seed
    )
}

/// A round: its dice choose the store and the faults.
async fn one_round(options: &Options, round: u64) -> (u64, Run) {
    let seed = options.seed.wrapping_mul(1_000_003).wrapping_add(round);
    let mut dice = fastrand::Rng::with_seed(seed);
    let store = options
        .store
        .unwrap_or_else(|| Store::ALL[dice.usize(0..Store::ALL.len())]);
    let plan = plan::of(store);
    let plan: Vec<_> = match options.fault {
        Some(only) => plan
            .into_iter()
            .filter(|(fault, _)| *fault == only)
            .collect(),
        None => plan,
    };
    let (fault, mut expected) = plan[dice.usize(0..plan.len())];
    let mut faults = vec![fault];
    // What kills processes or needs servers of its own kind comes alone, or last.
    let joins = |(other, _): &&(Fault, Expected)| {
        !other.hits_servers() && !matches!(other, Fault::ClientClock | Fault::None)
    };
    let others: Vec<_> = plan.iter().filter(joins).collect();
    for _ in 0..dice.usize(0..3) {
        if let Some((other, verdict)) = others.get(dice.usize(0..others.len().max(1))) {
            faults.push(*other);
            if expected == Expected::Safe {
                expected = *verdict;
            }
        }
    }
    // Two of three may die, so that somebody is left.
    let mut kills = 0;
    faults.retain(|fault| {
        let kill = matches!(
            fault,
            Fault::HolderKilled | Fault::WaiterKilled | Fault::GranteeKilled
        );
        kills += usize::from(kill);
        !kill || kills <= 1
    });
    // Every other round with holds that are passed on.
    let passed_on = dice.bool().then_some(PASSED_ON);
    let outcome = match options.scenario(store, faults, seed) {
        Ok(scenario) => {
            let scenario = Scenario {
                passed_on,
                ..scenario
            };
            scenario.run(None).await
        }
        Err(error) => Err(crate::Error::answer("this program", error.to_string())),
    };
    let run = Run {
        store,
        fault,
        expected,
        outcome,
    };
    (round, run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_run_again_by_the_words_that_chose_it() {
        let words = "--seed 7 --store redis --fault latency --bytes all".split(' ');
        let words: Vec<_> = words.map(str::to_owned).collect();
        let options = Options::parse(&words).unwrap();
        let said = again(&options, 12);
        let words: Vec<_> = said.split(' ').skip(1).map(str::to_owned).collect();
        let same = Options::parse(&words).unwrap();
        assert_eq!((same.seed, same.round), (7, Some(12)));
        assert_eq!((same.store, same.fault), (options.store, options.fault));
        assert_eq!(same.form, Form::Whole);
    }

    #[test]
    fn options_are_read_and_nonsense_is_told() {
        let parse = |text: &str| {
            let words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            Options::parse(&words)
        };
        let options = parse("--minutes 5 --seed 7 --store redis").unwrap();
        assert_eq!((options.minutes, options.seed), (5, 7));
        assert_eq!(options.store, Some(Store::Redis));
        for (text, part) in [
            ("--store oracle", "one of redis, "),
            ("--minutes soon", "needs a number"),
            ("--minutes", "needs a value"),
            ("--bytes few", "share or all"),
            ("--what 1", "unknown option"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
