//! What it costs, here and at the server.

use std::time::Duration;

use async_trait::async_trait;

use crate::Result;

/// Reads what a server has done so far.
#[async_trait]
pub trait Meter: Send + Sync {
    /// All of it since the server's start.
    ///
    /// # Errors
    /// When the server does not answer.
    async fn read(&self) -> Result<Counters>;
}

/// What a server has done. What it does not count is none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counters {
    /// Requests, or commands.
    pub commands: Option<f64>,
    /// Bytes that came and went.
    pub bytes: Option<f64>,
    /// Processor time.
    pub cpu: Option<Duration>,
}

impl Counters {
    /// What happened since then.
    #[must_use]
    pub fn since(self, then: Self) -> Self {
        let less = |now: Option<f64>, then: Option<f64>| Some((now? - then?).max(0.0));
        Self {
            commands: less(self.commands, then.commands),
            bytes: less(self.bytes, then.bytes),
            cpu: self
                .cpu
                .zip(then.cpu)
                .map(|(now, then)| now.saturating_sub(then)),
        }
    }

    /// Less what something else has cost. What the other does not know is not taken off.
    #[must_use]
    pub(crate) fn without(self, other: Self) -> Self {
        let less = |all: Option<f64>, other: Option<f64>| {
            Some((all? - other.unwrap_or_default()).max(0.0))
        };
        let cpu = other.cpu.unwrap_or_default();
        Self {
            commands: less(self.commands, other.commands),
            bytes: less(self.bytes, other.bytes),
            cpu: self.cpu.map(|all| all.saturating_sub(cpu)),
        }
    }

    /// As numbers with names, parted by `parts`: cycles, or seconds.
    pub(crate) fn each(self, parts: f64) -> Vec<(&'static str, f64)> {
        let parts = if parts > 0.0 { parts } else { 1.0 };
        let micros = self.cpu.map(|cpu| cpu.as_secs_f64() * 1e6);
        [
            ("server_commands", self.commands),
            ("server_bytes", self.bytes),
            ("server_cpu_us", micros),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value? / parts)))
        .collect()
    }

    /// The processor time of a process and its children that still run (Linux).
    pub fn cpu_of(process: u32) -> Option<Duration> {
        let mut all = cpu_of_one(process)?;
        let threads = format!("/proc/{process}/task/{process}/children");
        let children = std::fs::read_to_string(threads).unwrap_or_default();
        for child in children.split_whitespace() {
            let child = child.parse().ok().and_then(cpu_of_one);
            all += child.unwrap_or_default();
        }
        Some(all)
    }
}

/// The kernel counts in hundredths of a second for everybody who reads it, whatever its own clock does.
const TICK: Duration = Duration::from_millis(10);

fn cpu_of_one(process: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name stands in brackets and may hold anything; user and system time are the 12th and 13th word behind it.
    let mut words = stat.rsplit(')').next()?.split_whitespace().skip(11);
    let user: u32 = words.next()?.parse().ok()?;
    let system: u32 = words.next()?.parse().ok()?;
    Some(TICK * (user + system))
}

/// Memory of this process that is not on disk (Linux).
pub(crate) fn own_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kilobytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_second_is_half_a_second() {
        let cost = Counters {
            commands: Some(3.0),
            ..Counters::default()
        };
        assert_eq!(cost.each(0.5), [("server_commands", 6.0)]);
        assert_eq!(cost.each(0.0), [("server_commands", 3.0)]);
    }

    #[test]
    fn what_another_cost_is_taken_off_where_it_is_known() {
        let all = Counters {
            commands: Some(12.0),
            bytes: Some(500.0),
            cpu: Some(TICK * 3),
        };
        let asking = Counters {
            commands: Some(2.0),
            bytes: None,
            cpu: Some(TICK * 4),
        };
        let rest = Counters {
            commands: Some(10.0),
            bytes: Some(500.0),
            cpu: Some(Duration::ZERO),
        };
        assert_eq!(all.without(asking), rest);
        assert_eq!(Counters::default().without(asking), Counters::default());
    }

    #[test]
    fn this_process_has_taken_time_and_memory() {
        assert!(Counters::cpu_of(std::process::id()).is_some());
        assert!(own_memory().is_some_and(|bytes| bytes > 0.0));
    }
}
