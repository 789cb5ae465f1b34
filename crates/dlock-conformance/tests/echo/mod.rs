//! A server that echoes lines, and a client for it.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use dlock_conformance::proxy::FaultProxy;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// What the echo server has seen, in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Connected,
    Line(String),
    Ended,
    Reset,
}

/// A server that answers each line with the same line, and tells what it sees.
pub(crate) struct Echo {
    pub(crate) addr: SocketAddr,
    seen: mpsc::UnboundedReceiver<Seen>,
}

impl Echo {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (tell, seen) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Self::answer(stream, tell.clone()));
            }
        });
        Self { addr, seen }
    }

    async fn answer(stream: TcpStream, tell: mpsc::UnboundedSender<Seen>) {
        tell.send(Seen::Connected).ok();
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = String::new();
            let last = match stream.read_line(&mut line).await {
                Ok(0) => Seen::Ended,
                Ok(_) => {
                    stream.write_all(line.as_bytes()).await.ok();
                    tell.send(Seen::Line(line.trim_end().to_owned())).ok();
                    continue;
                }
                Err(_) => Seen::Reset,
            };
            tell.send(last).ok();
            return;
        }
    }

    pub(crate) async fn next(&mut self) -> Seen {
        self.seen.recv().await.unwrap()
    }

    /// Nothing that was not asked for yet has been seen.
    pub(crate) fn saw_nothing_more(&mut self) {
        assert_eq!(self.seen.try_recv().ok(), None);
    }
}

/// A client that speaks lines.
pub(crate) struct Client(pub(crate) BufReader<TcpStream>);

impl Client {
    pub(crate) async fn connect(proxy: &FaultProxy) -> Self {
        Self(BufReader::new(
            TcpStream::connect(proxy.addr()).await.unwrap(),
        ))
    }

    pub(crate) async fn send(&mut self, line: &str) {
        self.0
            .write_all(format!("{line}\n").as_bytes())
            .await
            .unwrap();
    }

    pub(crate) async fn receive(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        Ok(line.trim_end().to_owned())
    }

    pub(crate) async fn ask(&mut self, line: &str) -> std::io::Result<String> {
        self.send(line).await;
        self.receive().await
    }

    /// Silence cannot be awaited: a short time without a byte has to do. Too short a time could only make this pass.
    pub(crate) async fn hears_nothing(&mut self) {
        timeout(Duration::from_millis(50), self.0.read_u8())
            .await
            .unwrap_err();
    }

    pub(crate) async fn is_reset(&mut self) {
        assert_eq!(
            self.0.read_u8().await.unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
    }
}
