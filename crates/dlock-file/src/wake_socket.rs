//! The socket on which the bells of a client are rung, and the thread that listens to it. Not the runtime: one that was built without I/O panics
//! when it is asked for some.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::life::ClientId;

/// The bells of one client, by their numbers.
pub(crate) type Board = Arc<Mutex<HashMap<u64, Arc<Notify>>>>;

/// The socket of a client whose tasks have waited. It is there until the client ends.
#[derive(Debug)]
pub(crate) struct WakeSocket {
    pub(crate) client: ClientId,
    pub(crate) path: PathBuf,
    socket: UnixDatagram,
    pub(crate) board: Board,
}

impl WakeSocket {
    pub(crate) fn open(client: ClientId, path: PathBuf) -> io::Result<Self> {
        let wake_socket = Self {
            client,
            socket: UnixDatagram::bind(&path)?,
            path,
            board: Board::default(),
        };
        let (ear, board) = (wake_socket.socket.try_clone()?, wake_socket.board.clone());
        std::thread::Builder::new()
            .name("dlock-file-bells".to_owned())
            .spawn(move || listen(&ear, &board))?;
        Ok(wake_socket)
    }
}

impl Drop for WakeSocket {
    fn drop(&mut self) {
        // The thread hears that nothing more will come.
        let _ = self.socket.shutdown(Shutdown::Both);
        let _ = std::fs::remove_file(&self.path);
    }
}

fn listen(ear: &UnixDatagram, board: &Board) {
    let mut number = [0; 8];
    loop {
        match ear.recv(&mut number) {
            Ok(0) => return,
            Ok(_) => {
                let bells = board.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(bell) = bells.get(&u64::from_le_bytes(number)) {
                    bell.notify_one();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn nobody_listens_to_a_socket_that_fails() {
        let (ear, _other) = UnixDatagram::pair().expect("a pair");
        // Reading it fails at once while there is nothing.
        ear.set_nonblocking(true).expect("set");
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            listen(&ear, &Board::default());
            ended.send(())
        });
        let ended = end.recv_timeout(Duration::from_secs(20));
        ended.expect("it does not read on for ever");
    }
}
