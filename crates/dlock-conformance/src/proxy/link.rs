//! One connection through the proxy.

use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::Shared;
use super::faults::{Faults, Flow, Lane, Way};

/// The connection must be reset, both ends.
struct Reset;

/// What a reader hands to the writer of the other end.
enum Item {
    Bytes(Vec<u8>),
    /// The sender has closed its side.
    End,
    /// The sender has reset the connection.
    Reset,
}

/// One connection and what its two directions share.
struct Link<'a> {
    shared: &'a Shared,
    number: u64,
    /// Set when a request was seen whose answer is to be lost: how long to go on swallowing.
    doomed: OnceLock<Duration>,
}

/// Serves one client to the end, and strikes the connection off the list of open ones.
pub(super) async fn serve(shared: Arc<Shared>, number: u64, mut client: TcpStream) {
    let mut server = None;
    let told = {
        let mut faults = shared.faults.subscribe();
        async move { drop(faults.wait_for(|faults| faults.reset_below > number).await) }
    };
    let end = tokio::select! {
        biased;
        () = told => Err(Reset),
        end = pass(&shared, number, &mut client, &mut server) => end,
    };
    if matches!(end, Err(Reset)) {
        for stream in [Some(&client), server.as_ref()].into_iter().flatten() {
            stream.set_zero_linger().ok();
        }
    }
    drop((client, server));
    shared.open.send_modify(|open| _ = open.remove(&number));
}

/// Connects to the server and passes bytes both ways until both have ended.
async fn pass(
    shared: &Shared,
    number: u64,
    client: &mut TcpStream,
    server: &mut Option<TcpStream>,
) -> Result<(), Reset> {
    if shared.faults.borrow().swallows() {
        return vanish(client).await;
    }
    let dialled = TcpStream::connect(shared.upstream)
        .await
        .map_err(|_| Reset)?;
    dialled.set_nodelay(true).ok();
    let server = server.insert(dialled);

    let link = Link {
        shared,
        number,
        doomed: OnceLock::new(),
    };
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::try_join!(
        link.pump(Way::ToServer, from_client, to_server),
        link.pump(Way::ToClient, from_server, to_client),
    )?;
    Ok(())
}

/// Reads and forgets, and never ends: a connection into a black hole.
async fn vanish(client: &mut TcpStream) -> Result<(), Reset> {
    let mut buffer = [0; 4096];
    while matches!(client.read(&mut buffer).await, Ok(1..)) {}
    pending().await
}

impl Link<'_> {
    /// Carries one direction: reading never waits for writing, so that a delay costs time and not throughput.
    async fn pump(&self, way: Way, from: ReadHalf<'_>, to: WriteHalf<'_>) -> Result<(), Reset> {
        let (queue, queued) = mpsc::unbounded_channel();
        tokio::try_join!(
            self.take_in(way, from, queue),
            self.hand_out(way, to, queued)
        )?;
        Ok(())
    }

    async fn take_in(
        &self,
        way: Way,
        mut from: ReadHalf<'_>,
        queue: mpsc::UnboundedSender<(Instant, Item)>,
    ) -> Result<(), Reset> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let item = match from.read(&mut buffer).await {
                Ok(0) => Item::End,
                // A reset in place of the reply, and in its turn: what came before is still delivered.
                Ok(length) if self.is_lost(way, &buffer[..length], &mut from).await => Item::Reset,
                Ok(length) => Item::Bytes(self.told(way, buffer[..length].to_vec())),
                Err(_) => Item::Reset,
            };
            let (item, reset) = match item {
                Item::Bytes(mut bytes) => {
                    let keep = self.ends_among(way, bytes.len());
                    bytes.truncate(keep.unwrap_or(bytes.len()));
                    (Item::Bytes(bytes), keep.is_some())
                }
                other => (other, false),
            };
            let last = reset || !matches!(item, Item::Bytes(_));
            if let Item::Bytes(bytes) = &item {
                self.received(way)
                    .fetch_add(bytes.len() as u64, Ordering::SeqCst);
            }
            let lane = self.lane(&self.shared.faults.borrow(), way);
            if lane.flow != Flow::Swallowed {
                // A closed queue means that the writer is waiting for the reset of this connection.
                queue.send((Instant::now() + lane.delay, item)).ok();
                if reset {
                    let end = (Instant::now() + lane.delay, Item::Reset);
                    queue.send(end).ok();
                }
            }
            if last {
                return Ok(());
            }
        }
    }

    async fn hand_out(
        &self,
        way: Way,
        mut to: WriteHalf<'_>,
        mut queued: mpsc::UnboundedReceiver<(Instant, Item)>,
    ) -> Result<(), Reset> {
        let mut faults = self.shared.faults.subscribe();
        while let Some((due, item)) = queued.recv().await {
            if due > Instant::now() {
                sleep_until(due).await;
            }
            let free = |faults: &Faults| self.lane(faults, way).flow != Flow::Held;
            let flow = {
                let now = faults.wait_for(free).await.map_err(|_| Reset)?;
                if now.is_cut(self.number, due) {
                    Flow::Swallowed
                } else {
                    self.lane(&now, way).flow
                }
            };
            match item {
                _ if flow == Flow::Swallowed => {}
                Item::Bytes(bytes) => {
                    // Counted first: whoever has received a byte finds it counted.
                    self.delivered(way)
                        .fetch_add(bytes.len() as u64, Ordering::SeqCst);
                    if to.write_all(&bytes).await.is_err() {
                        // The receiver is gone. The sender learns it as soon as the way back to it is open.
                        let open = |faults: &Faults| faults.lane(way.back()).flow == Flow::Open;
                        drop(faults.wait_for(open).await);
                        return Err(Reset);
                    }
                }
                Item::End => {
                    to.shutdown().await.ok();
                    return Ok(());
                }
                Item::Reset => return Err(Reset),
            }
        }
        // The end of this direction was swallowed: the receiver must not learn of it.
        pending().await
    }

    /// Whether this chunk is the request or the reply that a test wants lost. Takes as long as the loss is to settle.
    async fn is_lost(&self, way: Way, chunk: &[u8], from: &mut ReadHalf<'_>) -> bool {
        if way == Way::ToServer {
            let settle = self.change(|faults| faults.loses_answer_to(chunk));
            settle.map(|settle| self.doomed.set(settle));
            let mut lost = false;
            self.shared.faults.send_if_modified(|faults| {
                lost = faults.loses_request(chunk);
                lost
            });
            return lost;
        }
        let Some(&settle) = self.doomed.get() else {
            return self.change(Faults::loses_chunk);
        };
        let mut buffer = [0; 4096];
        let swallow = async { while matches!(from.read(&mut buffer).await, Ok(1..)) {} };
        timeout(settle, swallow).await.ok();
        self.change(|faults| faults.loss = None);
        true
    }

    /// The bytes as the client is to read them.
    fn told(&self, way: Way, mut bytes: Vec<u8>) -> Vec<u8> {
        let instead = self.shared.instead.get().filter(|_| way == Way::ToClient);
        for (from, to) in instead.into_iter().flatten() {
            let mut start = 0;
            while let Some(found) = bytes[start..]
                .windows(from.len())
                .position(|window| window == from)
            {
                start += found;
                bytes[start..start + to.len()].copy_from_slice(to);
                start += to.len();
            }
        }
        bytes
    }

    fn ends_among(&self, way: Way, length: usize) -> Option<usize> {
        let mut keep = None;
        // Nobody waits for this count.
        self.shared.faults.send_if_modified(|faults| {
            keep = faults.ends_among(way, length);
            false
        });
        keep
    }

    fn change<T>(&self, change: impl FnOnce(&mut Faults) -> T) -> T {
        let mut outcome = None;
        self.shared.faults.send_if_modified(|faults| {
            let armed = faults.loss.is_some();
            outcome = Some(change(faults));
            armed
        });
        outcome.expect("the closure is always called")
    }

    /// What happens to the bytes of this connection now. One that is about to be reset passes no more.
    fn lane(&self, faults: &Faults, way: Way) -> Lane {
        let lane = faults.lane(way);
        if self.number < faults.reset_below.max(faults.silent_below) {
            Lane {
                flow: Flow::Swallowed,
                ..lane
            }
        } else {
            lane
        }
    }

    fn received(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::ToServer => &self.shared.from_client,
            Way::ToClient => &self.shared.from_server,
        }
    }

    fn delivered(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::ToServer => &self.shared.to_server,
            Way::ToClient => &self.shared.to_client,
        }
    }
}
