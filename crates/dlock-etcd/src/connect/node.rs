//! One server and its client.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions};

use crate::config::Config;
use crate::error::Trouble;

/// Pings on a connection with open streams. Servers refuse clients that ping more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(10);

pub(super) struct Node {
    address: String,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    /// Counts the clients, so that one failure seen by many replaces one client.
    generation: u64,
    client: Option<Client>,
}

impl Node {
    pub(super) fn new(address: String) -> Self {
        Self {
            address,
            slot: Mutex::default(),
        }
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> &str {
        let address = self.address.as_str();
        address.split_once("://").map_or(address, |(_, host)| host)
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `pick` takes of the client, if there is one.
    pub(super) fn ready<C>(&self, pick: fn(&Client) -> C) -> Option<(C, u64)> {
        let slot = self.slot();
        slot.client
            .as_ref()
            .map(|client| (pick(client), slot.generation))
    }

    /// Makes a client. It logs in, if there is a login; its connection is made with the first request.
    pub(super) async fn connect<C>(
        &self,
        config: &Config,
        pick: fn(&Client) -> C,
    ) -> Result<(C, u64), Trouble> {
        let generation = self.slot().generation;
        // With the password as it is now.
        let options = options(config)?;
        let client = Client::connect([&self.address], Some(options)).await?;
        let picked = pick(&client);
        let mut slot = self.slot();
        if slot.generation == generation && slot.client.is_none() {
            slot.client = Some(client);
        }
        Ok((picked, slot.generation))
    }

    /// The next call makes a new client: this one's connection broke or hangs, or its runtime has ended.
    pub(super) fn replace(&self, generation: u64) {
        let mut slot = self.slot();
        if slot.generation == generation {
            slot.generation += 1;
            slot.client = None;
        }
    }
}

/// The cluster's addresses as the client wants them.
pub(crate) fn endpoints(config: &Config) -> Vec<String> {
    let scheme = if config.tls { "https" } else { "http" };
    let addresses = config.addresses().into_iter();
    addresses
        .map(|address| format!("{scheme}://{address}"))
        .collect()
}

/// How clients of this cluster connect and log in.
pub(crate) fn options(config: &Config) -> Result<ConnectOptions, Trouble> {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(config.connect_timeout)
        .with_keep_alive(PING_EVERY, config.answer_timeout)
        .with_keep_alive_while_idle(false)
        // A member that has lost its leader ends the streams of who asks for this: a watch there would be silent for ever.
        .with_require_leader(true);
    if let Some((user, password)) = &config.login {
        let password = password
            .read()
            .map_err(|text| Trouble::new(dlock_core::ErrorKind::Invalid, text).unsent())?;
        options = options
            .with_user(user, password)
            .with_auto_token_refresh(true);
    }
    if config.tls {
        options = with_tls(options, config)?;
    }
    Ok(options)
}

#[cfg(feature = "tls")]
fn with_tls(options: ConnectOptions, config: &Config) -> Result<ConnectOptions, Trouble> {
    use etcd_client::{Certificate, Identity, TlsOptions};
    let mut tls = TlsOptions::new();
    tls = match &config.ca {
        Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
        None => tls.with_enabled_roots(),
    };
    if let Some(name) = &config.server_name {
        tls = tls.domain_name(name);
    }
    if let Some((certificate, key)) = &config.identity {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    Ok(options.with_tls(tls))
}

#[cfg(not(feature = "tls"))]
fn with_tls(_options: ConnectOptions, _config: &Config) -> Result<ConnectOptions, Trouble> {
    Err(Trouble::new(
        dlock_core::ErrorKind::Unsupported,
        "this program was built without TLS for etcd: enable the feature \"tls\" of dlock-etcd",
    )
    .unsent())
}
