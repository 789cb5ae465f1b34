//! One round inside one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dlocks::{Clock, SystemClock};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{Client, Result, Sample};

/// What the tasks of a process do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Job {
    /// The lock, or the first part of the names of several.
    pub(crate) name: String,
    /// How many names there are.
    pub(crate) names: usize,
    /// How many tasks.
    pub(crate) tasks: usize,
    /// How many clients a worker process makes for them.
    pub(crate) clients: usize,
    /// Nothing is counted so long.
    pub(crate) warm_up: Duration,
    /// How long is counted.
    pub(crate) time: Duration,
    /// How long a lock is held.
    pub(crate) hold: Duration,
    /// Whether the time of the whole cycle is noted, and not that of the wait alone.
    pub(crate) whole: bool,
    /// Whether each turn is noted with the time of day.
    pub(crate) turns: bool,
    /// Where chance begins.
    pub(crate) seed: u64,
}

impl Job {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "name": self.name, "names": self.names, "tasks": self.tasks, "clients": self.clients, "warm_up": micros(self.warm_up), "time": micros(self.time),
            "hold": micros(self.hold), "whole": self.whole, "turns": self.turns, "seed": self.seed,
        })
    }

    pub(crate) fn from_json(value: &Value) -> Result<Self> {
        let is = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or_default();
        let count = |name: &str| Result::Ok(usize::try_from(number_of(value, name)?)?);
        Ok(Self {
            name: text_of(value, "name")?.to_owned(),
            names: count("names")?,
            tasks: count("tasks")?,
            clients: count("clients")?,
            warm_up: micros_of(value, "warm_up")?,
            time: micros_of(value, "time")?,
            hold: micros_of(value, "hold")?,
            whole: is("whole"),
            turns: is("turns"),
            seed: number_of(value, "seed")?,
        })
    }

    /// One of several names.
    pub(crate) fn name_of(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    /// Runs the tasks on these clients, by turns. The value is how often they had a lock in a second.
    pub(crate) async fn run(self, clients: &[Arc<dyn Client>]) -> Result<Sample> {
        let begin = Instant::now() + self.warm_up;
        let end = begin + self.time;
        let inside = Arc::new(AtomicBool::new(false));
        let last = Arc::new(AtomicUsize::new(usize::MAX));
        let job = Arc::new(self);
        let mut tasks = JoinSet::new();
        for (task, client) in (0..job.tasks).zip(clients.iter().cycle()) {
            let task = Task {
                number: task,
                last: last.clone(),
                job: job.clone(),
                client: client.clone(),
                inside: (job.names == 1).then(|| inside.clone()),
                chance: fastrand::Rng::with_seed(job.seed.wrapping_add(task as u64)),
                begin,
                end,
            };
            tasks.spawn(task.run());
        }
        let mut all = Sample::new()?;
        while let Some(done) = tasks.join_next().await {
            all.add(done??)?;
        }
        all.value = all.cycles as f64 / job.time.as_secs_f64();
        Ok(all)
    }
}

/// A time as it goes to a worker.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The same on the other side.
pub(crate) fn micros_of(value: &Value, name: &str) -> Result<Duration> {
    number_of(value, name).map(Duration::from_micros)
}

pub(crate) fn number_of(value: &Value, name: &str) -> Result<u64> {
    let number = value.get(name).and_then(Value::as_u64);
    Ok(number.ok_or_else(|| format!("a job without {name}"))?)
}

pub(crate) fn text_of<'a>(value: &'a Value, name: &str) -> Result<&'a str> {
    let text = value.get(name).and_then(Value::as_str);
    Ok(text.ok_or_else(|| format!("a job without {name}"))?)
}

struct Task {
    number: usize,
    /// The task that had a lock last.
    last: Arc<AtomicUsize>,
    job: Arc<Job>,
    client: Arc<dyn Client>,
    /// Whether somebody of this process holds the lock, where there is only one.
    inside: Option<Arc<AtomicBool>>,
    chance: fastrand::Rng,
    begin: Instant,
    end: Instant,
}

impl Task {
    async fn run(mut self) -> Result<Sample> {
        let mut sample = Sample::new()?;
        loop {
            let name = match self.job.names {
                1 => self.job.name.clone(),
                names => self.job.name_of(self.chance.usize(..names)),
            };
            let start = Instant::now();
            if start >= self.end {
                return Ok(sample);
            }
            let hold = self.client.lock(&name).await?;
            let wait = start.elapsed();
            let got = SystemClock.now().as_nanos();
            self.enter()?;
            let before = self.last.swap(self.number, Ordering::Relaxed);
            if !self.job.hold.is_zero() {
                tokio::time::sleep(self.job.hold).await;
            }
            self.leave();
            let gave = SystemClock.now().as_nanos();
            hold.release().await?;
            let now = Instant::now();
            if now < self.begin || now >= self.end {
                continue;
            }
            let time = if self.job.whole { now - start } else { wait };
            let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            sample.times.record(nanos.max(1))?;
            sample.cycles += 1;
            sample.handed += u64::from(before != self.number);
            if self.job.turns {
                sample.turns.push((got, gave));
            }
        }
    }

    /// A figure of a lock that does not exclude would be worth nothing.
    fn enter(&self) -> Result<()> {
        match &self.inside {
            Some(inside) if inside.swap(true, Ordering::AcqRel) => {
                Err("two tasks held one lock at the same time".into())
            }
            _ => Ok(()),
        }
    }

    fn leave(&self) {
        if let Some(inside) = &self.inside {
            inside.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dlock, Hold, Subject};

    fn job() -> Job {
        Job {
            name: "sale".into(),
            names: 1,
            tasks: 4,
            clients: 2,
            warm_up: Duration::from_millis(1),
            time: Duration::from_millis(200),
            hold: Duration::ZERO,
            whole: true,
            turns: false,
            seed: 7,
        }
    }

    #[test]
    fn a_job_arrives_whole() -> Result<()> {
        assert_eq!(Job::from_json(&job().to_json())?, job());
        Ok(())
    }

    #[tokio::test]
    async fn what_is_counted_was_timed() -> Result<()> {
        let client = Dlock::new("memory:").client().await?;
        let sample = job().run(&[client]).await?;
        assert!(sample.cycles > 0);
        assert_eq!(sample.cycles, sample.times.len());
        assert!(sample.handed <= sample.cycles);
        Ok(())
    }

    /// Gives the lock to everybody.
    struct Broken;

    #[async_trait::async_trait]
    impl Client for Broken {
        async fn lock(&self, _: &str) -> Result<Box<dyn Hold>> {
            Ok(Box::new(Self))
        }
    }

    #[async_trait::async_trait]
    impl Hold for Broken {
        async fn release(self: Box<Self>) -> Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_lock_that_does_not_exclude_has_no_figure() {
        let mut job = job();
        job.hold = Duration::from_millis(1);
        let outcome = job.run(&[Arc::new(Broken)]).await;
        assert!(outcome.is_err());
    }
}
