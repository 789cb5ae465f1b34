//! One connection: what is written, what is read, and which answers are awaited.

use std::collections::HashMap;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Cause;
use super::dial::Stream;
use super::jute::{Writer, frame};
use super::watches::{Key, NodeWatch};

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) body: Vec<u8>,
    pub(super) watch: Option<NodeWatch>,
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
        enum Done {
            Read(usize),
            Written(usize),
            Flushed,
        }
        let silent_at = self.heard + silence;
        let (writer, outbox) = (&mut self.writer, &self.outbox);
        let has_work = !outbox.is_empty() || self.unflushed;
        let write = async {
            match outbox.as_slice() {
                [] => writer.flush().await.map(|()| Done::Flushed),
                bytes => writer.write(bytes).await.map(Done::Written),
            }
        };
        let io = async {
            tokio::select! {
                read = self.reader.read_buf(&mut self.inbox) => read.map(Done::Read),
                written = write, if has_work => written,
            }
        };
        let done = tokio::select! {
            // What has come counts, however late we look: it may be our program that was stopped, and not the server.
            biased;
            done = io => done.map_err(|error| Cause::Broken(error.to_string()))?,
            () = tokio::time::sleep_until(silent_at) => return Err(Cause::Silent(silence)),
        };
        match done {
            Done::Read(0) => Err(Cause::Broken("the server closed the connection".to_owned())),
            Done::Read(_) => {
                self.heard = Instant::now();
                Ok(true)
            }
            Done::Written(count) => {
                self.outbox.drain(..count);
                self.unflushed = true;
                Ok(false)
            }
            Done::Flushed => {
                self.unflushed = false;
                Ok(false)
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_has_come_counts_however_late_we_look() {
        let silence = Duration::from_millis(5);
        for round in 0..50 {
            let (ours, mut theirs) = tokio::io::duplex(64);
            let mut talk = Talk::new(Box::new(ours));
            theirs.write_all(b"word").await.expect("room");
            std::thread::sleep(2 * silence);
            assert_eq!(talk.step(silence).await, Ok(true), "{round}");
            assert_eq!(talk.step(silence).await, Err(Cause::Silent(silence)));
        }
    }

    #[tokio::test]
    async fn step_that_is_dropped_loses_nothing() {
        let silence = Duration::from_secs(5);
        let (ours, mut theirs) = tokio::io::duplex(3);
        let mut talk = Talk::new(Box::new(ours));
        for number in 0..20 {
            talk.push(&[number; 5]);
        }
        let echo = tokio::spawn(async move {
            let mut byte = [0];
            while theirs.read_exact(&mut byte).await.is_ok() {
                theirs.write_all(&byte).await.expect("room");
            }
        });
        let mut come = Vec::new();
        while come.len() < 20 {
            // Now and then the step is dropped before it is done, as in a `select!` whose other branch is ready: no byte may be lost by that.
            let read = tokio::select! {
                biased;
                () = tokio::task::yield_now() => continue,
                read = talk.step(silence) => read.expect("it lives"),
            };
            if read {
                let each = |_: &mut Talk, message: &[u8]| {
                    come.push(message.to_vec());
                    Ok(())
                };
                talk.messages(each).expect("whole messages");
            }
        }
        let sent: Vec<_> = (0..20).map(|number| vec![number; 5]).collect();
        assert_eq!(come, sent);
        echo.abort();
    }
}
