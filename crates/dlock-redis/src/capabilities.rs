//! What locks in Redis can do, by their settings.

use std::time::Duration;

use dlock_core::{Capabilities, Fairness, Hearing, Liveness, Reach, WakeUp};

use crate::config::{Config, Style};
use crate::fence::TURNS;

pub(crate) fn capabilities(config: &Config) -> Capabilities {
    let plain = config.style == Style::Plain;
    let mut capabilities = Capabilities::new("redis");
    capabilities.fencing = !plain;
    capabilities.fairness = match config.style {
        Style::Fair => Fairness::Fifo,
        _ => Fairness::None,
    };
    if !plain {
        capabilities.wake_up = WakeUp::Push {
            bound: Duration::from_millis(50),
        };
    }
    capabilities.liveness = Liveness::Lease;
    capabilities.reach = Reach::Network;
    capabilities.shared = !plain;
    capabilities.downgrade = !plain;
    capabilities.permits = !plain;
    // A plain lock has nothing but its owner, and looks like any other key.
    capabilities.inspect = !plain;
    capabilities.break_lock = true;
    capabilities.turns = if plain { 1 } else { TURNS };
    if !plain {
        capabilities.wanted = Hearing::Told {
            bound: Duration::from_millis(50),
        };
    }
    capabilities.durability = if config.replicas > 0 {
        "a hold is in memory at the master and at as many replicas as asked for before it counts; it is lost when one without \
         it is promoted, or when all restart without persistence"
    } else {
        "a hold is in memory at the master: it may be lost when that restarts without appendonly yes and appendfsync always, or \
         when a replica that has not received it is promoted"
    };
    capabilities
}
