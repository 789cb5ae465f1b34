//! How a waiter wakes: the one before it rings its bell, a socket in `wake/`. The bell is a hint: whoever waits also looks by
//! itself now and then, because a process that was killed rings nobody.

use std::os::unix::net::UnixDatagram as PlainSocket;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_core::{Attempt, Busy, Lease, Moment, Request, Result};
use tokio::net::UnixDatagram;

use crate::acquire::{Ask, Outcome};
use crate::backend::blocking;
use crate::connect::{Store, locked};
use crate::state::State;

/// How long the first waiter may need to see that a holder was killed.
pub(crate) const FIRST_LOOKS: Duration = Duration::from_millis(50);
/// The others only have to see whether those before them still live.
const OTHERS_LOOK: Duration = Duration::from_millis(250);

/// Waits in the line until held or the deadline.
pub(crate) async fn acquire(store: &Arc<Store>, request: &Request) -> Result<Attempt> {
    let ask = Ask::of(request);
    let mut bell = None;
    loop {
        let from = request.now();
        let seat = bell.as_ref().map(|bell: &Bell| bell.name.clone());
        let outcome = {
            let ask = ask.clone();
            blocking(store, move |store| store.attempt(&ask, seat.as_deref())).await?
        };
        let first = match outcome {
            Outcome::Held { token } => {
                return Ok(Attempt::Held(Lease::new(request, from).with_token(token)));
            }
            Outcome::Busy { first } => first,
        };
        request.mark_contended();
        let Some(bell) = &bell else {
            // Now with a bell, and a place in the line.
            bell = Some(Bell::hang(store));
            continue;
        };
        let longest = if first { FIRST_LOOKS } else { OTHERS_LOOK };
        let again = request.now() + longest.mul_f64(0.5 + fastrand::f64() / 2.0);
        let until = again.min(request.deadline().unwrap_or(Moment::NEVER));
        tokio::select! {
            biased;
            () = bell.rung() => {}
            () = request.clock().sleep_until(until) => {}
        }
        if request
            .deadline()
            .is_some_and(|deadline| deadline <= request.now())
        {
            blocking(store, move |store| store.leave_line(&ask)).await?;
            return Ok(Attempt::Busy(Busy::default()));
        }
    }
}

/// A waiter's socket. It is there while the waiter waits.
#[derive(Debug)]
struct Bell {
    name: String,
    path: PathBuf,
    /// `None` when the folder's path is too long for a socket; the waiter then only looks by itself.
    socket: Option<UnixDatagram>,
}

impl Bell {
    fn hang(store: &Store) -> Self {
        let number = store.bells.fetch_add(1, Ordering::Relaxed);
        let name = match locked(&store.life).as_ref() {
            Some(life) => format!("{}.{number:x}", life.id()),
            None => "-".to_owned(),
        };
        let path = store.path("wake", &name);
        let socket = UnixDatagram::bind(&path).ok();
        Self {
            name: if socket.is_some() {
                name
            } else {
                "-".to_owned()
            },
            path,
            socket,
        }
    }

    async fn rung(&self) {
        let Some(socket) = &self.socket else {
            return std::future::pending().await;
        };
        let mut byte = [0];
        if socket.recv(&mut byte).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        if self.socket.is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Store {
    /// Rings the bell of the waiter whose turn it is, and only that one (C17).
    pub(crate) fn wake_next(&self, state: &State) {
        let Some(waiter) = state.next().filter(|waiter| waiter.bell != "-") else {
            return;
        };
        // A bell that is full has been rung, and one that is gone has nobody behind it.
        if let Ok(socket) = PlainSocket::unbound()
            && socket.set_nonblocking(true).is_ok()
        {
            let _ = socket.send_to(&[1], self.path("wake", &waiter.bell));
        }
    }
}
