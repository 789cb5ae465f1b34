//! Whether the clocks of servers run as they were told to.

use crate::judge::now;
use crate::{Error, RedisServer, Reply, Result};

/// What a server's clock showed, and between which moments of the right time it did.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    asked: u64,
    shown: u64,
    answered: u64,
}

/// How often each server is asked: the quickest answer counts.
const ASKS: usize = 20;

/// Looks at the clock of each.
pub(super) async fn look_at(nodes: &[RedisServer]) -> Result<Vec<Look>> {
    let mut looks = Vec::new();
    for node in nodes {
        let mut quickest: Option<Look> = None;
        for _ in 0..ASKS {
            let asked = now();
            let time = node.command(&["TIME"]).await?;
            let answered = now();
            let parts = time.list().iter().filter_map(Reply::text);
            let parts: Vec<u64> = parts.filter_map(|part| part.parse().ok()).collect();
            let [seconds, micros] = parts[..] else {
                return Err(Error::answer("TIME", format!("{time:?}")));
            };
            let look = Look {
                asked,
                shown: (seconds * 1_000_000 + micros) * 1_000,
                answered,
            };
            let took = |look: &Look| look.answered - look.asked;
            if quickest.is_none_or(|quickest| took(&look) < took(&quickest)) {
                quickest = Some(look);
            }
        }
        looks.extend(quickest);
    }
    Ok(looks)
}

impl Look {
    /// Fails unless the clock has run at this rate since, to within two thousandths, whenever in between the server looked at it.
    #[allow(
        clippy::cast_precision_loss,
        reason = "nanoseconds of seconds: exact to less than one"
    )]
    pub(super) fn ran_at(&self, later: &Self, rate: f64) -> Result<()> {
        let shown = later.shown.saturating_sub(self.shown) as f64;
        let least = shown / later.answered.saturating_sub(self.asked) as f64;
        let most = shown / later.asked.saturating_sub(self.answered) as f64;
        if least > rate - 0.002 && most < rate + 0.002 {
            return Ok(());
        }
        let ran = format!("at {least:.4} to {most:.4} of the right rate, not {rate}");
        Err(Error::answer("a clock that runs at a rate of its own", ran))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_runs_as_it_should_is_not_one_that_runs_fast() {
        let second = 1_000_000_000;
        let look = |at: u64, shown: u64| Look {
            asked: at,
            shown,
            answered: at + second / 1000,
        };
        let (first, right) = (look(0, 0), look(6 * second, 6 * second));
        assert!(first.ran_at(&right, 1.0).is_ok());
        assert!(first.ran_at(&right, 1.005).is_err());
        let fast = look(6 * second, 6 * second + 30_000_000);
        assert!(first.ran_at(&fast, 1.005).is_ok());
        assert!(first.ran_at(&fast, 1.0).is_err());
    }
}
