//! One connection: what is written, what is read, and which answers are awaited.

use std::collections::HashMap;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Cause;
use super::dial::Stream;
use super::jute::{Writer, frame};
use super::watches::{Key, Watch};

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) body: Vec<u8>,
    pub(super) watch: Option<Watch>,
}

/// A request that was sent.
pub(super) struct Awaited {
    /// Nobody waits for the answers to what the session asks by itself.
    pub(super) reply: Option<oneshot::Sender<Result<Reply, Cause>>>,
    /// The watch that it sets.
    pub(super) watch: Option<Key>,
}

/// One connection.
pub(super) struct Talk {
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// TLS keeps back what was written until it is flushed.
    unflushed: bool,
    /// By the number of the request.
    pub(super) awaited: HashMap<i32, Awaited>,
    pub(super) heard: Instant,
    pub(super) sent: Instant,
    /// A heartbeat is under way.
    pub(super) beating: bool,
}

impl Talk {
    pub(super) fn new(stream: Box<dyn Stream>) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let now = Instant::now();
        Self {
            reader,
            writer,
            inbox: Vec::with_capacity(4096),
            outbox: Vec::new(),
            unflushed: false,
            awaited: HashMap::new(),
            heard: now,
            sent: now,
            beating: false,
        }
    }

    /// Puts a message behind those that are to be written.
    pub(super) fn push(&mut self, message: &[u8]) {
        let framed = Writer(std::mem::take(&mut self.outbox)).bytes(message);
        self.outbox = framed.0;
        self.sent = Instant::now();
    }

    /// Writes and reads, whichever is possible first; true when something was read. May be dropped at any time: nothing gets lost.
    pub(super) async fn step(&mut self, silence: Duration) -> Result<bool, Cause> {
        let broken = |error: std::io::Error| Cause::Broken(error.to_string());
        let (writer, outbox) = (&mut self.writer, &self.outbox);
        let write = async {
            match outbox.as_slice() {
                [] => writer.flush().await.map(|()| None),
                bytes => writer.write(bytes).await.map(Some),
            }
        };
        tokio::select! {
            read = self.reader.read_buf(&mut self.inbox) => match read.map_err(broken)? {
                0 => Err(Cause::Broken("the server closed the connection".to_owned())),
                _ => {
                    self.heard = Instant::now();
                    Ok(true)
                }
            },
            written = write, if !self.outbox.is_empty() || self.unflushed => {
                let written = written.map_err(broken)?;
                self.unflushed = written.is_some();
                self.outbox.drain(..written.unwrap_or_default());
                Ok(false)
            }
            () = tokio::time::sleep_until(self.heard + silence) => Err(Cause::Silent(silence)),
        }
    }

    /// Hands every whole message that was read to `each`.
    pub(super) fn messages(
        &mut self,
        mut each: impl FnMut(&mut Self, &[u8]) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        let inbox = std::mem::take(&mut self.inbox);
        let mut at = 0;
        let outcome = loop {
            let rest = inbox.get(at..).unwrap_or_default();
            match frame(rest) {
                Ok(None) => break Ok(()),
                Ok(Some((message, length))) => {
                    at += length;
                    if let Err(cause) = each(self, message) {
                        break Err(cause);
                    }
                }
                Err(cause) => break Err(cause),
            }
        };
        self.inbox = inbox;
        self.inbox.drain(..at);
        outcome
    }

    /// Nobody will be answered any more.
    pub(super) fn fail(self, cause: &Cause) {
        for reply in self
            .awaited
            .into_values()
            .filter_map(|awaited| awaited.reply)
        {
            let _ = reply.send(Err(cause.clone()));
        }
    }
}
