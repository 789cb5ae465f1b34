//! What one round came to.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::Result;

/// The further numbers that a worker process finds out.
const OF_A_WORKER: [&str; 3] = ["bytes_each", "own_cpu_us", "release_us"];

/// One round of one subject.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The figure, in the unit of its scenario.
    pub value: f64,
    /// How often a lock was taken and given back.
    pub cycles: u64,
    /// How often the lock went to another task than the one before; known inside one process only.
    pub handed: u64,
    /// Times in nanoseconds: of the cycle, or of the wait.
    pub times: Histogram<u64>,
    /// Further numbers by name: what the server did for each cycle (for each second, where nothing is cycled), memory, processor time.
    pub notes: Vec<(&'static str, f64)>,
    /// When a lock was got and given, in nanoseconds of this host's clock; for the hand-off alone.
    pub(crate) turns: Vec<(u64, u64)>,
}

impl Sample {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            value: 0.0,
            cycles: 0,
            handed: 0,
            times: Histogram::new(3)?,
            notes: Vec::new(),
            turns: Vec::new(),
        })
    }

    /// Takes in what another task, or process, did in the same round.
    pub(crate) fn add(&mut self, other: Self) -> Result<()> {
        self.value += other.value;
        self.cycles += other.cycles;
        self.handed += other.handed;
        self.times.add(&other.times)?;
        self.turns.extend(other.turns);
        Ok(())
    }

    /// For the process that started this one.
    pub(crate) fn to_json(&self) -> Value {
        let times = self.times.iter_recorded();
        let times: Vec<_> = times
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect();
        json!({
            "value": self.value, "cycles": self.cycles, "times": times, "turns": self.turns, "notes": self.notes,
        })
    }

    pub(crate) fn from_json(value: &Value) -> Result<Self> {
        let mut sample = Self::new()?;
        let number = |value: &Value| value.as_u64().ok_or("a worker's answer is no number");
        let pair = |value: &Value| -> Result<(u64, u64)> {
            let first = value.get(0).unwrap_or(&Value::Null);
            let second = value.get(1).unwrap_or(&Value::Null);
            Ok((number(first)?, number(second)?))
        };
        let list = |name: &str| value.get(name).and_then(Value::as_array).cloned();
        for step in list("times").unwrap_or_default() {
            let (time, count) = pair(&step)?;
            sample.times.record_n(time, count)?;
        }
        for turn in list("turns").unwrap_or_default() {
            sample.turns.push(pair(&turn)?);
        }
        for note in list("notes").unwrap_or_default() {
            let name = note.get(0).and_then(Value::as_str);
            let known = OF_A_WORKER.into_iter().find(|known| Some(*known) == name);
            let value = note.get(1).and_then(Value::as_f64);
            let note = known.zip(value).ok_or("a worker's note is not known")?;
            sample.notes.push(note);
        }
        sample.cycles = number(value.get("cycles").unwrap_or(&Value::Null))?;
        sample.value = value
            .get("value")
            .and_then(Value::as_f64)
            .unwrap_or_default();
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_a_worker_arrives_whole() -> Result<()> {
        let mut sample = Sample::new()?;
        sample.value = 2.5;
        sample.cycles = 3;
        sample.turns.push((1, 2));
        sample.notes.push(("own_cpu_us", 12.5));
        for time in [1_000, 2_000, 1_500_000] {
            sample.times.record(time)?;
        }
        let back = Sample::from_json(&sample.to_json())?;
        assert_eq!((back.value, back.cycles), (2.5, 3));
        assert_eq!(back.turns, [(1, 2)]);
        assert_eq!(back.notes, [("own_cpu_us", 12.5)]);
        assert_eq!(back.times, sample.times);
        Ok(())
    }
}
