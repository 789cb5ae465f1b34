//! A way to a server on which watches are late: it withholds what the server's loop for late watches would tell, for good.
#![allow(
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How a server answers when it is asked for the progress of a stream with a late watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// By its present revision, which is not the one of the watch: before 3.4.25 and 3.5.8.
    Moved,
    /// Not at all.
    Silent,
    /// Not at all, and from then on to no question on that stream: 3.4.25 to 3.4.30, and 3.5.8 to 3.5.12.
    Deaf,
    /// Never, not even of a watch that is in time, as a proxy that does not pass the question on.
    Never,
    /// As the server itself: no watch is late.
    Prompt,
}

/// What has gone by.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Passed {
    /// Watches that the server has entered.
    pub(crate) watches: usize,
    /// Events that were withheld.
    pub(crate) withheld: usize,
    /// Questions for the progress of a stream.
    pub(crate) questions: usize,
    /// Answers that told the server's version.
    pub(crate) versions: usize,
}

pub(crate) struct LateWatches {
    addr: SocketAddr,
    passed: Arc<watch::Sender<Passed>>,
    held: Arc<watch::Sender<bool>>,
}

impl LateWatches {
    /// As [`start`](Self::start), to a server that seems to be of another version: of as many letters, in the place of its own.
    pub(crate) async fn start_as(
        server: SocketAddr,
        progress: Progress,
        version: (String, String),
    ) -> Self {
        assert_eq!(version.0.len(), version.1.len());
        Self::start_with(server, progress, false, Some(version)).await
    }

    /// As [`start_as`](Self::start_as), to a server that is never late; nothing more goes to it once the first watch is there, until
    /// [`let_go`](Self::let_go).
    pub(crate) async fn start_holding_as(server: SocketAddr, version: (String, String)) -> Self {
        assert_eq!(version.0.len(), version.1.len());
        Self::start_with(server, Progress::Prompt, true, Some(version)).await
    }

    /// The first watch that goes by is late; with `hold`, nothing more goes to the server once it is there, until [`let_go`](Self::let_go).
    pub(crate) async fn start(server: SocketAddr, progress: Progress, hold: bool) -> Self {
        Self::start_with(server, progress, hold, None).await
    }

    async fn start_with(
        server: SocketAddr,
        progress: Progress,
        hold: bool,
        version: Option<(String, String)>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let passed = Arc::new(watch::Sender::new(Passed::default()));
        let held = Arc::new(watch::Sender::new(false));
        let (counts, holds) = (passed.clone(), held.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server).await.expect("the server");
                for end in [&client, &server] {
                    end.set_nodelay(true).expect("a socket");
                }
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(upstream(
                    from_client,
                    to_server,
                    holds.subscribe(),
                    counts.clone(),
                ));
                let filter = Filter {
                    progress,
                    hold: hold.then(|| holds.clone()),
                    passed: counts.clone(),
                    late: None,
                    replaced: false,
                    version: version.clone(),
                };
                tokio::spawn(downstream(from_server, to_client, filter));
            }
        });
        Self { addr, passed, held }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn let_go(&self) {
        self.held.send_replace(false);
    }

    pub(crate) fn passed(&self) -> Passed {
        *self.passed.borrow()
    }

    /// Resolves when so much has gone by.
    pub(crate) async fn until(&self, is_so: impl Fn(&Passed) -> bool) {
        let mut passed = self.passed.subscribe();
        super::soon(passed.wait_for(is_so))
            .await
            .expect("it goes on");
    }
}

/// What a client sends before its first frame.
const PREFACE: usize = 24;

/// A question for the progress: its only field is empty.
const QUESTION: &[u8] = &[0x1a, 0];

async fn upstream(
    mut from: impl AsyncRead + Unpin,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut held: watch::Receiver<bool>,
    passed: Arc<watch::Sender<Passed>>,
) {
    let mut preface = vec![0; PREFACE];
    if from.read_exact(&mut preface).await.is_err() || to.write_all(&preface).await.is_err() {
        return;
    }
    while let Some(frame) = Frame::read(&mut from).await {
        if held.wait_for(|held| !held).await.is_err() || frame.write(&mut to).await.is_none() {
            return;
        }
        if frame.is_data() {
            let asked = frame.messages().filter(|said| *said == QUESTION).count();
            passed.send_modify(|passed| passed.questions += asked);
        }
    }
}

async fn downstream(
    mut from: impl AsyncRead + Unpin,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut filter: Filter,
) {
    while let Some(mut frame) = Frame::read(&mut from).await {
        let stream = frame.stream();
        // Five bytes announce the message.
        let goes_on =
            !frame.is_data() || frame.body.len() < 5 || filter.passes(stream, &mut frame.body[5..]);
        if goes_on && frame.write(&mut to).await.is_none() {
            return;
        }
    }
}

/// Nine bytes with length, kind and stream, and what they announce.
struct Frame {
    head: [u8; 9],
    body: Vec<u8>,
}

impl Frame {
    async fn read(from: &mut (impl AsyncRead + Unpin)) -> Option<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut body = vec![0; usize::try_from(length).ok()?];
        from.read_exact(&mut body).await.ok()?;
        Some(Self { head, body })
    }

    async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> Option<()> {
        to.write_all(&self.head).await.ok()?;
        to.write_all(&self.body).await.ok()
    }

    /// Those that it holds as a whole, each behind five bytes with its length.
    fn messages(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = self.body.as_slice();
        std::iter::from_fn(move || {
            let (head, rest) = left.split_at_checked(5)?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
            let (message, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
            left = rest;
            Some(message)
        })
    }

    fn is_data(&self) -> bool {
        self.head[3] == 0
    }

    fn stream(&self) -> u32 {
        u32::from_be_bytes([self.head[5], self.head[6], self.head[7], self.head[8]])
    }
}

struct Filter {
    progress: Progress,
    hold: Option<Arc<watch::Sender<bool>>>,
    passed: Arc<watch::Sender<Passed>>,
    /// The stream with the late watch, and the watcher.
    late: Option<(u32, u64)>,
    /// Another watch is on that stream, which is in time.
    replaced: bool,
    /// What the server says, and what the client is told.
    version: Option<(String, String)>,
}

impl Filter {
    fn passes(&mut self, stream: u32, message: &mut [u8]) -> bool {
        self.another_version(message);
        let Some(told) = Told::read(message) else {
            return true;
        };
        if told.created {
            let mut watches = 0;
            self.passed.send_modify(|passed| {
                passed.watches += 1;
                watches = passed.watches;
            });
            let is_late = matches!(
                self.progress,
                Progress::Moved | Progress::Silent | Progress::Deaf
            );
            if let Some(hold) = self.hold.as_ref().filter(|_| watches == 1) {
                hold.send_replace(true);
            }
            if watches == 1 && is_late {
                self.late = Some((stream, told.watcher));
            } else {
                self.replaced |= self.late.is_some_and(|(late, _)| late == stream);
            }
            return true;
        }
        if told.events {
            if self.late != Some((stream, told.watcher)) {
                return true;
            }
            self.passed.send_modify(|passed| passed.withheld += 1);
            return false;
        }
        if self.progress == Progress::Never {
            return !told.is_progress;
        }
        if self.late.is_none_or(|(late, _)| late != stream) {
            return true;
        }
        if self.replaced && self.progress != Progress::Deaf {
            return true;
        }
        if self.progress == Progress::Moved {
            // Of a young store: it is one byte, and stays one.
            message[told.revision] += 1;
        }
        self.progress == Progress::Moved
    }

    /// An answer to a question for the server's state holds its version as text.
    fn another_version(&self, message: &mut [u8]) {
        let Some((own, other)) = &self.version else {
            return;
        };
        let at = message
            .windows(own.len())
            .position(|text| text == own.as_bytes());
        if let Some(at) = at {
            message[at..at + own.len()].copy_from_slice(other.as_bytes());
            self.passed.send_modify(|passed| passed.versions += 1);
        }
    }
}

/// What a watch's message tells, by the numbers of its fields.
#[derive(Default)]
struct Told {
    watcher: u64,
    created: bool,
    events: bool,
    is_progress: bool,
    /// Where the header has its revision.
    revision: usize,
}

impl Told {
    /// `None` for what is no message of a watch that matters here.
    fn read(message: &[u8]) -> Option<Self> {
        let mut told = Self::default();
        let mut at = 0;
        while at < message.len() {
            let (field, kind) = (message[at] >> 3, message[at] & 7);
            at += 1;
            let start = at;
            let value = number(message, &mut at)?;
            match (field, kind) {
                (1, 2) if start == 1 => {
                    let end = at + usize::try_from(value).ok()?;
                    while at < end {
                        let field = *message.get(at)? >> 3;
                        at += 1;
                        if field == 3 {
                            told.revision = at;
                        }
                        number(message, &mut at)?;
                    }
                }
                (2, 0) => told.watcher = value,
                (3, 0) => told.created = value == 1,
                (11, 2) => {
                    told.events = true;
                    break;
                }
                _ => return None,
            }
        }
        // The number of no watcher: -1.
        told.is_progress = told.watcher == u64::MAX && !told.created && !told.events;
        (told.created || told.events || told.is_progress).then_some(told)
    }
}

fn number(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
