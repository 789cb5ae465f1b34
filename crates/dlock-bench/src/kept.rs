//! What it costs to keep: locks that are held, tasks that wait.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::meter::own_memory;
use crate::round::{micros, micros_of, number_of, text_of};
use crate::{Client, Counters, Hold, Result, Sample, Subject};

/// How many tasks take the locks that are held at once.
const TAKERS: usize = 64;

/// What is kept, and for how long it is watched.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Keep {
    /// The lock that is waited for, or the first part of the names of those that are held.
    pub(crate) name: String,
    /// How many are held, or wait.
    pub(crate) count: usize,
    /// Whether tasks wait for one lock; otherwise locks are held.
    pub(crate) waits: bool,
    /// Nothing is counted so long.
    pub(crate) warm_up: Duration,
    /// How long is counted, while nothing is asked for.
    pub(crate) watch: Duration,
}

/// When whoever reads the server's counters does so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    Begin,
    End,
}

impl Keep {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "kept": self.name, "count": self.count, "waits": self.waits, "warm_up": micros(self.warm_up), "watch": micros(self.watch),
        })
    }

    /// None if it is another kind of work.
    pub(crate) fn from_json(value: &Value) -> Option<Result<Self>> {
        let name = text_of(value, "kept").ok()?.to_owned();
        let rest = || -> Result<Self> {
            Ok(Self {
                name,
                count: usize::try_from(number_of(value, "count")?)?,
                waits: value.get("waits").and_then(Value::as_bool) == Some(true),
                warm_up: micros_of(value, "warm_up")?,
                watch: micros_of(value, "watch")?,
            })
        };
        Some(rest())
    }

    /// Keeps, and tells when the watch begins and when it ends.
    pub(crate) async fn run(
        &self,
        subject: &dyn Subject,
        at: impl AsyncFnMut(Moment) -> Result<()>,
    ) -> Result<Sample> {
        match self.waits {
            true => self.wait(subject, at).await,
            false => self.hold(subject, at).await,
        }
    }

    async fn hold(
        &self,
        subject: &dyn Subject,
        at: impl AsyncFnMut(Moment) -> Result<()>,
    ) -> Result<Sample> {
        let (name, locks) = (&self.name, self.count);
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
        sample.value = start.elapsed().as_secs_f64() * 1e6 / locks.max(1) as f64;
        sample.cycles = locks as u64;
        self.note_memory(&mut sample, memory);
        self.watch(&mut sample, at).await?;
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
        let each = start.elapsed().as_secs_f64() * 1e6 / locks.max(1) as f64;
        sample.notes.push(("release_us", each));
        client.close().await;
        Ok(sample)
    }

    async fn wait(
        &self,
        subject: &dyn Subject,
        at: impl AsyncFnMut(Moment) -> Result<()>,
    ) -> Result<Sample> {
        let (holder, client) = (subject.client().await?, subject.client().await?);
        let hold = holder.lock(&self.name).await?;
        let mut sample = Sample::new()?;
        let memory = own_memory();
        let mut waiting = JoinSet::new();
        for _ in 0..self.count {
            let (client, name) = (client.clone(), self.name.clone());
            waiting.spawn(async move { client.lock(&name).await.map(drop) });
        }
        // Until all of them stand in the queue: a store that takes five thousand in a second is slow.
        let settle = Duration::from_secs_f64(0.5 + self.count as f64 / 5_000.0);
        tokio::time::sleep(settle + self.warm_up).await;
        self.note_memory(&mut sample, memory);
        self.watch(&mut sample, at).await?;
        if let Some(ended) = waiting.try_join_next() {
            ended??;
            return Err("a waiter got a lock that was held".into());
        }
        let own = sample.notes.iter().find(|note| note.0 == "own_cpu_us");
        sample.value = own.map_or(0.0, |own| own.1 / 1e3);
        sample.cycles = self.count as u64;
        waiting.shutdown().await;
        hold.release().await?;
        let all: [std::sync::Arc<dyn Client>; 2] = [holder, client];
        for client in all {
            client.close().await;
        }
        Ok(sample)
    }

    fn note_memory(&self, sample: &mut Sample, before: Option<f64>) {
        if let (Some(before), Some(now)) = (before, own_memory()) {
            let each = (now - before) / self.count.max(1) as f64;
            sample.notes.push(("bytes_each", each));
        }
    }

    /// What a second costs in which nothing is asked for; of the client, by its own clock.
    async fn watch(
        &self,
        sample: &mut Sample,
        mut at: impl AsyncFnMut(Moment) -> Result<()>,
    ) -> Result<()> {
        at(Moment::Begin).await?;
        let own = || Counters::cpu_of(std::process::id());
        let (before, start) = (own(), Instant::now());
        tokio::time::sleep(self.watch).await;
        let (now, seconds) = (own(), start.elapsed().as_secs_f64());
        at(Moment::End).await?;
        if let (Some(now), Some(before)) = (now, before) {
            let micros = now.saturating_sub(before).as_secs_f64() * 1e6;
            sample.notes.push(("own_cpu_us", micros / seconds));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::Dlock;

    fn keep(waits: bool) -> Keep {
        Keep {
            name: "kept".into(),
            count: 20,
            waits,
            warm_up: Duration::from_millis(1),
            watch: Duration::from_millis(300),
        }
    }

    #[test]
    fn what_is_kept_arrives_whole_and_is_no_other_work() -> Result<()> {
        for waits in [false, true] {
            let keep = keep(waits);
            let back = Keep::from_json(&keep.to_json()).ok_or("another kind of work")??;
            assert_eq!(back, keep);
        }
        assert!(Keep::from_json(&json!({ "name": "sale", "names": 1 })).is_none());
        Ok(())
    }

    #[tokio::test]
    async fn it_is_watched_for_its_own_time_while_all_is_kept() -> Result<()> {
        for waits in [false, true] {
            let mut moments = Vec::new();
            let at = async |moment| {
                moments.push((moment, Instant::now()));
                Result::Ok(())
            };
            let sample = keep(waits).run(&Dlock::new("memory:"), at).await?;
            assert_eq!(sample.cycles, 20);
            let [(Moment::Begin, begin), (Moment::End, end)] = moments[..] else {
                return Err(format!("told {moments:?}").into());
            };
            assert!(end - begin >= keep(waits).watch, "{waits}");
        }
        Ok(())
    }

    /// Gives nothing back to those who wait until it is told to.
    struct Leaky(Arc<AtomicU32>);

    #[async_trait::async_trait]
    impl Subject for Leaky {
        fn name(&self) -> &str {
            "leaky"
        }

        async fn client(&self) -> Result<Arc<dyn Client>> {
            Ok(Arc::new(Self(self.0.clone())))
        }
    }

    #[async_trait::async_trait]
    impl Client for Leaky {
        async fn lock(&self, _: &str) -> Result<Box<dyn Hold>> {
            // The second gets it in the middle of the watch.
            if self.0.fetch_add(1, Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(650)).await;
            }
            Ok(Box::new(Free))
        }
    }

    struct Free;

    #[async_trait::async_trait]
    impl Hold for Free {
        async fn release(self: Box<Self>) -> Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_waiter_that_gets_a_held_lock_meanwhile_ends_the_run() {
        let leaky = Leaky(Arc::default());
        let outcome = keep(true).run(&leaky, async |_| Ok(())).await;
        let error = outcome.err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("a waiter got a lock that was held"));
    }
}
