//! A TCP proxy on loopback that misbehaves on request.
//!
//! A client connects to [`FaultProxy::addr`] instead of to its server. All is passed on until a test asks for a fault:
//!
//! | fault | what the client sees | what the server sees |
//! |---|---|---|
//! | [`delay`](FaultProxy::delay) | slow answers | slow requests |
//! | [`pause`](FaultProxy::pause) | nothing, until [`resume`](FaultProxy::resume) | requests that arrive late |
//! | [`resume_until`](FaultProxy::resume_until) | nothing more, ever | what came before, late; no word that the client has given it up |
//! | [`black_hole`](FaultProxy::black_hole) | an open, silent connection | the same |
//! | [`half_open`](FaultProxy::half_open) | the same on what is open now; a new connection works | the same |
//! | [`reset_all`](FaultProxy::reset_all) | connection reset | connection reset |
//! | [`refuse`](FaultProxy::refuse) | new connections are reset at once | nothing |
//! | [`drop_requests`](FaultProxy::drop_requests) | connection reset instead of the answer | a reset, and no request |
//! | [`drop_reply`](FaultProxy::drop_reply) | connection reset instead of the answer | an answered request, then a reset |
//!
//! Where servers tell their clients about each other, as the nodes of a Redis Cluster do,
//! [`tell_instead`](FaultProxy::tell_instead) keeps a client behind the proxies that it was given.
//!
//! A fault holds from the moment the call returns, for every byte that the proxy has not yet read or holds.

mod faults;
mod link;
mod store;

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use self::faults::{Faults, Flow, Loss, Way};
pub use self::store::ProxyFault;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
    /// Both ways.
    Both,
}

/// How many bytes were delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes {
    /// To the server.
    pub to_server: u64,
    /// To clients.
    pub to_client: u64,
}

/// A TCP proxy between clients and one server. Dropping it closes everything.
#[derive(Debug)]
pub struct FaultProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

/// What the proxy and its connections share.
#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    /// What the server says, and what clients read in its place: of the same length.
    instead: OnceLock<Vec<(Vec<u8>, Vec<u8>)>>,
    faults: watch::Sender<Faults>,
    /// The open connections, by number.
    open: watch::Sender<BTreeSet<u64>>,
    /// The number of the next connection.
    next: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
    from_client: AtomicU64,
    from_server: AtomicU64,
}

impl FaultProxy {
    /// Starts a proxy in front of `upstream`, on a free port of loopback. It runs on the runtime of the caller.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let server = tokio::net::TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    /// use dlock_conformance::proxy::FaultProxy;
    ///
    /// let proxy = FaultProxy::start(server).await?;
    /// let url = format!("mystore://{}", proxy.addr()); // for the client that is to suffer
    /// proxy.half_open(); // what is connected now hears nothing any more, and is not told
    /// # let _ = url;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream,
            instead: OnceLock::new(),
            faults: watch::Sender::new(Faults::default()),
            open: watch::Sender::new(BTreeSet::new()),
            next: AtomicU64::new(0),
            to_server: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
            from_client: AtomicU64::new(0),
            from_server: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Ok(Self {
            addr,
            shared,
            accepting,
        })
    }

    /// Where the server tells clients the address of a Redis Cluster's node, they read that of another one, most likely of its proxy:
    /// in `CLUSTER SLOTS` and in the errors that send them there; also where a Sentinel names a master or a replica. So each client can have proxies of its own, although the nodes tell all
    /// the same. Can be set once.
    ///
    /// Nothing may change its length, so all ports have five digits, and an address must lie within one read, as it does in answers of
    /// some hundred bytes.
    ///
    /// # Panics
    /// When a port has not five digits.
    pub fn tell_instead(&self, addrs: &[(SocketAddr, SocketAddr)]) {
        let mut instead = Vec::new();
        for (from, to) in addrs {
            assert!(
                from.port() >= 10_000 && to.port() >= 10_000,
                "five digits: {from}, {to}"
            );
            // As text, as an integer, and as a string of its own.
            for between in [":", "\r\n:", "\r\n$5\r\n"] {
                let text = |addr: &SocketAddr| format!("{}{between}{}", from.ip(), addr.port());
                instead.push((text(from).into_bytes(), text(to).into_bytes()));
            }
        }
        self.shared.instead.get_or_init(|| instead);
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Every byte that is read from now on arrives this much later. Order and throughput stay.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.change(|faults| faults.each(direction, |lane| lane.delay = delay));
    }

    /// Holds all bytes, to deliver them at [`resume`](Self::resume).
    pub fn pause(&self, direction: Direction) {
        self.change(|faults| faults.each(direction, |lane| lane.flow = Flow::Held));
    }

    /// Delivers what [`pause`](Self::pause) has held, and lets the rest through again.
    pub fn resume(&self) {
        self.change(|faults| {
            faults.each(Direction::Both, |lane| {
                if lane.flow == Flow::Held {
                    lane.flow = Flow::Open;
                }
            });
        });
    }

    /// Delivers what [`pause`](Self::pause) has held and had come before `moment`. What came later on the connections that are open
    /// now vanishes, the client's word that it no longer wants an answer among it: a server that hears of that together with
    /// the request may not carry it out. Other connections work. Until [`heal`](Self::heal).
    pub fn resume_until(&self, moment: std::time::Instant) {
        let below = self.shared.next.load(Ordering::SeqCst);
        self.change(|faults| faults.cut = Some((below, moment.into())));
        self.resume();
    }

    /// The connections that are open now fall silent, without a sign to either side; new ones work. Until [`heal`](Self::heal), which
    /// resets them.
    pub fn half_open(&self) {
        let below = self.shared.next.load(Ordering::SeqCst);
        self.change(|faults| faults.silent_below = below);
    }

    /// Swallows all bytes, and also the end of a connection, without a sign to the other side. New connections are
    /// accepted but do not reach the server. Until [`heal`](Self::heal).
    pub fn black_hole(&self, direction: Direction) {
        self.change(|faults| faults.each(direction, |lane| lane.flow = Flow::Swallowed));
    }

    /// Ends every fault. After a black hole the connections have lost bytes, so those that were open are reset; without
    /// one they go on, and what was paused is delivered.
    pub async fn heal(&self) {
        let mut below = None;
        // In one step, so that no connection slips through between the end of the hole and the resets.
        self.change(|faults| {
            if faults.loses_bytes_of_all() {
                faults.reset_below = self.shared.next.load(Ordering::SeqCst);
                below = Some(faults.reset_below);
            } else if faults.silent_below > faults.reset_below {
                // Those that came later have lost nothing.
                below = Some(faults.silent_below);
            }
            faults.clear();
        });
        if let Some(below) = below {
            self.gone(below).await;
        }
    }

    /// Resets all open connections, both ends, and returns when they are gone. A client that has connected but sent
    /// nothing yet may not have been accepted; it is then not among them.
    pub async fn reset_all(&self) {
        let below = self.shared.next.load(Ordering::SeqCst);
        self.change(|faults| faults.reset_below = below);
        self.gone(below).await;
    }

    /// Resolves when no connection with a lower number is open.
    async fn gone(&self, below: u64) {
        let mut open = self.shared.open.subscribe();
        let gone = open
            .wait_for(|open| open.first().is_none_or(|&oldest| oldest >= below))
            .await;
        drop(gone);
    }

    /// From now on new connections are reset as soon as they come. Until [`accept`](Self::accept).
    pub fn refuse(&self) {
        self.change(|faults| faults.refuse = true);
    }

    /// Lets new connections in again after [`refuse`](Self::refuse).
    pub fn accept(&self) {
        self.change(|faults| faults.refuse = false);
    }

    /// Swallows the `n`-th chunk (1 = the next) that the server sends from now on, on whatever connection, and then
    /// resets that connection: the request was carried out, and its answer is lost.
    ///
    /// A chunk is what one read returns. A store that sends only answers, a small one at a time, sends one chunk per
    /// request. Where other traffic (heartbeats, HTTP/2 frames) makes counting unsure, use
    /// [`drop_reply_to`](Self::drop_reply_to).
    pub fn drop_reply(&self, n: u64) {
        self.change(|faults| faults.loss = Some(Loss::Chunk(n.max(1))));
    }

    /// Delivers `bytes` more bytes in this direction, counted over all connections, and resets the connection in the midst of what comes next: with
    /// every number in turn, a request or a reply ends at every one of its bytes. For [`Direction::Both`] the bytes to the server count.
    pub fn reset_after(&self, direction: Direction, bytes: u64) {
        let way = match direction {
            Direction::ToClient => Way::ToClient,
            Direction::ToServer | Direction::Both => Way::ToServer,
        };
        self.change(|faults| faults.reset_after = Some((way, bytes)));
    }

    /// How many resets of [`reset_after`](Self::reset_after) have not come yet: one or none.
    #[must_use]
    pub fn resets_left(&self) -> usize {
        usize::from(self.shared.faults.borrow().reset_after.is_some())
    }

    /// Waits for a request that contains `pattern`, swallows what the server then sends on that connection, and resets
    /// it `settle` after the first chunk.
    ///
    /// With `settle` zero the first chunk counts as the answer. A server that first sends something else (an etcd
    /// acknowledges HTTP/2 frames) needs a time in which it surely answers. The pattern must lie within one read, as it
    /// does for requests of some hundred bytes.
    pub fn drop_reply_to(&self, pattern: impl Into<Vec<u8>>, settle: Duration) {
        self.change(|faults| {
            faults.loss = Some(Loss::AnswerTo {
                pattern: pattern.into(),
                settle,
            })
        });
    }

    /// Loses the next `count` requests that contain `pattern`: their connections are reset in their place. As for
    /// [`drop_reply_to`](Self::drop_reply_to), the pattern must lie within one read.
    pub fn drop_requests(&self, pattern: impl Into<Vec<u8>>, count: usize) {
        self.change(|faults| faults.lost_requests = Some((pattern.into(), count)));
    }

    /// How many of the requests of [`drop_requests`](Self::drop_requests) have not come yet.
    #[must_use]
    pub fn requests_to_drop(&self) -> usize {
        let faults = self.shared.faults.borrow();
        faults.lost_requests.as_ref().map_or(0, |(_, left)| *left)
    }

    /// Resolves when the reply that [`drop_reply`](Self::drop_reply) or [`drop_reply_to`](Self::drop_reply_to) waits for
    /// has been swallowed.
    pub async fn reply_dropped(&self) {
        let mut faults = self.shared.faults.subscribe();
        let done = faults.wait_for(|faults| faults.loss.is_none()).await;
        drop(done);
    }

    /// How many connections of clients are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.open.borrow().len()
    }

    /// Resolves when exactly `count` connections of clients are open.
    pub async fn connections_are(&self, count: usize) {
        let mut open = self.shared.open.subscribe();
        let reached = open.wait_for(|open| open.len() == count).await;
        drop(reached);
    }

    /// How many bytes were delivered so far. What was swallowed or is held does not count.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes {
            to_server: self.shared.to_server.load(Ordering::SeqCst),
            to_client: self.shared.to_client.load(Ordering::SeqCst),
        }
    }

    /// How many bytes came from the client and from the server, delivered or not: `to_server` is what the client has sent.
    #[must_use]
    pub fn received(&self) -> Bytes {
        Bytes {
            to_server: self.shared.from_client.load(Ordering::SeqCst),
            to_client: self.shared.from_server.load(Ordering::SeqCst),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Faults)) {
        self.shared.faults.send_modify(change);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Takes connections for ever. The set ends them when this task is aborted.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut links = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // The peer is gone already, or this process has too many files open: others must get to close some.
            tokio::task::yield_now().await;
            continue;
        };
        while links.try_join_next().is_some() {}
        if shared.faults.borrow().refuse {
            client.set_zero_linger().ok();
            continue;
        }
        client.set_nodelay(true).ok();
        let number = shared.next.fetch_add(1, Ordering::SeqCst);
        shared.open.send_modify(|open| _ = open.insert(number));
        links.spawn(link::serve(Arc::clone(&shared), number, client));
    }
}
