//! How nodes are named.

use std::str::FromStr;

/// Which recipe of Curator's shares the paths of our locks: its recipes order the nodes of a path by their names, each by its own rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Style {
    /// `InterProcessMutex`, or nobody. The default.
    Mutex,
    /// `InterProcessReadWriteLock`: our readers share with its readers, and writers of both exclude everybody.
    ReadWrite,
}

impl FromStr for Style {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "mutex" => Ok(Self::Mutex),
            "read-write" => Ok(Self::ReadWrite),
            _ => Err("it is mutex or read-write"),
        }
    }
}
