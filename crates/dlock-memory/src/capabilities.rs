//! What this store can do.

use std::time::Duration;

use dlock_core::{Capabilities, Fairness, Hearing, Liveness, Reach, WakeUp};

use crate::fence::TURNS;

pub(crate) fn capabilities() -> Capabilities {
    let mut capabilities = Capabilities::new("memory");
    capabilities.fencing = true;
    capabilities.fairness = Fairness::Fifo;
    capabilities.wake_up = WakeUp::Push {
        bound: Duration::from_millis(50),
    };
    capabilities.liveness = Liveness::Lease;
    capabilities.reach = Reach::Process;
    capabilities.shared = true;
    capabilities.downgrade = true;
    capabilities.permits = true;
    capabilities.inspect = true;
    capabilities.break_lock = true;
    capabilities.turns = TURNS;
    capabilities.wanted = Hearing::Told {
        bound: Duration::from_millis(50),
    };
    capabilities.durability = "none: the locks end with the process";
    capabilities
}
