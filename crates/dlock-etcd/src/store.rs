//! One client of a cluster, with the trait's verbs: each is in the file of its name.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use dlock_core::{ErrorKind, Result};

use crate::attempts::Attempts;
use crate::config::Config;
use crate::connect::Cluster;
use crate::crowd::Crowds;
use crate::error::{Cause, Trouble};
use crate::key::Keys;
use crate::line::Lines;
use crate::lookout::Lookout;
use crate::session::Sessions;

/// What the verbs share.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) sessions: Sessions,
    pub(crate) attempts: Attempts,
    pub(crate) lookout: Lookout,
    /// How many of the cluster's suspicions were followed.
    pub(crate) swept: AtomicU64,
    pub(crate) crowds: Crowds,
    pub(crate) lines: Lines,
    pub(crate) keys: Keys,
}

impl Store {
    /// Over `cluster`, within `limit`.
    pub(crate) async fn connect(
        config: &Config,
        cluster: Cluster,
        limit: Duration,
    ) -> Result<Self> {
        let cluster = Arc::new(cluster);
        // Several servers are tried in turn; together they keep the limit.
        let tries = match cluster.servers() {
            1 => 1,
            several => u32::try_from(several + 1).unwrap_or(u32::MAX),
        };
        let sessions = Sessions::start(cluster.clone(), config.session, limit / tries)
            .await
            .map_err(|trouble| with_hint(trouble, config.tls.is_some()))?;
        Ok(Self {
            keys: Keys::new(&config.prefix),
            attempts: Attempts::new(config.late_limit),
            lookout: Lookout::default(),
            swept: AtomicU64::new(0),
            crowds: Crowds::default(),
            lines: Lines::default(),
            cluster,
            sessions,
        })
    }
}

/// A server that expects TLS, or knows HTTP/1 alone, hangs up on the first bytes, and so does one that expects none; its word about
/// them, or about a client's certificate, can come too late to be seen.
fn with_hint(trouble: Trouble, tls: bool) -> Trouble {
    let hung_up = trouble.kind() == ErrorKind::Unreachable && trouble.cause != Cause::NoConnection;
    match tls {
        _ if !hung_up => trouble,
        true => trouble.hint(
            "if the server does without TLS, write etcd://; if it asks for a client certificate, give one that it trusts",
        ),
        false => trouble.hint("is it the right port? if the server wants TLS, write etcds://"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<'a, A: 'a, B: 'a, F>(_: impl Fn(&'a A, &'a B) -> F) -> usize {
        size_of::<F>()
    }

    /// The future of a call is made and moved for every call, with room for whatever it may come to. With everything in it, it was 14 kB, and
    /// copying took a fifth of the instructions of a cycle in the calling thread. What is rare belongs in a box.
    #[test]
    fn the_way_of_an_uncontended_cycle_is_short() {
        assert!(size(Store::acquire) < 5000);
        assert!(size(Store::try_acquire) < 5000);
        assert!(size(Store::release) < 5000);
    }
}
