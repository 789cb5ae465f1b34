//! A run: scenarios with subjects that take turns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::meter::own_memory;
use crate::round::Job;
use crate::{Client, Counters, Figure, Hold, Meter, Result, Sample, Scenario, Subject, processes};

/// How long each holds the lock when two processes alternate: long enough for the other to stand in the queue.
const HOLD: Duration = Duration::from_millis(2);

/// How many tasks take the locks that are held at once.
const TAKERS: usize = 64;

/// How scenarios are run.
#[derive(Clone)]
pub struct Bench {
    rounds: usize,
    round: Duration,
    warm_up: Duration,
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
                // If the other never got it, it waited for the whole round at least.
                all.value = match all.cycles {
                    0 => self.round.as_secs_f64() * 1e6,
                    _ => all.times.value_at_quantile(0.5) as f64 / 1e3,
                };
                Ok(all)
            }
            Scenario::Held { locks } => self.held(subject, &job.name, locks).await,
            Scenario::Waiters { waiters } => self.waiters(subject, &job.name, waiters).await,
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
        let is_cycle = job.tasks == 1 && job.whole;
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
        let jobs = (0..processes).map(|process| Job {
            // The first processes take what does not divide evenly.
            tasks: tasks / processes + usize::from(process < tasks % processes),
            ..job.clone()
        });
        processes::run(|| subject.worker(), jobs.collect()).await
    }

    async fn held(&self, subject: &dyn Subject, name: &str, locks: usize) -> Result<Sample> {
        let client = subject.client().await?;
        // The first lock makes connections and threads, which are not its own.
        client.lock(name).await?.release().await?;
        let mut sample = Sample::new()?;
        let memory = own_memory();
        let start = Instant::now();
        let mut takers = JoinSet::new();
        for taker in 0..TAKERS {
            let (client, name) = (client.clone(), name.to_owned());
            takers.spawn(async move {
                let mut holds = Vec::new();
                for lock in (taker..locks).step_by(TAKERS) {
                    holds.push(client.lock(&format!("{name}-{lock}")).await?);
                }
                Result::Ok(holds)
            });
        }
        let mut holds: Vec<Box<dyn Hold>> = Vec::new();
        while let Some(taken) = takers.join_next().await {
            holds.extend(taken??);
        }
        let each = start.elapsed() / u32::try_from(locks.max(1))?;
        sample.value = each.as_secs_f64() * 1e6;
        sample.cycles = locks as u64;
        if let (Some(before), Some(now)) = (memory, own_memory()) {
            sample
                .notes
                .push(("bytes_each", (now - before) / locks as f64));
        }
        let idle = self.idle().await?;
        sample.notes.extend(idle);
        let start = Instant::now();
        let mut givers = JoinSet::new();
        while !holds.is_empty() {
            let part = holds.split_off(holds.len().saturating_sub(locks / TAKERS + 1));
            givers.spawn(async move {
                for hold in part {
                    hold.release().await?;
                }
                Result::Ok(())
            });
        }
        while let Some(given) = givers.join_next().await {
            given??;
        }
        let each = start.elapsed().as_secs_f64() * 1e6 / locks as f64;
        sample.notes.push(("release_us", each));
        close(std::slice::from_ref(&client)).await;
        Ok(sample)
    }

    async fn waiters(&self, subject: &dyn Subject, name: &str, waiters: usize) -> Result<Sample> {
        let (holder, client) = (subject.client().await?, subject.client().await?);
        let hold = holder.lock(name).await?;
        let mut sample = Sample::new()?;
        let memory = own_memory();
        let mut waiting = JoinSet::new();
        for _ in 0..waiters {
            let (client, name) = (client.clone(), name.to_owned());
            waiting.spawn(async move { client.lock(&name).await.map(drop) });
        }
        // Until all of them stand in the queue: a store that takes five thousand in a second is slow.
        let settle = Duration::from_secs_f64(0.5 + waiters as f64 / 5_000.0);
        tokio::time::sleep(settle + self.warm_up).await;
        if let Some(ended) = waiting.try_join_next() {
            ended??;
            return Err("a waiter got a lock that was held".into());
        }
        if let (Some(before), Some(now)) = (memory, own_memory()) {
            let each = (now - before) / waiters as f64;
            sample.notes.push(("bytes_each", each));
        }
        sample.notes.extend(self.idle().await?);
        let own = sample.notes.iter().find(|note| note.0 == "own_cpu_us");
        sample.value = own.map_or(0.0, |own| own.1 / 1e3);
        sample.cycles = waiters as u64;
        waiting.shutdown().await;
        hold.release().await?;
        close(&[holder, client]).await;
        Ok(sample)
    }

    /// What a second costs in which nothing is asked for.
    async fn idle(&self) -> Result<Vec<(&'static str, f64)>> {
        let before = self.read().await?;
        let own = Counters::cpu_of(std::process::id());
        let start = Instant::now();
        tokio::time::sleep(self.round).await;
        let seconds = start.elapsed().as_secs_f64();
        let own = Counters::cpu_of(std::process::id()).zip(own);
        let cost = self.cost(before).await?;
        let mut notes = Vec::new();
        if let Some((now, then)) = own {
            let micros = now.saturating_sub(then).as_secs_f64() * 1e6;
            notes.push(("own_cpu_us", micros / seconds));
        }
        notes.extend(cost.into_iter().flat_map(|cost| cost.each(seconds)));
        Ok(notes)
    }

    async fn read(&self) -> Result<Option<Counters>> {
        match &self.meter {
            Some(meter) => Ok(Some(meter.read().await?)),
            None => Ok(None),
        }
    }

    async fn cost(&self, before: Option<Counters>) -> Result<Option<Counters>> {
        Ok(match (before, self.read().await?) {
            (Some(before), Some(now)) => Some(now.since(before)),
            _ => None,
        })
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
