//! One round over several processes. Each is told its job in a line, says that it is ready, waits for a line, and answers with its sample.

use std::process::{Command, Stdio};

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::kept::{Keep, Moment};
use crate::round::Job;
use crate::{Result, Sample, Subject};

/// What a worker that keeps locks says when the time is over for which it is watched.
const WATCHED: &str = "watched";

/// What every worker says when it can begin.
const READY: &str = "ready";

/// What a worker process does: its part of the rounds that [`Subject::worker`] was started for.
///
/// # Errors
/// When the store fails, or whoever started it is gone.
pub async fn serve(subject: &dyn Subject) -> Result<()> {
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let job = serde_json::from_str(&next(&mut input).await?)?;
    if let Some(keep) = Keep::from_json(&job) {
        let at = async |moment| {
            say(match moment {
                Moment::Begin => READY,
                Moment::End => WATCHED,
            })
            .await?;
            next(&mut input).await.map(drop)
        };
        let sample = keep?.run(subject, at).await?;
        return say(&sample.to_json().to_string()).await;
    }
    let job = Job::from_json(&job)?;
    let mut clients = Vec::new();
    for _ in 0..job.clients {
        clients.push(subject.client().await?);
    }
    say(READY).await?;
    next(&mut input).await?;
    let sample = job.run(&clients).await?;
    for client in clients {
        client.close().await;
    }
    say(&sample.to_json().to_string()).await
}

async fn next(lines: &mut Lines<impl AsyncBufRead + Unpin>) -> Result<String> {
    let line = lines.next_line().await?;
    line.ok_or_else(|| "the other process has ended".into())
}

async fn say(line: &str) -> Result<()> {
    let mut out = tokio::io::stdout();
    out.write_all(format!("{line}\n").as_bytes()).await?;
    Ok(out.flush().await?)
}

/// Runs these jobs in a process each.
pub(crate) async fn run(
    start: impl Fn() -> Option<Command>,
    jobs: Vec<Job>,
) -> Result<Vec<Sample>> {
    let mut workers = Vec::new();
    for job in jobs {
        let command = start().ok_or("its locks do not reach another process")?;
        let mut worker = Worker::start(command)?;
        worker.tell(&job.to_json().to_string()).await?;
        workers.push(worker);
    }
    for worker in &mut workers {
        worker.hear(READY).await?;
    }
    for worker in &mut workers {
        worker.tell("go").await?;
    }
    let mut samples = Vec::new();
    for worker in &mut workers {
        let answer = next(&mut worker.lines).await?;
        samples.push(Sample::from_json(&serde_json::from_str(&answer)?)?);
    }
    for mut worker in workers {
        worker.child.wait().await?;
    }
    Ok(samples)
}

/// Keeps in a process of its own; what it tells is told here.
pub(crate) async fn keep(
    command: Command,
    keep: &Keep,
    mut at: impl AsyncFnMut(Moment) -> Result<()>,
) -> Result<Sample> {
    let mut worker = Worker::start(command)?;
    worker.tell(&keep.to_json().to_string()).await?;
    for (word, moment) in [(READY, Moment::Begin), (WATCHED, Moment::End)] {
        worker.hear(word).await?;
        at(moment).await?;
        worker.tell("go").await?;
    }
    let answer = next(&mut worker.lines).await?;
    let sample = Sample::from_json(&serde_json::from_str(&answer)?)?;
    worker.child.wait().await?;
    Ok(sample)
}

struct Worker {
    child: Child,
    tell: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(command: Command) -> Result<Self> {
        let mut command = tokio::process::Command::from(command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn()?;
        let (tell, lines) = child
            .stdin
            .take()
            .zip(child.stdout.take())
            .ok_or("no pipe")?;
        let lines = BufReader::new(lines).lines();
        Ok(Self { child, tell, lines })
    }

    /// Waits for a word, and nothing else.
    async fn hear(&mut self, word: &str) -> Result<()> {
        let answer = next(&mut self.lines).await?;
        match answer == word {
            true => Ok(()),
            false => Err(format!("a worker process is not {word}: {answer}").into()),
        }
    }

    async fn tell(&mut self, line: &str) -> Result<()> {
        let line = format!("{line}\n");
        Ok(self.tell.write_all(line.as_bytes()).await?)
    }
}

/// The times from a release in one process to the lock in another, of turns that followed each other.
pub(crate) fn hand_offs(samples: &[Sample]) -> Vec<u64> {
    let turns = samples.iter().enumerate().flat_map(|(process, sample)| {
        let turns = sample.turns.iter();
        turns.map(move |&(got, gave)| (got, gave, process))
    });
    let mut turns: Vec<_> = turns.collect();
    turns.sort_unstable();
    let pairs = turns.iter().zip(turns.iter().skip(1));
    pairs
        .filter(|((_, _, from), (_, _, to))| from != to)
        .map(|((_, gave, _), (got, _, _))| got.saturating_sub(*gave).max(1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hand_off_is_between_processes_only() -> Result<()> {
        let mut samples = [Sample::new()?, Sample::new()?];
        let [one, other] = &mut samples;
        one.turns = vec![(0, 10), (50, 60), (61, 70)];
        other.turns = vec![(15, 40)];
        assert_eq!(hand_offs(&samples), [5, 10]);
        Ok(())
    }
}
