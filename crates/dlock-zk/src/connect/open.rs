//! How a session is opened.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dlock_core::{Error, ErrorKind, Result};
use tokio::sync::{mpsc, watch};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::dial::Dialer;
use super::pulse::Pulse;
use super::rounds::Rounds;
use super::serve::{Core, LastWord, Shared, Task};
use super::watches::Watches;
use super::why::{Reason, why};
use super::{Cause, Session, State, acls};
use crate::config::Config;
use crate::error::Fault;

/// A session, new or taken up again, within the connect time-out.
pub(super) async fn open(config: &Config, old: Option<&Session>) -> Result<Session> {
    let mut opening = pin!(timeout(config.connect_limit(), begin(config, old)?));
    let reason = tokio::select! {
        biased;
        answer = &mut opening => return outcome(config, answer, None),
        reason = why(config) => reason,
    };
    match reason {
        Some(reason) if reason.is_final => Err(reason.error),
        reason => outcome(config, opening.await, reason),
    }
}

fn outcome(
    config: &Config,
    answer: Result<Result<Session, Cause>, Elapsed>,
    reason: Option<Reason>,
) -> Result<Session> {
    match answer {
        Ok(Ok(session)) => Ok(session),
        Ok(Err(cause)) => Err(Fault::from(cause).into()),
        Err(_) => Err(reason.map_or_else(|| unanswered(config), |reason| reason.error)),
    }
}

fn unanswered(config: &Config) -> Error {
    let (servers, limit) = (config.identity_text(), config.connect_limit());
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "no server of {servers} answered within {limit:?}: are they running and reachable?"
        ),
    )
}

/// Tries until a server has answered.
fn begin(
    config: &Config,
    old: Option<&Session>,
) -> Result<impl Future<Output = Result<Session, Cause>>> {
    let (asks, asked) = mpsc::unbounded_channel();
    let zxid = old.map_or(0, |old| old.shared.zxid.load(Ordering::Acquire));
    let shared = Arc::new(Shared {
        breaks: AtomicU64::new(0),
        zxid: zxid.into(),
    });
    let mut core = Core {
        hosts: config.hosts().to_vec(),
        last: None,
        dialer: Dialer::new(config)?,
        login: config.login(),
        ttl: old.map_or(config.session_time(), Session::ttl),
        ticket: old.map(|old| old.ticket.clone()),
        shared: shared.clone(),
        watches: Watches::default(),
        asks: asks.downgrade(),
        number: 0,
    };
    let (chroot, acls) = (config.chroot_path().to_owned(), acls(config));
    Ok(async move {
        let talk = core.connect().await?;
        let ticket = core.ticket.clone().ok_or(Cause::Garbled)?;
        let (tell, state) = watch::channel(State::Up);
        let task = Task {
            core,
            asks: asked,
            closing: false,
        };
        tokio::spawn(task.run(talk, LastWord(tell)));
        Ok(Session {
            ticket,
            asks,
            state,
            shared,
            pulse: Pulse::default(),
            rounds: Rounds::default(),
            chroot,
            acls,
        })
    })
}
