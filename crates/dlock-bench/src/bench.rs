//! A run: scenarios with subjects that take turns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::kept::{Keep, Moment};
use crate::round::Job;
use crate::{Client, Counters, Figure, Meter, Result, Sample, Scenario, Subject, processes};

/// How long each holds the lock when two processes alternate: long enough for the other to stand in the queue.
const HOLD: Duration = Duration::from_millis(2);

/// A third of the default lease: in this time each lock that is held is renewed once.
const WATCH: Duration = Duration::from_secs(10);

/// How scenarios are run.
#[derive(Clone)]
pub struct Bench {
    rounds: usize,
    round: Duration,
    warm_up: Duration,
    watch: Duration,
    seed: u64,
    meter: Option<Arc<dyn Meter>>,
    tell: Arc<dyn Fn(&str) + Send + Sync>,
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench")
            .field("rounds", &self.rounds)
            .field("round", &self.round)
            .field("warm_up", &self.warm_up)
            .field("watch", &self.watch)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl Default for Bench {
    fn default() -> Self {
        Self::new()
    }
}

impl Bench {
    /// Five rounds of a second, each after a fifth of a second in which nothing is counted.
    pub fn new() -> Self {
        Self {
            rounds: 5,
            round: Duration::from_secs(1),
            warm_up: Duration::from_millis(200),
            watch: WATCH,
            seed: 0,
            meter: None,
            tell: Arc::new(|_| ()),
        }
    }

    /// How many rounds; the subjects take turns in each.
    #[must_use]
    pub fn rounds(mut self, rounds: usize) -> Self {
        self.rounds = rounds.max(1);
        self
    }

    /// How long a round is.
    #[must_use]
    pub fn round(mut self, time: Duration) -> Self {
        self.round = time.max(Duration::from_millis(1));
        self
    }

    /// How long nothing is counted at the beginning of a round.
    #[must_use]
    pub fn warm_up(mut self, time: Duration) -> Self {
        self.warm_up = time;
        self
    }

    /// How long locks that are held, and tasks that wait, are watched in each round: ten seconds unless this says otherwise. What is renewed now and then costs
    /// something now and then, so a figure takes whole renewal intervals: with the default lease of 30 s that is 10 s, in which each lock is renewed once.
    #[must_use]
    pub fn watch(mut self, time: Duration) -> Self {
        self.watch = time.max(Duration::from_millis(1));
        self
    }

    /// Where chance begins: which task takes which of many locks, one after the other.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// What the server did is noted as well.
    #[must_use]
    pub fn meter(mut self, meter: Arc<dyn Meter>) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Called after each round of each subject, with what it was.
    #[must_use]
    pub fn tell(mut self, tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.tell = Arc::new(tell);
        self
    }

    /// How often [`tell`](Self::tell) is called for a scenario with one subject.
    pub fn steps(&self) -> usize {
        self.rounds
    }

    /// Runs a scenario with these subjects, which take turns in each round.
    ///
    /// # Errors
    /// When a store fails, or locks that are to reach other processes do not.
    pub async fn run(&self, scenario: Scenario, subjects: &[&dyn Subject]) -> Result<Vec<Figure>> {
        let mut samples = vec![Vec::new(); subjects.len()];
        for round in 0..self.rounds {
            for (subject, samples) in subjects.iter().zip(&mut samples) {
                samples.push(self.sample(scenario, *subject, round).await?);
                (self.tell)(&format!("{scenario}: {}", subject.name()));
            }
        }
        subjects
            .iter()
            .zip(samples)
            .map(|(subject, samples)| Figure::new(scenario, subject.name(), samples))
            .collect()
    }

    async fn sample(
        &self,
        scenario: Scenario,
        subject: &dyn Subject,
        round: usize,
    ) -> Result<Sample> {
        let job = self.job(scenario, round);
        match scenario {
            Scenario::Cycle | Scenario::Sale { .. } | Scenario::Names { .. } => {
                self.together(subject, 1, job).await
            }
            Scenario::Clients { contenders } => {
                let mut sample = self.together(subject, contenders, job).await?;
                // A lock without a queue goes to the same task again and again while the others wait: that is no turn.
                sample.notes.push(("acquired_per_second", sample.value));
                sample.value = sample.handed as f64 / self.round.as_secs_f64();
                Ok(sample)
            }
            Scenario::Processes {
                contenders,
                processes,
            }
            | Scenario::ProcessClients {
                contenders,
                processes,
            } => {
                let mut all = Sample::new()?;
                for sample in self.apart(subject, job, contenders, processes).await? {
                    all.add(sample)?;
                }
                Ok(all)
            }
            Scenario::HandOff => {
                let samples = self.apart(subject, job, 2, 2).await?;
                let mut all = Sample::new()?;
                for time in processes::hand_offs(&samples) {
                    all.times.record(time)?;
                }
                all.cycles = all.times.len();
                // If the other never got it, it waited for the whole round at least; the figure says that there was none.
                all.value = match all.cycles {
                    0 => self.round.as_secs_f64() * 1e6,
                    _ => all.times.value_at_quantile(0.5) as f64 / 1e3,
                };
                Ok(all)
            }
            Scenario::Held { locks } => self.kept(subject, job.name, locks, false).await,
            Scenario::Waiters { waiters } => self.kept(subject, job.name, waiters, true).await,
        }
    }

    fn job(&self, scenario: Scenario, round: usize) -> Job {
        let hand_off = scenario == Scenario::HandOff;
        let names = match scenario {
            Scenario::Names { names, .. } => names,
            _ => 1,
        };
        let tasks = match scenario {
            Scenario::Cycle => 1,
            Scenario::Names { tasks, .. } => tasks,
            _ => scenario.size(),
        };
        Job {
            // Nobody else's lock, and in each run another one.
            name: format!("dlock-bench-{:016x}-{}", fastrand::u64(..), scenario.kind()),
            names,
            tasks,
            // Each process has one for itself, or one for each of its tasks.
            clients: match scenario {
                Scenario::ProcessClients { contenders, .. } => contenders,
                _ => 1,
            },
            warm_up: self.warm_up,
            time: self.round,
            hold: if hand_off { HOLD } else { Duration::ZERO },
            whole: matches!(scenario, Scenario::Cycle | Scenario::Names { .. }),
            turns: hand_off,
            seed: self.seed.wrapping_add((round as u64) << 32),
        }
    }

    /// All tasks in this process.
    async fn together(&self, subject: &dyn Subject, clients: usize, job: Job) -> Result<Sample> {
        let mut all: Vec<Arc<dyn Client>> = Vec::new();
        for _ in 0..clients {
            all.push(subject.client().await?);
        }
        let is_cycle = job.tasks == 1 && job.names == 1 && job.whole;
        // What a new client asks of the server is not part of a cycle.
        let warm_up = Job {
            time: job.warm_up.max(Duration::from_millis(1)),
            warm_up: Duration::ZERO,
            ..job.clone()
        };
        if job.names > 1 {
            use_each_once(&all, &job).await?;
        }
        warm_up.run(&all).await?;
        let counted = Job {
            warm_up: Duration::ZERO,
            ..job
        };
        let before = self.read().await?;
        let mut sample = counted.run(&all).await?;
        let cost = self.cost(before).await?;
        sample.notes = cost.map_or_else(Vec::new, |cost| cost.each(sample.cycles as f64));
        if is_cycle {
            sample.value = sample.times.value_at_quantile(0.5) as f64 / 1e3;
        }
        close(&all).await;
        Ok(sample)
    }

    /// The tasks spread over processes.
    async fn apart(
        &self,
        subject: &dyn Subject,
        job: Job,
        tasks: usize,
        processes: usize,
    ) -> Result<Vec<Sample>> {
        let jobs = (0..processes).map(|process| {
            // The first processes take what does not divide evenly.
            let tasks = tasks / processes + usize::from(process < tasks % processes);
            Job {
                tasks,
                clients: job.clients.min(tasks),
                ..job.clone()
            }
        });
        processes::run(|| subject.worker(), jobs.collect()).await
    }

    /// In a process of its own where the subject can start one: what grows there, and what it takes of the processor, is not what earlier rounds have left.
    async fn kept(
        &self,
        subject: &dyn Subject,
        name: String,
        count: usize,
        waits: bool,
    ) -> Result<Sample> {
        let keep = Keep {
            name,
            count,
            waits,
            warm_up: self.warm_up,
            watch: self.watch,
        };
        let (mut before, mut start, mut notes) = (None, Instant::now(), Vec::new());
        let at = async |moment| {
            match moment {
                Moment::Begin => (before, start) = (self.read().await?, Instant::now()),
                Moment::End => {
                    let seconds = start.elapsed().as_secs_f64();
                    let cost = self.cost(before).await?;
                    notes = cost.map_or_else(Vec::new, |cost| cost.each(seconds));
                }
            }
            Result::Ok(())
        };
        let mut sample = match subject.worker() {
            Some(command) => processes::keep(command, &keep, at).await?,
            None => keep.run(subject, at).await?,
        };
        sample.notes.extend(notes);
        Ok(sample)
    }

    async fn read(&self) -> Result<Option<Counters>> {
        match &self.meter {
            Some(meter) => Ok(Some(meter.read().await?)),
            None => Ok(None),
        }
    }

    /// What was done since then, without what it costs to ask.
    async fn cost(&self, before: Option<Counters>) -> Result<Option<Counters>> {
        let (Some(before), Some(now)) = (before, self.read().await?) else {
            return Ok(None);
        };
        let again = self.read().await?;
        let asking = again.map(|again| again.since(now)).unwrap_or_default();
        Ok(Some(now.since(before).without(asking)))
    }
}

/// The first use of a name makes what the store keeps of it for ever.
async fn use_each_once(clients: &[Arc<dyn Client>], job: &Job) -> Result<()> {
    let mut tasks = JoinSet::new();
    for (task, client) in (0..job.tasks).zip(clients.iter().cycle()) {
        let names: Vec<String> = (task..job.names)
            .step_by(job.tasks)
            .map(|number| job.name_of(number))
            .collect();
        let client = client.clone();
        tasks.spawn(async move {
            for name in names {
                client.lock(&name).await?.release().await?;
            }
            Result::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

async fn close(clients: &[Arc<dyn Client>]) {
    for client in clients {
        client.close().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::Dlock;

    /// A server that does nothing but answer how much it has done.
    #[derive(Default)]
    struct Idle(AtomicU32);

    #[async_trait::async_trait]
    impl Meter for Idle {
        async fn read(&self) -> Result<Counters> {
            let before = self.0.fetch_add(3, Ordering::Relaxed);
            Ok(Counters {
                commands: Some(f64::from(before + 3)),
                ..Counters::default()
            })
        }
    }

    #[tokio::test]
    async fn what_it_costs_to_ask_is_no_cost_of_locks() -> Result<()> {
        let bench = Bench::new()
            .rounds(1)
            .round(Duration::from_millis(20))
            .watch(Duration::from_millis(20))
            .meter(Arc::new(Idle::default()));
        let memory = Dlock::new("memory:");
        let waits = Scenario::Waiters { waiters: 2 };
        for scenario in [Scenario::Cycle, Scenario::Held { locks: 5 }, waits] {
            for figure in bench.run(scenario, &[&memory]).await? {
                assert_eq!(figure.note("server_commands"), Some(0.0), "{scenario}");
            }
        }
        Ok(())
    }
}
