//! How a waiter wakes: the one before it rings its bell. The bell is a hint: whoever waits also looks by itself now and then,
//! because a process that was killed rings nobody.
//! The bells of a client share a socket in `wake/`.

use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::backend::{Busy, Lease, Outcome, Request};
use dlock_core::{Moment, Name, Result};
use tokio::sync::Notify;

use crate::acquire::{LockSpec, Taken};
use crate::connect::{Store, blocking, locked};
use crate::life::ClientId;
use crate::record::LockRecord;
use crate::wake_socket::{Board, WakeSocket};

/// How long the first waiter may need to see that a holder was killed.
pub(crate) const FIRST_LOOKS: Duration = Duration::from_millis(50);
/// The others only have to see whether those before them still live.
const OTHERS_LOOK: Duration = Duration::from_millis(250);

/// How soon a holder that gives way sees that others wait. It looks by itself: a file of the page cache costs next to nothing, and a
/// waiter that had to ring at the holder would cost every wait.
pub(crate) const HOLDERS_LOOK: Duration = Duration::from_millis(200);

/// Whether anybody waits, as far as it can be seen.
pub(crate) async fn is_waited_for(store: &Arc<Store>, name: &Name) -> bool {
    let name = name.clone();
    let info = blocking(store, move |store| store.inspect(&name)).await;
    info.is_ok_and(|info| !info.waiters.is_empty())
}

/// Resolves when somebody waits.
pub(crate) async fn wanted(store: &Arc<Store>, name: &Name) {
    while !is_waited_for(store, name).await {
        tokio::time::sleep(HOLDERS_LOOK / 2).await;
    }
}

/// Waits in the line until held or the deadline.
pub(crate) async fn acquire(store: &Arc<Store>, request: &Request) -> Result<Outcome> {
    let spec = LockSpec::of(request);
    let mut bell = None;
    loop {
        let from = request.now();
        let seat = bell.as_ref().map(|bell: &Bell| bell.name.clone());
        let outcome = {
            let spec = spec.clone();
            blocking(store, move |store| {
                store.try_acquire(&spec, seat.as_deref())
            })
            .await?
        };
        let first = match outcome {
            Taken::Held { token } => {
                return Ok(Outcome::Held(Lease::new(request, from).with_token(token)));
            }
            Taken::Busy { first } => first,
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
            blocking(store, move |store| store.leave_line(&spec)).await?;
            return Ok(Outcome::Busy(Busy::default()));
        }
    }
}

/// A waiter's bell. It hangs while the waiter waits.
#[derive(Debug)]
struct Bell {
    /// `-` when there is no socket, because the folder's path is too long for one; the waiter then only looks by itself.
    name: String,
    number: u64,
    rung: Arc<Notify>,
    board: Option<Board>,
}

impl Bell {
    fn hang(store: &Store) -> Self {
        let board = store.board();
        let rung = Arc::new(Notify::new());
        let number = NEXT_BELL.fetch_add(1, Ordering::Relaxed);
        let name = match &board {
            Some((client, board)) => {
                locked(board).insert(number, rung.clone());
                format!("{client}.{number:x}")
            }
            None => "-".to_owned(),
        };
        Self {
            name,
            number,
            rung,
            board: board.map(|(_, board)| board),
        }
    }

    async fn rung(&self) {
        self.rung.notified().await;
    }
}

static NEXT_BELL: AtomicU64 = AtomicU64::new(0);

impl Drop for Bell {
    fn drop(&mut self) {
        if let Some(board) = &self.board {
            locked(board).remove(&self.number);
        }
    }
}

impl Store {
    /// Where the bells of this client hang.
    fn board(&self) -> Option<(ClientId, Board)> {
        let client = locked(&self.life).as_ref()?.id();
        let mut wake_socket = locked(&self.wake_socket);
        if wake_socket
            .as_ref()
            .is_none_or(|wake_socket| wake_socket.client != client)
        {
            let path = self.path("wake", &socket_of(&client.to_string()));
            *wake_socket = WakeSocket::open(client, path)
                .and_then(|wake_socket| {
                    self.access
                        .open_up_path(&wake_socket.path)
                        .map(|()| wake_socket)
                })
                .ok();
        }
        wake_socket
            .as_ref()
            .map(|wake_socket| (client, wake_socket.board.clone()))
    }

    /// Rings the bell of the waiter whose turn it is, and only that one ([C17](dlock_core::contract#c17)).
    pub(crate) fn wake_next(&self, record: &LockRecord) {
        let Some(waiter) = record.next() else {
            return;
        };
        let Some((client, number)) = waiter.bell.split_once('.') else {
            return;
        };
        let Ok(number) = u64::from_str_radix(number, 16) else {
            return;
        };
        // A socket that is full will be read, and one that is gone has nobody behind it.
        if let Ok(socket) = UnixDatagram::unbound()
            && socket.set_nonblocking(true).is_ok()
        {
            let path = self.path("wake", &socket_of(client));
            let _ = socket.send_to(&number.to_le_bytes(), path);
        }
    }
}

/// Named after its client, so that whoever buries the client finds it.
fn socket_of(client: &str) -> String {
    format!("{client}.bell")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;

    #[test]
    fn a_bell_is_taken_down_with_its_waiter() {
        let dir = tempfile::tempdir().expect("temp");
        let store = Store::open(dir.path(), Access::Owner).expect("made");
        store.me().expect("a client");
        let (first, second) = (Bell::hang(&store), Bell::hang(&store));
        let (_, board) = store.board().expect("a socket");
        assert_eq!(locked(&board).len(), 2);
        drop(first);
        assert_eq!(locked(&board).len(), 1);
        drop(second);
        assert!(locked(&board).is_empty());
    }
}
