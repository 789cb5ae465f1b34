//! How a session gets a connection: to which server, and what is said first.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_core::backend::Host;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::jute::{Reader, Writer};
use super::sasl::{self, DigestAnswer};
use super::serve::{AUTH, Core, SessionTicket, beat};
use super::talk::{Awaited, Talk};
use super::{Cause, op};
use crate::config::Auth;

/// The first pause between two rounds of trying to connect again; it doubles up to [`Pace::pause`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The shortest time that is left to a server for taking a connection.
const SHORTEST_DIAL: Duration = Duration::from_millis(250);

impl Core {
    /// A connection to any server, however often it takes; an error is final.
    pub(super) async fn connect(&mut self) -> Result<Talk, Cause> {
        let mut pause = FIRST_PAUSE;
        loop {
            let mut hosts = self.hosts.clone();
            fastrand::shuffle(&mut hosts);
            // One that has fallen silent may take connections and say nothing, for as long again.
            hosts.sort_by_key(|host| self.last.as_ref() == Some(host));
            for host in &hosts {
                match self.greet(host).await {
                    Ok(talk) => {
                        self.last = Some(host.clone());
                        return Ok(talk);
                    }
                    Err(cause) if cause.is_final() => return Err(cause),
                    Err(cause) => {
                        tracing::debug!(server = %host.with_port(0), %cause, "no connection");
                    }
                }
            }
            sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(self.pace().pause());
        }
    }

    /// Connects to one server, and tells it what it has to know: which session, who we are, and what is watched.
    async fn greet(&mut self, host: &Host) -> Result<Talk, Cause> {
        let limit = self.pace().silence().max(SHORTEST_DIAL);
        let mut talk = Talk::new(self.dialer.dial(host, limit).await?);
        talk.push(&self.connect_request());
        let mut ticket = None;
        while ticket.is_none() {
            if talk.step(limit).await? {
                talk.messages(|talk, message| match ticket {
                    None => {
                        ticket = Some(read_ticket(message)?);
                        Ok(())
                    }
                    Some(_) => self.take_in(talk, message),
                })?;
            }
        }
        self.accept(ticket)?;
        match self.login(limit).await? {
            None => {}
            Some(((user, password), Auth::Digest)) => {
                let body = Writer::default().int(AUTH).int(op::AUTH).int(0);
                let auth = format!("{user}:{password}");
                talk.push(&body.text("digest").bytes(auth.as_bytes()).0);
            }
            Some(((user, password), Auth::Sasl)) => {
                self.sasl(&mut talk, limit, (&user, &password)).await?;
            }
        }
        let zxid = self.shared.zxid.load(Ordering::Acquire);
        for body in self.watches.again(zxid) {
            self.ask_myself(&mut talk, op::SET_WATCHES, &body);
        }
        // A server that wants to know who we are says so with the first request.
        beat(&mut talk);
        while talk.beating || !talk.awaited.is_empty() {
            if talk.step(limit).await? {
                talk.messages(|talk, message| self.take_in(talk, message))?;
            }
        }
        Ok(talk)
    }

    /// Who we are on this connection: as it was found out when the session began, for the first one. A password that cannot be had is no
    /// reason to give the session up; the next connection may have it.
    async fn login(&mut self, limit: Duration) -> Result<Option<((String, String), Auth)>, Cause> {
        let Some(login) = &self.login else {
            return Ok(None);
        };
        if let Some(first) = self.first_login.take() {
            return Ok(Some((first, login.auth)));
        }
        match timeout(limit, login.now()).await {
            Ok(Ok(now)) => Ok(Some((now, login.auth))),
            Ok(Err(error)) => Err(Cause::Broken(error.to_string())),
            Err(_) => Err(Cause::Broken(format!("no password within {limit:?}"))),
        }
    }

    async fn sasl(
        &mut self,
        talk: &mut Talk,
        limit: Duration,
        login: (&str, &str),
    ) -> Result<(), Cause> {
        let question = self.sasl_step(talk, limit, b"").await?;
        let nonce = uuid::Uuid::new_v4().simple().to_string();
        let answer = DigestAnswer::new(&question, login, sasl::ZOOKEEPER, &nonce)?;
        let last = self.sasl_step(talk, limit, answer.text.as_bytes()).await?;
        // Who does not know the password is not the server that it was agreed with.
        if answer.is_proven_by(&last) {
            Ok(())
        } else {
            Err(Cause::AuthFailed)
        }
    }

    async fn sasl_step(
        &mut self,
        talk: &mut Talk,
        limit: Duration,
        word: &[u8],
    ) -> Result<Vec<u8>, Cause> {
        let (reply, mut answer) = oneshot::channel();
        let awaited = Awaited {
            reply: Some(reply),
            watch: None,
        };
        self.send(talk, op::SASL, &Writer::default().bytes(word).0, awaited);
        loop {
            if talk.step(limit).await? {
                talk.messages(|talk, message| self.take_in(talk, message))?;
            }
            if let Ok(answer) = answer.try_recv() {
                return Ok(Reader(&answer?.body).bytes()?.to_vec());
            }
        }
    }

    fn connect_request(&self) -> Vec<u8> {
        let (id, password) = match &self.ticket {
            Some(ticket) => (ticket.id, ticket.password.clone()),
            None => (0, vec![0; 16]),
        };
        let asked = i32::try_from(self.ttl.as_millis()).unwrap_or(i32::MAX);
        Writer::default()
            .int(0)
            .long(self.shared.zxid.load(Ordering::Acquire))
            .int(asked)
            .long(id)
            .bytes(&password)
            // Not to a server without its ensemble, which would only let us read.
            .bool(false)
            .0
    }

    fn accept(&mut self, ticket: Option<SessionTicket>) -> Result<(), Cause> {
        let ticket = ticket.filter(|ticket| ticket.id != 0 && !ticket.ttl.is_zero());
        let ticket = ticket.ok_or(Cause::Expired)?;
        // Another session than the one that was asked for has none of our places.
        if self.ticket.as_ref().is_some_and(|old| old.id != ticket.id) {
            return Err(Cause::Expired);
        }
        // All deadlines go by the time that was granted first.
        if self.ticket.is_some() && ticket.ttl < self.ttl && !self.any_time {
            return Err(Cause::Shortened(ticket.ttl));
        }
        self.ttl = ticket.ttl;
        self.ticket = Some(ticket);
        Ok(())
    }
}

fn read_ticket(message: &[u8]) -> Result<SessionTicket, Cause> {
    let mut message = Reader(message);
    let (_version, ttl, id) = (message.int()?, message.int()?, message.long()?);
    Ok(SessionTicket {
        id,
        ttl: Duration::from_millis(ttl.max(0).unsigned_abs().into()),
        password: message.bytes()?.to_vec(),
    })
}
