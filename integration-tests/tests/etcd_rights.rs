//! The cases of the conformance suite about rights that are taken away, against etcd. Its clock is not moved: a Go program reads the time from the
//! kernel's page and not by the C library, so libfaketime changes nothing for it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks, and tells what it has seen"
)]

mod rights_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlock_conformance::{Ability, Faulty, Harness, async_trait};
use dlock_core::Result;
use dlock_core::backend::Backend;
use dlock_etcd::Config;
use integration_tests::EtcdServer;
use rights_support::{Denial, RUNTIME, Rights, all_pass, broken};

const ROOT: [&str; 2] = ["--user", "root:r00t"];

struct Store {
    server: Arc<EtcdServer>,
    users: AtomicUsize,
}

async fn open(server: &EtcdServer, user: &str) -> Result<Arc<dyn Backend>> {
    let url = format!("etcd://{user}@{}?session=4s", server.addr());
    Ok(Arc::new(Config::from_url(&url)?.connect().await?))
}

async fn etcdctl(server: &EtcdServer, words: &[&str]) -> Result<()> {
    let words: Vec<&str> = ROOT.iter().chain(words).copied().collect();
    server.etcdctl(&words).await.map(drop).map_err(broken)
}

#[async_trait]
impl Harness for Store {
    fn name(&self) -> &str {
        "etcd"
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        open(&self.server, "root:r00t").await
    }

    fn abilities(&self) -> &'static [Ability] {
        &[Ability::Deny]
    }

    /// A client with a user of its own.
    async fn faulty(&self) -> Result<Faulty> {
        let user = format!("client-{}", self.users.fetch_add(1, Ordering::Relaxed));
        let login = format!("{user}:s3cret");
        etcdctl(&self.server, &["user", "add", &login]).await?;
        let rights = Role {
            server: self.server.clone(),
            user,
        };
        rights.give_back().await?;
        Ok(Faulty {
            backend: open(&self.server, &login).await?,
            fault: Arc::new(Denial(rights)),
        })
    }
}

/// The role that may use the keys of locks.
struct Role {
    server: Arc<EtcdServer>,
    user: String,
}

#[async_trait]
impl Rights for Role {
    async fn take_away(&self) -> Result<()> {
        etcdctl(&self.server, &["user", "revoke-role", &self.user, "locks"]).await
    }

    async fn give_back(&self) -> Result<()> {
        // It has it already where nothing was taken away.
        let _ = etcdctl(&self.server, &["user", "grant-role", &self.user, "locks"]).await;
        Ok(())
    }
}

#[test]
fn what_is_refused_holds_nothing_and_is_told() {
    let server = RUNTIME.block_on(async {
        let server = EtcdServer::start().await.expect("etcd");
        for words in [
            &["user", "add", "root:r00t"][..],
            &["user", "grant-role", "root", "root"],
            &["role", "add", "locks"],
            &[
                "role",
                "grant-permission",
                "locks",
                "--prefix=true",
                "readwrite",
                "dlock/",
            ],
            &["auth", "enable"],
        ] {
            server.etcdctl(words).await.expect("etcdctl");
        }
        server
    });
    let store: Arc<dyn Harness> = Arc::new(Store {
        server: Arc::new(server),
        users: AtomicUsize::new(0),
    });
    all_pass(&store, Ability::Deny, 6, &[]);
}
