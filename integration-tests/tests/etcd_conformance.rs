//! The whole conformance suite against etcd: one server, and a cluster of three. Both behind proxies for the cases with faults.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod etcd_support;

use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use dlock_conformance::proxy::ProxyFault;
use dlock_conformance::{Ability, Faulty, Harness, Residue, Timings, async_trait};
use dlock_core::backend::Backend;
use dlock_core::{Error, ErrorKind, Name, Result};
use dlock_etcd::Config;
use etcd_client::{Client, DeleteOptions, GetOptions, SortOrder, SortTarget};
use etcd_support::metric;
use integration_tests::{EtcdCluster, EtcdServer};
use tokio::sync::OnceCell;

/// The cases have runtimes of their own; what the servers need outlives them here.
static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().expect("a runtime"));

/// Long enough for a loaded machine, short enough for cases that wait for its end.
const PARAMETERS: &str = "?session=4s";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Cluster,
}

struct Store {
    kind: Kind,
    deployed: Arc<OnceCell<Deployed>>,
}

/// Servers that run until the process ends.
enum Deployed {
    One(EtcdServer),
    Three(EtcdCluster),
}

impl Deployed {
    fn members(&self) -> &[EtcdServer] {
        match self {
            Self::One(server) => std::slice::from_ref(server),
            Self::Three(cluster) => cluster.members(),
        }
    }

    fn url(&self) -> String {
        let hosts: Vec<String> = self
            .members()
            .iter()
            .map(|member| member.addr().to_string())
            .collect();
        format!("etcd://{}{PARAMETERS}", hosts.join(","))
    }

    async fn raw(&self) -> Result<Client> {
        let hosts: Vec<String> = self
            .members()
            .iter()
            .map(|member| member.addr().to_string())
            .collect();
        Client::connect(hosts, None).await.map_err(raw_error)
    }
}

async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Config::from_url(url)?.connect().await?))
}

fn broken(error: integration_tests::Error) -> Error {
    Error::new(ErrorKind::Store, format!("the test's own server: {error}"))
}

fn raw_error(error: etcd_client::Error) -> Error {
    Error::new(ErrorKind::Store, format!("the test's own client: {error}"))
}

impl Store {
    async fn deployed(&self) -> Result<&Deployed> {
        let kind = self.kind;
        let start = || async move {
            let deploy = async move {
                Ok(match kind {
                    Kind::Single => Deployed::One(EtcdServer::start().await?),
                    Kind::Cluster => Deployed::Three(EtcdCluster::start().await?),
                })
            };
            RUNTIME
                .spawn(deploy)
                .await
                .expect("the servers' task")
                .map_err(broken)
        };
        self.deployed.get_or_try_init(start).await
    }
}

#[async_trait]
impl Harness for Store {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Single => "etcd",
            Kind::Cluster => "etcd-cluster",
        }
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        open(&self.deployed().await?.url()).await
    }

    fn timings(&self) -> Timings {
        Timings::default().tolerance(Duration::from_secs(3))
    }

    fn abilities(&self) -> &'static [Ability] {
        Ability::COMMON
    }

    fn why_not(&self, ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::Deny => Some("etcd_rights.rs asks those cases, with a server of its own"),
            Ability::Skew => Some(
                "a Go program takes the time from the kernel itself, where libfaketime is not asked",
            ),
            _ => None,
        }
    }

    async fn faulty(&self) -> Result<Faulty> {
        let members = self.deployed().await?.members();
        let members: Vec<_> = members.iter().map(|member| member.addr()).collect();
        // The next request with a lock's key in it: acquires, looks and releases, and the watches of waiters.
        let fault = ProxyFault::start(&members)
            .await?
            .losing_replies_to("dlock/", Duration::from_millis(60));
        let hosts: Vec<String> = fault.addrs().iter().map(ToString::to_string).collect();
        let url = format!("etcd://{}{PARAMETERS}&answer_timeout=1s", hosts.join(","));
        Ok(Faulty {
            backend: open(&url).await?,
            fault: Arc::new(fault),
        })
    }

    async fn expire(&self, name: &Name) -> Result<()> {
        let mut raw = self.deployed().await?.raw().await?;
        let first = GetOptions::new()
            .with_prefix()
            .with_sort(SortTarget::Create, SortOrder::Ascend)
            .with_limit(1);
        let found = raw
            .get(format!("dlock/{name}/"), Some(first))
            .await
            .map_err(raw_error)?;
        for kv in found.kvs() {
            match self.kind {
                // What an end of the session looks like.
                Kind::Single => raw
                    .lease_revoke(kv.lease())
                    .await
                    .map(drop)
                    .map_err(raw_error)?,
                // What an administrator does.
                Kind::Cluster => {
                    let only = Some(DeleteOptions::new());
                    raw.delete(kv.key(), only)
                        .await
                        .map(drop)
                        .map_err(raw_error)?;
                }
            }
        }
        Ok(())
    }

    async fn residue(&self) -> Result<Residue> {
        let deployed = self.deployed().await?;
        let mut raw = deployed.raw().await?;
        let all = GetOptions::new().with_prefix().with_count_only();
        let keys = raw
            .get("dlock/", Some(all))
            .await
            .map_err(raw_error)?
            .count();
        let leases = raw.leases().await.map_err(raw_error)?.leases().len();
        let mut watchers = 0;
        for member in deployed.members() {
            watchers += metric(member.addr(), "etcd_debugging_mvcc_watcher_total").await as u64;
        }
        Ok(Residue::from([
            ("keys".to_owned(), keys as u64),
            ("leases".to_owned(), leases as u64),
            ("watchers".to_owned(), watchers),
        ]))
    }

    fn address(&self) -> String {
        self.deployed.get().map(Deployed::url).unwrap_or_default()
    }
}

fn main() -> ExitCode {
    if let Some(code) = dlock_conformance::process::serve(async |url| open(url).await) {
        return code;
    }
    let stores = [Kind::Single, Kind::Cluster].map(|kind| -> Arc<dyn Harness> {
        Arc::new(Store {
            kind,
            deployed: Arc::default(),
        })
    });
    dlock_conformance::main_all(stores.to_vec())
}
