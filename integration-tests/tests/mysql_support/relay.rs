//! A relay between a client and a server that can end a request of several statements behind the first of them.
#![allow(
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// A request of text.
const COM_QUERY: u8 = 3;
/// Error 1317, "Query execution was interrupted", as the server sends it to somebody whose statement was killed.
const INTERRUPTED: &[u8] = b"\xff\x25\x05#70100Query execution was interrupted";

pub(crate) struct Relay {
    pub(crate) port: u16,
    armed: Arc<AtomicBool>,
}

impl Relay {
    /// To the server on this port of this machine. `begins` is how the request begins that is to be interrupted.
    pub(crate) async fn start(server: u16, begins: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let armed = Arc::new(AtomicBool::new(false));
        let is_armed = armed.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
                    return;
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let interrupts = Arc::new(AtomicBool::new(false));
                let (armed, ours) = (is_armed.clone(), interrupts.clone());
                tokio::spawn(asks(from_client, to_server, begins, armed, ours));
                tokio::spawn(answers(from_server, to_client, interrupts));
            }
        });
        Self { port, armed }
    }

    /// Interrupts the next such request.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn has_interrupted(&self) -> bool {
        !self.armed.load(Ordering::SeqCst)
    }
}

async fn asks(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    begins: &str,
    armed: Arc<AtomicBool>,
    interrupts: Arc<AtomicBool>,
) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if interrupts.load(Ordering::SeqCst) {
            // What the server still says about the request before has come by then, and was kept from the client.
            tokio::time::sleep(Duration::from_millis(300)).await;
            interrupts.store(false, Ordering::SeqCst);
        }
        let request = &bytes[..count];
        let is_it =
            request.get(4) == Some(&COM_QUERY) && request[5..].starts_with(begins.as_bytes());
        if is_it && armed.swap(false, Ordering::SeqCst) {
            interrupts.store(true, Ordering::SeqCst);
        }
        if to.write_all(request).await.is_err() {
            return;
        }
    }
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, interrupts: Arc<AtomicBool>) {
    let mut bytes = vec![0; 1 << 16];
    let mut has_said = false;
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let mut answer = bytes[..count].to_vec();
        if !interrupts.load(Ordering::SeqCst) {
            has_said = false;
        } else if has_said {
            continue;
        } else {
            // The answer of the first statement is one short packet: its length, its number, and what it says.
            let length = usize::from(answer[0]) + 4;
            answer.truncate(length);
            answer.extend([
                u8::try_from(INTERRUPTED.len()).expect("short"),
                0,
                0,
                answer[3] + 1,
            ]);
            answer.extend(INTERRUPTED);
            has_said = true;
        }
        if to.write_all(&answer).await.is_err() {
            return;
        }
    }
}
