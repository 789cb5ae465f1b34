//! What all rounds of one subject came to.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::{Result, Sample, Scenario};

/// One scenario of one subject, over all rounds.
#[derive(Debug, Clone)]
pub struct Figure {
    /// What was done.
    pub scenario: Scenario,
    /// Who was measured.
    pub subject: String,
    /// The figure of each round, in the scenario's unit.
    pub rounds: Vec<f64>,
    /// How often a lock was taken and given back, over all rounds; of the hand-off, how often it went to the other process.
    pub cycles: u64,
    /// Rounds in which that was not once the case. Their figure says nothing: a hand-off that did not come took the whole round at least.
    pub empty_rounds: usize,
    /// All times in nanoseconds: of the cycle, or of the wait.
    pub times: Histogram<u64>,
    /// Further numbers by name; the middle of the rounds.
    pub notes: Vec<(&'static str, f64)>,
}

/// The middle of some numbers, with the least and the most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median.
    pub middle: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Spread {
    /// Of these numbers; zeros if there are none.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut numbers: Vec<f64> = numbers.into_iter().collect();
        numbers.sort_by(f64::total_cmp);
        let at = |place: usize| numbers.get(place).copied().unwrap_or_default();
        let last = numbers.len().saturating_sub(1);
        Self {
            middle: f64::midpoint(at(last / 2), at(last - last / 2)),
            least: at(0),
            most: at(last),
        }
    }
}

impl Figure {
    pub(crate) fn new(scenario: Scenario, subject: &str, samples: Vec<Sample>) -> Result<Self> {
        let mut times = Histogram::new(3)?;
        for sample in &samples {
            times.add(&sample.times)?;
        }
        let names = samples.first().map(|sample| sample.notes.clone());
        let note = |name: &'static str| {
            let of_rounds = samples
                .iter()
                .filter_map(|sample| sample.notes.iter().find(|note| note.0 == name));
            (name, Spread::of(of_rounds.map(|note| note.1)).middle)
        };
        let notes = names.unwrap_or_default().into_iter();
        Ok(Self {
            scenario,
            subject: subject.to_owned(),
            rounds: samples.iter().map(|sample| sample.value).collect(),
            cycles: samples.iter().map(|sample| sample.cycles).sum(),
            empty_rounds: samples.iter().filter(|sample| sample.cycles == 0).count(),
            times,
            notes: notes.map(|(name, _)| note(name)).collect(),
        })
    }

    /// Whether there is nothing to say, since no round had a single one.
    pub fn is_empty(&self) -> bool {
        self.empty_rounds == self.rounds.len()
    }

    /// The median of the rounds.
    pub fn middle(&self) -> f64 {
        self.spread().middle
    }

    /// The median of the rounds, with the least and the most.
    pub fn spread(&self) -> Spread {
        Spread::of(self.rounds.iter().copied())
    }

    /// How many times the other this is: the median of the ratios of the rounds, with the least and the most.
    pub fn ratio_to(&self, other: &Self) -> Spread {
        let pairs = self.rounds.iter().zip(&other.rounds);
        Spread::of(pairs.map(|(ours, theirs)| ours / theirs))
    }

    /// One of the further numbers.
    pub fn note(&self, name: &str) -> Option<f64> {
        let note = self.notes.iter().find(|note| note.0 == name);
        note.map(|note| note.1)
    }

    /// A time in microseconds that this part of all is not longer than.
    pub fn micros_at(&self, part: f64) -> f64 {
        self.times.value_at_quantile(part) as f64 / 1e3
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let Spread {
            middle,
            least,
            most,
        } = self.spread();
        let notes: serde_json::Map<String, Value> = self
            .notes
            .iter()
            .map(|&(name, value)| (name.to_owned(), json!(value)))
            .collect();
        json!({
            "scenario": self.scenario.kind(),
            "size": self.scenario.size(),
            "what": self.scenario.to_string(),
            "subject": self.subject,
            "unit": self.scenario.unit(),
            "middle": middle,
            "least": least,
            "most": most,
            "rounds": self.rounds,
            "cycles": self.cycles,
            "empty_rounds": self.empty_rounds,
            "times_us": {
                "p50": self.micros_at(0.5),
                "p90": self.micros_at(0.9),
                "p99": self.micros_at(0.99),
                "max": self.micros_at(1.0),
            },
            "notes": notes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_two_is_between_them() {
        assert_eq!(Spread::of([3.0, 1.0]).middle, 2.0);
        assert_eq!(Spread::of([3.0, 1.0, 2.5]).middle, 2.5);
        assert_eq!(Spread::of([]).middle, 0.0);
    }

    #[test]
    fn a_round_without_a_turn_is_known_as_one() -> Result<()> {
        let mut some = Sample::new()?;
        some.cycles = 3;
        let figure = |samples: Vec<Sample>| Figure::new(Scenario::HandOff, "x", samples);
        let none = figure(vec![Sample::new()?, Sample::new()?])?;
        assert_eq!((none.empty_rounds, none.is_empty()), (2, true));
        let mixed = figure(vec![Sample::new()?, some])?;
        assert_eq!((mixed.empty_rounds, mixed.is_empty()), (1, false));
        Ok(())
    }

    #[test]
    fn a_ratio_is_that_of_the_rounds_and_not_of_the_medians() -> Result<()> {
        let figure = |rounds: &[f64]| -> Result<Figure> {
            let mut figure = Figure::new(Scenario::Cycle, "x", Vec::new())?;
            figure.rounds = rounds.to_vec();
            Ok(figure)
        };
        // The machine was slow in the second round, for both.
        let ratio = figure(&[2.0, 20.0, 2.2])?.ratio_to(&figure(&[1.0, 10.0, 1.0])?);
        assert_eq!((ratio.middle, ratio.least, ratio.most), (2.0, 2.0, 2.2));
        Ok(())
    }
}
