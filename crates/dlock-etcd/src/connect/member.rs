//! One server and its client.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::kit::{Connected, TIMEOUTS, Tls};
use etcd_client::{Client, ConnectOptions, KvClient, LeaseClient, MaintenanceClient, WatchClient};

use super::asking::Asking;
use crate::config::Config;
use crate::error::Trouble;

/// Pings on a connection with open streams. Servers refuse clients that ping more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(10);

/// A client, and what is known of the server that it leads to.
pub(super) struct MemberChannel {
    client: Client,
    asking: Arc<Asking>,
}

impl MemberChannel {
    fn new(client: Client, asking: Asking) -> Arc<Self> {
        let asking = Arc::new(asking);
        Arc::new(Self { client, asking })
    }

    pub(super) fn kv_client(&self) -> KvClient {
        self.client.kv_client()
    }

    pub(super) fn lease_client(&self) -> LeaseClient {
        self.client.lease_client()
    }

    /// What a watch needs.
    pub(super) fn watches(&self) -> (WatchClient, MaintenanceClient, Arc<Asking>) {
        let client = &self.client;
        (
            client.watch_client(),
            client.maintenance_client(),
            self.asking.clone(),
        )
    }
}

pub(super) struct Member {
    address: String,
    /// The application's own, which is used for good: it makes its connections anew by itself.
    given: Option<Client>,
    client: Connected<Arc<MemberChannel>, Trouble>,
}

impl Member {
    pub(super) fn new(address: String) -> Self {
        Self {
            address,
            given: None,
            client: Connected::default(),
        }
    }

    /// A cluster that is reached by a client of the application, wherever its requests go.
    pub(super) fn of_given(addresses: &[String], client: Client) -> Self {
        Self {
            given: Some(client),
            ..Self::new(addresses.join(","))
        }
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> &str {
        let address = self.address.as_str();
        address.split_once("://").map_or(address, |(_, host)| host)
    }

    /// What `pick` takes of the client, if there is one, and the client's number.
    pub(super) fn ready<C>(&self, pick: fn(&MemberChannel) -> C) -> Option<(C, u64)> {
        self.client.look(|link, number| (pick(link), number))
    }

    /// Makes a client, one for all who come meanwhile. It logs in, if there is a login; its connection is made with the first request.
    pub(super) async fn connect<C>(
        &self,
        config: &Config,
        pick: fn(&MemberChannel) -> C,
    ) -> Result<(C, u64), Trouble> {
        let make = async {
            if let Some(given) = &self.given {
                return Ok(MemberChannel::new(given.clone(), Asking::of_several()));
            }
            // With the password as it is now.
            let options = options(config).await?;
            let client = Client::connect([&self.address], Some(options)).await?;
            Ok(MemberChannel::new(client, Asking::default()))
        };
        // Each caller has a limit of its own, and drops this then.
        let made = self.client.get_or_make(*TIMEOUTS.end(), make).await;
        let (link, number) = made?;
        Ok((pick(&link), number))
    }

    /// The next call makes a new client: this one's connection broke or hangs, or its runtime has ended.
    pub(super) fn replace(&self, number: u64) {
        self.client.give_up(number);
    }
}

/// The cluster's addresses as the client wants them.
pub(crate) fn endpoints(config: &Config) -> Vec<String> {
    let scheme = if config.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let addresses = config.addresses().into_iter();
    addresses
        .map(|address| format!("{scheme}://{address}"))
        .collect()
}

/// How clients of this cluster connect and log in.
pub(crate) async fn options(config: &Config) -> Result<ConnectOptions, Trouble> {
    let options = without_login(config)?;
    match config.login.now().await? {
        (Some(user), Some(password)) => Ok(options
            .with_user(user, password)
            .with_auto_token_refresh(true)),
        _ => Ok(options),
    }
}

/// How they connect.
pub(super) fn without_login(config: &Config) -> Result<ConnectOptions, Trouble> {
    let options = ConnectOptions::new()
        .with_connect_timeout(config.connect_timeout)
        .with_keep_alive(PING_EVERY, config.answer_timeout)
        .with_keep_alive_while_idle(false)
        // A member that has lost its leader ends the streams of who asks for this: a watch there would be silent for ever.
        .with_require_leader(true);
    match &config.tls {
        Some(tls) => with_tls(options, tls),
        None => Ok(options),
    }
}

#[cfg(feature = "tls")]
fn with_tls(options: ConnectOptions, tls: &Tls) -> Result<ConnectOptions, Trouble> {
    use dlock_core::kit::Trust;
    use etcd_client::{Certificate, Identity, TlsOptions};
    let mut wanted = match tls.trust() {
        Trust::Authority(ca) => {
            TlsOptions::new().ca_certificate(Certificate::from_pem(ca.read("ca")?))
        }
        _ => TlsOptions::new().with_enabled_roots(),
    };
    if let Some(name) = tls.name() {
        wanted = wanted.domain_name(name);
    }
    if let Some((cert, key)) = tls.identity() {
        wanted = wanted.identity(Identity::from_pem(cert.read("cert")?, key.read("key")?));
    }
    Ok(options.with_tls(wanted))
}

/// Never called: what is not there was refused when the settings were checked.
#[cfg(not(feature = "tls"))]
fn with_tls(options: ConnectOptions, _tls: &Tls) -> Result<ConnectOptions, Trouble> {
    Ok(options)
}
