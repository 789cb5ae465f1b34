//! What the proxy is asked to do wrong, as plain data.

use std::time::Duration;

use tokio::time::Instant;

use super::Direction;

/// Everything that a test has asked for.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    pub(super) to_server: Lane,
    pub(super) to_client: Lane,
    /// New connections are reset at once.
    pub(super) refuse: bool,
    /// Connections with lower numbers are to be reset.
    pub(super) reset_below: u64,
    /// Connections with lower numbers are silent: nothing passes, and nobody is told.
    pub(super) silent_below: u64,
    /// On connections with lower numbers, what came after this moment vanishes.
    pub(super) cut: Option<(u64, Instant)>,
    /// The reply that is to be lost next.
    pub(super) loss: Option<Loss>,
    /// After so many bytes more in this direction, their connection is reset.
    pub(super) reset_after: Option<(Way, u64)>,
    /// Requests with this pattern are to be lost, so many of them.
    pub(super) lost_requests: Option<(Vec<u8>, usize)>,
}

/// One direction of traffic.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lane {
    pub(super) delay: Duration,
    pub(super) flow: Flow,
}

/// What happens to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Flow {
    /// They are delivered.
    #[default]
    Open,
    /// They are kept for later.
    Held,
    /// They vanish.
    Swallowed,
}

/// A reply that is to be lost.
#[derive(Debug, Clone)]
pub(super) enum Loss {
    /// The n-th chunk from the server.
    Chunk(u64),
    /// What follows a request with this pattern.
    AnswerTo { pattern: Vec<u8>, settle: Duration },
    /// That request has been seen, and its connection knows.
    Underway,
}

impl Faults {
    /// Changes the lanes of a direction.
    pub(super) fn each(&mut self, direction: Direction, change: impl Fn(&mut Lane)) {
        if direction != Direction::ToClient {
            change(&mut self.to_server);
        }
        if direction != Direction::ToServer {
            change(&mut self.to_client);
        }
    }

    /// The lane of one direction.
    pub(super) fn lane(&self, way: Way) -> Lane {
        match way {
            Way::ToServer => self.to_server,
            Way::ToClient => self.to_client,
        }
    }

    /// Whether bytes may have vanished on any connection.
    pub(super) fn loses_bytes_of_all(&self) -> bool {
        self.swallows() || self.cut.is_some()
    }

    /// Whether what a connection received at this moment is not to be delivered any more.
    pub(super) fn is_cut(&self, number: u64, received: Instant) -> bool {
        self.cut
            .is_some_and(|(below, moment)| number < below && received > moment)
    }

    /// Whether bytes vanish in any direction.
    pub(super) fn swallows(&self) -> bool {
        [self.to_server, self.to_client]
            .iter()
            .any(|lane| lane.flow == Flow::Swallowed)
    }

    /// Ends every fault. What was to be reset stays so.
    pub(super) fn clear(&mut self) {
        *self = Self {
            reset_below: self.reset_below.max(self.silent_below),
            ..Self::default()
        };
    }

    /// Counts a chunk from the server; true when it is the one to lose.
    pub(super) fn loses_chunk(&mut self) -> bool {
        match &mut self.loss {
            Some(Loss::Chunk(1)) => {
                self.loss = None;
                true
            }
            Some(Loss::Chunk(n)) => {
                *n -= 1;
                false
            }
            _ => false,
        }
    }

    /// Counts bytes of one direction; how many of them are still delivered when the connection is to be reset among them.
    pub(super) fn ends_among(&mut self, way: Way, length: usize) -> Option<usize> {
        let (of, left) = self.reset_after.as_mut()?;
        if *of != way {
            return None;
        }
        match usize::try_from(*left) {
            Ok(keep) if keep < length => {
                self.reset_after = None;
                Some(keep)
            }
            _ => {
                *left -= length as u64;
                None
            }
        }
    }

    /// Whether this request is one to lose.
    pub(super) fn loses_request(&mut self, request: &[u8]) -> bool {
        let Some((pattern, left)) = &mut self.lost_requests else {
            return false;
        };
        let seen = request
            .windows(pattern.len().max(1))
            .any(|window| window == pattern);
        if seen && *left > 0 {
            *left -= 1;
            return true;
        }
        false
    }

    /// Looks at a request; the settling time when its answer is the one to lose.
    pub(super) fn loses_answer_to(&mut self, request: &[u8]) -> Option<Duration> {
        let Some(Loss::AnswerTo { pattern, settle }) = &self.loss else {
            return None;
        };
        let settle = *settle;
        let seen = request
            .windows(pattern.len().max(1))
            .any(|window| window == pattern);
        seen.then(|| {
            self.loss = Some(Loss::Underway);
            settle
        })
    }
}

/// One direction, for code that serves exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    ToServer,
    ToClient,
}

impl Way {
    pub(super) fn back(self) -> Self {
        match self {
            Self::ToServer => Self::ToClient,
            Self::ToClient => Self::ToServer,
        }
    }
}
