//! What is done.

use std::fmt;

/// One way to use locks. Tasks are a closed loop: each asks again as soon as it has given the lock back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scenario {
    /// One task takes and frees one lock. Measured: the time of both.
    Cycle,
    /// Tasks of one client want the same lock. Measured: how often it was had.
    Sale {
        /// How many.
        contenders: usize,
    },
    /// The same with a client for each task. Measured: how often the lock went from one task to another.
    Clients {
        /// How many.
        contenders: usize,
    },
    /// As the sale, with the tasks spread over processes, and a client in each.
    Processes {
        /// How many tasks, over all processes.
        contenders: usize,
        /// How many processes.
        processes: usize,
    },
    /// The same with a client for each task.
    ProcessClients {
        /// How many tasks, over all processes.
        contenders: usize,
        /// How many processes.
        processes: usize,
    },
    /// Tasks of one client take locks of many names, by chance, each of which was used once before. Measured: how often they had one.
    Names {
        /// How many tasks.
        tasks: usize,
        /// How many names.
        names: usize,
    },
    /// Two processes alternate. Measured: the time from the release in one to the lock in the other.
    HandOff,
    /// Many locks are held at once, in a process of their own where the subject can start one. Measured: the time to take each; noted: what it costs to keep them.
    Held {
        /// How many.
        locks: usize,
    },
    /// Many tasks of one client wait for a lock that is not given back, in a process of their own as well. Measured: what it costs them to wait.
    Waiters {
        /// How many.
        waiters: usize,
    },
}

impl Scenario {
    /// Its name without the number.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Cycle => "cycle",
            Self::Sale { .. } => "sale",
            Self::Clients { .. } => "clients",
            Self::Processes { .. } => "processes",
            Self::ProcessClients { .. } => "process-clients",
            Self::Names { .. } => "names",
            Self::HandOff => "hand-off",
            Self::Held { .. } => "held",
            Self::Waiters { .. } => "waiters",
        }
    }

    /// How many contend, or are held, or wait.
    pub fn size(self) -> usize {
        match self {
            Self::Cycle => 1,
            Self::HandOff => 2,
            Self::Sale { contenders }
            | Self::Clients { contenders }
            | Self::Processes { contenders, .. }
            | Self::ProcessClients { contenders, .. } => contenders,
            Self::Names { names, .. } => names,
            Self::Held { locks } => locks,
            Self::Waiters { waiters } => waiters,
        }
    }

    /// The unit of its figure.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Cycle | Self::HandOff | Self::Held { .. } => "µs",
            Self::Waiters { .. } => "ms of CPU per second",
            Self::Clients { .. } => "hand-offs per second",
            _ => "per second",
        }
    }

    /// Whether it needs other processes.
    pub fn is_over_processes(self) -> bool {
        matches!(
            self,
            Self::Processes { .. } | Self::ProcessClients { .. } | Self::HandOff
        )
    }

    /// Whether nothing goes round in it: something is kept, and watched.
    pub fn is_kept(self) -> bool {
        matches!(self, Self::Held { .. } | Self::Waiters { .. })
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = |count: usize| match count {
            1 => "1 task".to_owned(),
            count => format!("{count} tasks"),
        };
        match *self {
            Self::Cycle => write!(f, "lock and release, nobody else there"),
            Self::Sale { contenders } => write!(f, "one lock, {} of one client", tasks(contenders)),
            Self::Clients { contenders } => {
                write!(f, "one lock, {}, a client each", tasks(contenders))
            }
            Self::Processes {
                contenders,
                processes,
            } => write!(
                f,
                "one lock, {} in {processes} processes",
                tasks(contenders)
            ),
            Self::ProcessClients {
                contenders,
                processes,
            } => write!(
                f,
                "one lock, {} in {processes} processes, a client each",
                tasks(contenders)
            ),
            Self::Names {
                tasks: count,
                names,
            } => write!(f, "{} on {names} locks", tasks(count)),
            Self::HandOff => write!(f, "hand-off to another process"),
            Self::Held { locks } => write!(f, "{locks} locks held at once"),
            Self::Waiters { waiters } => write!(f, "{waiters} tasks wait"),
        }
    }
}
