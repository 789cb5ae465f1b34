//! The members of a cluster by their DNS records, as `etcdctl --discovery-srv` finds them.

use std::net::SocketAddr;

use dlock_core::backend::Host;
use dlock_core::{Error, Result};

use super::Config;

/// Where to look the members up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Srv {
    pub(super) domain: String,
    /// Which of several clusters in one domain.
    pub(super) cluster: Option<String>,
    /// Instead of the machine's own.
    pub(super) dns: Option<SocketAddr>,
}

impl Srv {
    pub(super) fn of(domain: String) -> Self {
        Self {
            domain,
            cluster: None,
            dns: None,
        }
    }

    /// The records that etcd has for its clients.
    fn record(&self, tls: bool) -> String {
        let tls = if tls { "-ssl" } else { "" };
        let cluster = match &self.cluster {
            Some(cluster) => format!("-{cluster}"),
            None => String::new(),
        };
        // The dot at the end: no other domain is tried.
        let domain = self.domain.trim_end_matches('.');
        format!("_etcd-client{tls}{cluster}._tcp.{domain}.")
    }

    pub(super) fn check(&self) -> Result<()> {
        let is_label = |text: &str| {
            !text.is_empty()
                && text
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        };
        let domain = self.domain.trim_end_matches('.');
        if domain.len() > 200 || !domain.split('.').all(is_label) {
            return Err(Error::invalid(format!(
                "{:?} is no domain: write it like etcd+srv://example.com",
                self.domain
            )));
        }
        match &self.cluster {
            Some(cluster) if cluster.len() > 40 || !is_label(cluster) => {
                Err(Error::invalid(format!(
                    "srv_name is {cluster:?}: it has letters, digits and '-', up to 40 of them"
                )))
            }
            _ => Ok(()),
        }
    }
}

impl Config {
    /// A cluster whose members are looked up in DNS (feature `srv`): `_etcd-client._tcp.DOMAIN`, and `_etcd-client-ssl._tcp.DOMAIN` with
    /// [`tls`](Config::tls).
    ///
    /// They are looked up once, by [`connect`](Config::connect); all that are found are members, whatever their priority and weight. With TLS the servers'
    /// certificates must have the name of the domain, unless [`Tls::server_name`](dlock_core::kit::Tls::server_name) says otherwise: then forged records lead nowhere.
    pub fn srv(domain: impl Into<String>) -> Self {
        Self {
            srv: Some(Srv::of(domain.into())),
            ..Self::of(Vec::new())
        }
    }

    /// Which of several clusters of a domain, with [`srv`](Config::srv): the records are those of `_etcd-client-NAME`. Default: none.
    pub fn srv_name(mut self, cluster: impl Into<String>) -> Self {
        let srv = self.srv.get_or_insert_with(|| Srv::of(String::new()));
        srv.cluster = Some(cluster.into());
        self
    }

    /// The DNS server to ask, with [`srv`](Config::srv). Default: the machine's. For records that only a server of its own knows, as Consul's at port 8600.
    pub fn dns(mut self, server: SocketAddr) -> Self {
        let srv = self.srv.get_or_insert_with(|| Srv::of(String::new()));
        srv.dns = Some(server);
        self
    }

    /// These settings with the members that DNS has now; [`connect`](Config::connect) does it too. Without [`srv`](Config::srv), as they are.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](dlock_core::ErrorKind::Unreachable) when there are no such records or nobody answers within
    /// [`connect_timeout`](Config::connect_timeout), [`Unsupported`](dlock_core::ErrorKind::Unsupported) without the feature.
    pub async fn discovered(mut self) -> Result<Self> {
        let Some(srv) = self.srv.take() else {
            return Ok(self);
        };
        let record = srv.record(self.tls.is_some());
        let asked = tokio::time::timeout(self.connect_timeout, members(&record, srv.dns));
        self.hosts = asked.await.unwrap_or_else(|_| {
            Err(unknown(
                &record,
                &format!("no answer within {:?}", self.connect_timeout),
            ))
        })?;
        let domain = srv.domain.trim_end_matches('.');
        self.tls = self.tls.map(|tls| tls.or_server_name(domain));
        Ok(self)
    }
}

#[cfg(feature = "srv")]
fn unknown(record: &str, why: &str) -> Error {
    Error::new(
        dlock_core::ErrorKind::Unreachable,
        format!("the members of the cluster cannot be looked up: {record}: {why}"),
    )
}

#[cfg(not(feature = "srv"))]
fn unknown(_: &str, _: &str) -> Error {
    Error::new(
        dlock_core::ErrorKind::Unsupported,
        "this program was built without the look-up of members in DNS: enable the feature \"srv\" of dlock-etcd",
    )
}

#[cfg(not(feature = "srv"))]
async fn members(_: &str, _: Option<SocketAddr>) -> Result<Vec<Host>> {
    Err(unknown("", ""))
}

#[cfg(feature = "srv")]
async fn members(record: &str, dns: Option<SocketAddr>) -> Result<Vec<Host>> {
    use hickory_resolver::TokioResolver;
    use hickory_resolver::config::{NameServerConfig, ResolverConfig};
    use hickory_resolver::net::runtime::TokioRuntimeProvider;
    use hickory_resolver::proto::rr::RData;

    let builder = match dns {
        None => TokioResolver::builder_tokio().map_err(|why| unknown(record, &why.to_string()))?,
        Some(server) => {
            let mut known = NameServerConfig::udp_and_tcp(server.ip());
            for connection in &mut known.connections {
                connection.port = server.port();
            }
            let only = ResolverConfig::from_parts(None, Vec::new(), vec![known]);
            TokioResolver::builder_with_config(only, TokioRuntimeProvider::default())
        }
    };
    let resolver = builder
        .build()
        .map_err(|why| unknown(record, &why.to_string()))?;
    let found = match resolver.srv_lookup(record).await {
        Ok(found) => found,
        Err(why) if why.is_no_records_found() => {
            return Err(unknown(record, "DNS has no such records"));
        }
        Err(why) => return Err(unknown(record, &why.to_string())),
    };
    let mut hosts = Vec::new();
    for answer in found.answers() {
        let RData::SRV(service) = &answer.data else {
            continue;
        };
        let name = service.target.to_ascii();
        let host = Host {
            name: name.trim_end_matches('.').to_owned(),
            port: Some(service.port),
        };
        // A lone dot means that the service is decidedly not there (RFC 2782).
        if !host.name.is_empty() && !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    if hosts.is_empty() {
        return Err(unknown(record, "DNS says that there are none"));
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_those_of_etcdctl() {
        let mut srv = Srv::of("example.com".to_owned());
        assert_eq!(srv.record(false), "_etcd-client._tcp.example.com.");
        assert_eq!(srv.record(true), "_etcd-client-ssl._tcp.example.com.");
        srv.cluster = Some("blue".to_owned());
        assert_eq!(srv.record(true), "_etcd-client-ssl-blue._tcp.example.com.");
    }

    #[cfg(not(feature = "srv"))]
    #[tokio::test]
    async fn without_the_feature_it_says_so() {
        let error = Config::srv("example.com")
            .connect()
            .await
            .expect_err("none");
        assert_eq!(error.kind(), dlock_core::ErrorKind::Unsupported, "{error}");
    }
}
