//! Whether a server is asked for the progress of its watches, as far as one connection to it tells.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::MaintenanceClient;
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// The first of each line of releases that enters a watch "from now on" in one step, and so never late.
const FIXED: [(u64, u64, u64); 4] = [(3, 4, 38), (3, 5, 22), (3, 6, 2), (3, 7, 0)];

/// What is known of the server behind a connection.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// Whether it enters watches late now and then; asked when the first waiter comes.
    late: OnceCell<bool>,
    /// A waiter asked in vain, however often it tried.
    silent: AtomicBool,
}

impl Asking {
    /// Whether to ask, and to replace what may be late. The first call asks the server for its version, for all who come meanwhile. A server that
    /// does not tell it in time is left alone: what it enters late stays so for 100 ms.
    pub(super) async fn is_due(&self, mut server: MaintenanceClient, limit: Duration) -> bool {
        let ask = || async move {
            match timeout(limit, server.status()).await {
                Ok(Ok(told)) => may_be_late(told.version()),
                Ok(Err(_)) | Err(_) => false,
            }
        };
        *self.late.get_or_init(ask).await && !self.is_silent()
    }

    /// Nobody answers questions there: a proxy, for example, that writes an error to its log for each.
    pub(super) fn was_silent(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    /// It does: it was slow.
    pub(super) fn has_answered(&self) {
        if self.is_silent() {
            self.silent.store(false, Ordering::Relaxed);
        }
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }
}

/// Whether a server of this version may enter a watch late. One whose version says nothing is taken for an old one.
fn may_be_late(version: &str) -> bool {
    let (numbers, rest) = version.split_once('-').unwrap_or((version, ""));
    let numbers = numbers.split('+').next().unwrap_or_default();
    let mut numbers = numbers.split('.').map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch))) =
        (numbers.next(), numbers.next(), numbers.next())
    else {
        return true;
    };
    let version: (u64, u64, u64) = (major, minor, patch);
    // What came before a release has its number already.
    let is_before = |fixed| version < fixed || (version == fixed && !rest.is_empty());
    let [.., last] = FIXED;
    let same_line = |fixed: &&(u64, u64, u64)| (fixed.0, fixed.1) == (version.0, version.1);
    is_before(*FIXED.iter().find(same_line).unwrap_or(&last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_tell_which_servers_enter_watches_late() {
        for version in [
            "3.3.27",
            "3.4.9",
            "3.4.23",
            "3.4.37",
            "3.5.0",
            "3.5.21",
            "3.5.9+dirty",
            "3.5.22-rc.0",
            "3.6.0-rc.5",
            "3.6.1",
            "3.7.0-alpha.0",
            "2.3.8",
            "",
            "3.5",
            "unknown",
            "3.x.1",
        ] {
            assert!(may_be_late(version), "{version:?}");
        }
        for version in [
            "3.4.38",
            "3.4.100",
            "3.5.22",
            "3.5.23+dirty",
            "3.5.23-rc.0",
            "3.6.2",
            "3.6.10",
            "3.7.0",
            "3.10.0",
            "4.0.0",
        ] {
            assert!(!may_be_late(version), "{version:?}");
        }
    }

    #[test]
    fn a_server_that_answers_after_all_is_asked_again() {
        let asking = Asking::default();
        asking.was_silent();
        assert!(asking.is_silent());
        asking.has_answered();
        assert!(!asking.is_silent());
    }
}
