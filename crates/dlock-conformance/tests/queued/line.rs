//! The way between one client and the store, which can be disturbed.

use std::time::Duration;

use dlock_conformance::{Fault, async_trait};
use dlock_core::{Error, ErrorKind, Result};
use tokio::sync::watch;

use super::flaws::Flaw;

#[derive(Debug, Clone, Copy, Default)]
struct State {
    is_cut: bool,
    hangs: bool,
    is_denied: bool,
    loses: bool,
    delay: Duration,
    /// How often the connections of that time fell silent.
    silenced: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Line {
    state: watch::Sender<State>,
    flaw: Flaw,
}

/// A call that is under way: through which connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call(u64);

fn cut_off() -> Error {
    Error::new(ErrorKind::Unreachable, "this client is cut off")
}

impl Line {
    pub(crate) fn new(flaw: Flaw) -> Self {
        Self {
            state: watch::Sender::new(State::default()),
            flaw,
        }
    }

    fn state(&self) -> State {
        *self.state.borrow()
    }

    async fn until(&self, is_so: impl Fn(&State) -> bool) {
        let _ = self.state.subscribe().wait_for(|state| is_so(state)).await;
    }

    async fn up(&self) -> Result<()> {
        if self.flaw == Flaw::BlocksItsThread && self.state().hangs {
            std::thread::sleep(Duration::from_secs(3));
        }
        self.until(|state| !state.hangs).await;
        match self.state().is_cut {
            true => Err(cut_off()),
            false => Ok(()),
        }
    }

    pub(crate) async fn send(&self) -> Result<Call> {
        let state = self.state();
        self.up().await?;
        if state.is_denied {
            return Err(Error::new(ErrorKind::Denied, "this client has no rights"));
        }
        Ok(Call(match self.flaw {
            Flaw::SilentConnectionIsKept => 0,
            _ => self.state().silenced,
        }))
    }

    pub(crate) async fn reply(&self, call: Call) -> Result<()> {
        let delay = self.state().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.heard(call).await;
        if self.state().loses {
            self.state.send_modify(|state| state.loses = false);
            let lost = "the connection broke before the answer came";
            return Err(Error::new(ErrorKind::Unreachable, lost));
        }
        self.up().await
    }

    /// Never resolves for a call whose connection fell silent.
    pub(crate) async fn heard(&self, call: Call) {
        self.until(|state| !state.hangs).await;
        if self.state().silenced != call.0 {
            std::future::pending().await
        }
    }

    /// Resolves when one who waits finds out that its connection is gone.
    pub(crate) async fn gone(&self, call: Call) -> Error {
        let cut = async {
            self.until(|state| state.is_cut && self.flaw != Flaw::WaiterIsDeafToTheCut)
                .await;
            cut_off()
        };
        let silent = async {
            self.until(|state| {
                state.silenced != call.0 && self.flaw != Flaw::WaiterIsDeafToSilence
            })
            .await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            Error::new(ErrorKind::Unreachable, "the connection fell silent")
        };
        tokio::select! {
            error = cut => error,
            error = silent => error,
        }
    }
}

#[async_trait]
impl Fault for Line {
    async fn cut(&self) {
        self.state.send_modify(|state| state.is_cut = true);
    }

    async fn hang(&self) {
        self.state.send_modify(|state| state.hangs = true);
    }

    async fn half_open(&self) {
        self.state.send_modify(|state| state.silenced += 1);
    }

    async fn deny(&self) {
        self.state.send_modify(|state| state.is_denied = true);
    }

    async fn heal(&self) {
        self.state.send_modify(|state| {
            *state = State {
                silenced: state.silenced,
                ..State::default()
            };
        });
    }

    async fn lose_reply(&self) {
        self.state.send_modify(|state| state.loses = true);
    }

    async fn delay_replies(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }
}
