//! The suite against a tiny server on loopback, so that helpers are real processes which are really stopped and killed.
//!
//! The backend is the least that one can write (exclusive locks, polled), and its harness has what a proxy brings.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock_conformance::proxy::ProxyFault;
use dlock_conformance::{Ability, Faulty, Harness, Residue, async_trait, process};
use dlock_core::backend::{Backend, Busy, Lease, Outcome, Renewal, Request};
use dlock_core::{
    Capabilities, Error, ErrorKind, HeldNow, LossReason, Name, Released, Result, WakeUp,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

// The server: one line of JSON each way.

#[derive(Debug, Serialize, Deserialize)]
struct Command {
    what: What,
    name: String,
    owner: String,
    lease: Duration,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum What {
    Acquire,
    Renew,
    Release,
    Abandon,
    Expire,
    Count,
}

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Yes(u64),
    No,
    Abandoned,
}

#[derive(Default)]
struct State {
    token: u64,
    holds: HashMap<String, Hold>,
    abandoned: HashMap<String, Instant>,
}

struct Hold {
    owner: String,
    token: u64,
    ends: Instant,
}

impl State {
    fn answer(&mut self, command: Command) -> Reply {
        let now = Instant::now();
        self.holds.retain(|_, hold| hold.ends > now);
        self.abandoned.retain(|_, until| *until > now);
        let Command {
            what,
            name,
            owner,
            lease,
        } = command;
        let taken = self.holds.contains_key(&name);
        let ours = self.holds.get_mut(&name).filter(|hold| hold.owner == owner);
        match (what, ours) {
            (What::Acquire, _) if self.abandoned.contains_key(&owner) => Reply::Abandoned,
            (What::Acquire | What::Renew, Some(hold)) => {
                hold.ends = now + lease;
                Reply::Yes(hold.token)
            }
            (What::Acquire, None) if taken => Reply::No,
            (What::Acquire, None) => {
                self.token += 1;
                let (token, ends) = (self.token, now + lease);
                self.holds.insert(name, Hold { owner, token, ends });
                Reply::Yes(token)
            }
            (What::Renew, None) | (What::Release, None) => Reply::No,
            (What::Release, Some(_)) => {
                self.holds.remove(&name);
                Reply::Yes(0)
            }
            (What::Abandon, ours) => {
                if ours.is_some() {
                    self.holds.remove(&name);
                }
                self.abandoned.insert(owner, now + lease);
                Reply::Yes(0)
            }
            (What::Expire, _) => {
                self.holds.remove(&name);
                Reply::Yes(0)
            }
            (What::Count, _) => Reply::Yes(self.holds.len() as u64),
        }
    }
}

/// Serves until the process ends; gives the address.
fn start_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let state = Arc::<Mutex<State>>::default();
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    continue;
                };
                let state = state.clone();
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let mut line = String::new();
                    if stream.read_line(&mut line).await.is_ok()
                        && let Ok(command) = serde_json::from_str(&line)
                    {
                        let reply = state.lock().unwrap().answer(command);
                        let reply = serde_json::to_string(&reply).unwrap() + "\n";
                        // The client may be gone.
                        let _ = stream.write_all(reply.as_bytes()).await;
                    }
                });
            }
        });
    });
    address
}

// The backend: a connection for each call, so a future can be dropped anywhere.

#[derive(Debug)]
struct Tiny {
    address: String,
    identity: String,
    capabilities: Capabilities,
}

impl Tiny {
    fn connect(address: &str) -> Self {
        let mut capabilities = Capabilities::new("tiny");
        capabilities.fencing = true;
        capabilities.wake_up = WakeUp::Poll {
            longest: Duration::from_millis(30),
        };
        Self {
            address: address.to_owned(),
            identity: format!("tiny://{address}"),
            capabilities,
        }
    }

    async fn call(&self, what: What, name: &str, owner: &str, lease: Duration) -> Result<Reply> {
        let command = Command {
            what,
            name: name.to_owned(),
            owner: owner.to_owned(),
            lease,
        };
        let text = serde_json::to_string(&command).unwrap() + "\n";
        let trip = async {
            let mut stream = BufReader::new(TcpStream::connect(&self.address).await?);
            stream.write_all(text.as_bytes()).await?;
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            Ok(line)
        };
        let reply: std::io::Result<String> = trip.await;
        let reply = reply.map_err(|error| unreachable("no answer").with_source(error))?;
        serde_json::from_str(&reply)
            .map_err(|error| unreachable("half an answer").with_source(error))
    }

    async fn ask(&self, what: What, request: &Request) -> Result<Reply> {
        let owner = request.attempt().to_string();
        self.call(what, request.name(), &owner, request.lease())
            .await
    }
}

fn unreachable(message: &str) -> Error {
    Error::new(ErrorKind::Unreachable, message)
}

#[async_trait]
impl Backend for Tiny {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        let from = request.now();
        match self.ask(What::Acquire, request).await? {
            Reply::Yes(token) => Ok(Outcome::Held(Lease::new(request, from).with_token(token))),
            Reply::No => Ok(Outcome::Busy(Busy::default())),
            Reply::Abandoned => {
                let error = Error::new(ErrorKind::Store, "this attempt was abandoned");
                Err(error.with_held(HeldNow::No))
            }
        }
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let mut answers = Vec::new();
        for lease in leases {
            let owner = lease.attempt().to_string();
            let reply = self.call(What::Renew, lease.name(), &owner, lease.duration());
            answers.push(match reply.await {
                Ok(Reply::Yes(_)) => Renewal::Extended,
                Ok(_) => Renewal::Lost(LossReason::Gone),
                Err(error) => Renewal::Failed(error),
            });
        }
        answers
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        let owner = lease.attempt().to_string();
        let reply = self.call(What::Release, lease.name(), &owner, lease.duration());
        Ok(match reply.await? {
            Reply::Yes(_) => Released::Freed,
            _ => Released::AlreadyLost,
        })
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.ask(What::Abandon, request).await?;
        Ok(())
    }
}

// The harness.

struct TinyServer {
    address: String,
}

impl TinyServer {
    async fn ask(&self, what: What, name: &str) -> Result<Reply> {
        let tiny = Tiny::connect(&self.address);
        tiny.call(what, name, "", Duration::ZERO).await
    }
}

#[async_trait]
impl Harness for TinyServer {
    fn name(&self) -> &str {
        "tiny"
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(Tiny::connect(&self.address)))
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn abilities(&self) -> &'static [Ability] {
        Ability::COMMON
    }

    async fn faulty(&self) -> Result<Faulty> {
        let fault = ProxyFault::start(&[self.address.parse().unwrap()]).await?;
        let addrs = fault.addrs();
        Ok(Faulty {
            backend: Arc::new(Tiny::connect(&addrs.first().unwrap().to_string())),
            fault: Arc::new(fault),
        })
    }

    async fn expire(&self, name: &Name) -> Result<()> {
        self.ask(What::Expire, name).await?;
        Ok(())
    }

    async fn residue(&self) -> Result<Residue> {
        let Reply::Yes(holds) = self.ask(What::Count, "").await? else {
            return Err(unreachable("no count"));
        };
        Ok(Residue::from([("holds".to_owned(), holds)]))
    }
}

fn main() -> ExitCode {
    let helper =
        process::serve(async |address| Ok(Arc::new(Tiny::connect(address)) as Arc<dyn Backend>));
    if let Some(code) = helper {
        return code;
    }
    dlock_conformance::main(TinyServer {
        address: start_server(),
    })
}
