use std::time::Duration;

/// Randomised, growing pauses: each is drawn between the shortest and three times the one before, up to the longest.
///
/// Two clients that collided once therefore do not collide again in step.
#[derive(Debug, Clone)]
pub struct Backoff {
    shortest: Duration,
    longest: Duration,
    previous: Duration,
}

impl Backoff {
    /// Pauses between `shortest` and `longest`.
    pub fn new(shortest: Duration, longest: Duration) -> Self {
        let longest = longest.max(shortest);
        Self {
            shortest,
            longest,
            previous: shortest,
        }
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let top = self.previous.saturating_mul(3).min(self.longest);
        self.previous = random_between(self.shortest, top);
        self.previous
    }

    /// Starts again with short pauses.
    pub fn reset(&mut self) {
        self.previous = self.shortest;
    }
}

/// A random duration from `low` to `high`.
pub(crate) fn random_between(low: Duration, high: Duration) -> Duration {
    low + high.saturating_sub(low).mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_stay_in_range_grow_and_differ() {
        let (low, high) = (Duration::from_millis(2), Duration::from_millis(100));
        let mut backoff = Backoff::new(low, high);
        let pauses: Vec<_> = (0..200).map(|_| backoff.pause()).collect();
        assert!(pauses.iter().all(|p| (low..=high).contains(p)));
        assert!(pauses.first() <= Some(&(low * 3)));
        assert!(pauses.iter().any(|p| *p > high / 2));
        assert!(pauses.windows(2).any(|w| w.first() != w.last()));
    }
}
