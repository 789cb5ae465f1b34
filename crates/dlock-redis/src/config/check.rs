//! What settings may be.

use std::time::Duration;

use dlock_core::{Error, Result};

use super::{Config, Style, Topology};

impl Config {
    pub(crate) fn check(&self) -> Result<()> {
        self.check_times()?;
        self.check_keys()?;
        self.check_tls()?;
        self.check_login()?;
        self.check_topology()
    }

    fn check_times(&self) -> Result<()> {
        let ms = Duration::from_millis;
        let second = Duration::from_secs(1);
        let minute = Duration::from_secs(60);
        let hour = 60 * minute;
        for (what, value, low, high) in [
            ("connect_timeout", Some(self.connect_timeout), ms(1), minute),
            ("answer_timeout", Some(self.answer_timeout), ms(1), minute),
            ("waiter_lease", Some(self.waiter_lease), ms(100), 5 * minute),
            ("fence_ttl", Some(self.fence_ttl), second, 366 * 24 * hour),
            (
                "replicas_timeout",
                Some(self.replicas_timeout),
                ms(1),
                minute,
            ),
            ("keepalive", self.keepalive, second, 9 * hour),
            ("user_timeout", self.user_timeout, ms(100), hour),
        ] {
            let Some(value) = value else { continue };
            if !(low..=high).contains(&value) {
                return Err(Error::invalid(format!(
                    "{what} is {value:?}: it must be from {low:?} to {high:?}"
                )));
            }
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
        if self.tls {
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
