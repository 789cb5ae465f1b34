//! What settings may be.

use std::time::Duration;

use dlock_core::kit::{TIMEOUTS, TlsOffer, within};
use dlock_core::{Error, Result};

use super::{Config, Style, Topology};

const TLS: TlsOffer = TlsOffer {
    crate_name: "dlock-redis",
    enabled: cfg!(feature = "tls"),
    system_ca: true,
    unverified: false,
    server_name: false,
};

impl Config {
    pub(crate) fn check(&self) -> Result<()> {
        self.check_times()?;
        self.check_keys()?;
        if let Some(tls) = &self.tls {
            tls.check(TLS)?;
        }
        self.login.check()?;
        self.check_topology()
    }

    fn check_times(&self) -> Result<()> {
        let ms = Duration::from_millis;
        let second = Duration::from_secs(1);
        let minute = Duration::from_secs(60);
        let hour = 60 * minute;
        within("connect_timeout", self.connect_timeout, TIMEOUTS)?;
        within("answer_timeout", self.answer_timeout, TIMEOUTS)?;
        within("waiter_lease", self.waiter_lease, ms(500)..=5 * minute)?;
        within("fence_ttl", self.fence_ttl, second..=366 * 24 * hour)?;
        within("replicas_timeout", self.replicas_timeout, TIMEOUTS)?;
        if let Some(time) = self.keepalive {
            within("keepalive", time, second..=9 * hour)?;
        }
        if let Some(time) = self.user_timeout {
            within("user_timeout", time, ms(100)..=hour)?;
        }
        if self.user_timeout.is_some() && cfg!(not(target_os = "linux")) {
            return Err(Error::invalid(
                "user_timeout is set, which only Linux knows: leave it out here",
            ));
        }
        Ok(())
    }

    fn check_keys(&self) -> Result<()> {
        if let Some(prefix) = &self.prefix
            && prefix
                .contains(|c: char| c == '{' || c == '}' || c.is_control() || c.is_whitespace())
        {
            return Err(Error::invalid(format!(
                "the prefix {prefix:?} has a brace, a space or a control character: choose another"
            )));
        }
        if self.prefix.as_deref() == Some("") && self.style != Style::Plain {
            return Err(Error::invalid(
                "the prefix is empty: only style=plain may do without one",
            ));
        }
        if self.limit_may_change && self.style == Style::Plain {
            return Err(Error::invalid(
                "limit_may_change is set, but style=plain has no permits: leave one of them out",
            ));
        }
        Ok(())
    }

    fn check_topology(&self) -> Result<()> {
        if let Topology::Cluster(hosts)
        | Topology::Sentinel {
            sentinels: hosts, ..
        } = &self.topology
            && hosts.is_empty()
        {
            return Err(Error::invalid("no host is given: name at least one"));
        }
        if matches!(self.topology, Topology::Cluster(_)) && self.db != 0 {
            return Err(Error::invalid(format!(
                "database {} is asked for, but a cluster has only database 0",
                self.db
            )));
        }
        if !matches!(self.topology, Topology::Unix(_)) {
            return Ok(());
        }
        if self.tls.is_some() {
            return Err(Error::invalid(
                "TLS is asked for on a unix socket: leave one of them out",
            ));
        }
        if self.keepalive.is_some() || self.user_timeout.is_some() {
            return Err(Error::invalid(
                "keepalive or user_timeout is set for a unix socket, which has neither: leave them out",
            ));
        }
        Ok(())
    }
}
