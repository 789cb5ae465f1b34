//! Whether a server is asked for the progress of its watches, as far as one connection to it tells.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use etcd_client::MaintenanceClient;
use tokio::sync::OnceCell;
use tokio::time::timeout;

type Version = (u64, u64, u64);

/// The first of each line of releases that enters a watch "from now on" in one step, and so never late.
const FIXED: [Version; 4] = [(3, 4, 38), (3, 5, 22), (3, 6, 2), (3, 7, 0)];
/// The first that may be asked: etcd's own gRPC proxy before it ends with a panic when it is, and tells the version of the server behind it.
const ASKABLE: Version = (3, 4, 19);
/// So many waiters ask in vain, one after the other, before nobody asks any more: a server that is itself in the middle of a late watch tells one of
/// them nothing.
const IN_VAIN: u8 = 2;

/// How a server enters a watch "from now on".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entering {
    /// In one step: it is never late.
    AtOnce,
    /// In two steps, between which something may be written. Its progress tells.
    LateNowAndThen,
    /// It may be late, and must not be asked.
    NotKnown,
}

/// What is known of the server behind a connection.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// Asked for when the first waiter comes.
    entering: OnceCell<Entering>,
    /// Requests of one client go to several servers, so the version of one says nothing for certain of the other.
    several: bool,
    /// How many waiters have asked in vain, however often they tried.
    in_vain: AtomicU8,
    /// Somebody was answered.
    answers: AtomicBool,
}

impl Asking {
    /// Of a client that may lead to several servers.
    pub(super) fn of_several() -> Self {
        Self {
            several: true,
            ..Self::default()
        }
    }

    /// How the server enters watches. The first call asks it for its version, for all who come meanwhile. A server that does not tell it in time is
    /// left alone: what it enters late stays so for 100 ms.
    ///
    /// # Cancel safety
    ///
    /// The next call asks again.
    pub(super) async fn entering(
        &self,
        mut server: MaintenanceClient,
        limit: Duration,
    ) -> Entering {
        let ask = || async move {
            match timeout(limit, server.status()).await {
                Ok(Ok(told)) => entering(told.version()),
                Ok(Err(_)) | Err(_) => Entering::NotKnown,
            }
        };
        match *self.entering.get_or_init(ask).await {
            Entering::AtOnce if self.several => Entering::NotKnown,
            Entering::LateNowAndThen if self.is_silent() => Entering::NotKnown,
            entering => entering,
        }
    }

    /// A waiter was told nothing, however often it asked: a proxy, for example, writes an error to its log for each question.
    pub(super) fn was_silent(&self) {
        self.in_vain.fetch_add(1, Ordering::Relaxed);
    }

    /// There are answers; if none came, the server was slow or busy with a late watch.
    pub(super) fn has_answered(&self) {
        if !self.answers.load(Ordering::Relaxed) {
            self.answers.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn is_silent(&self) -> bool {
        self.in_vain.load(Ordering::Relaxed) >= IN_VAIN && !self.answers.load(Ordering::Relaxed)
    }
}

/// How a server of this version enters watches.
fn entering(version: &str) -> Entering {
    let (numbers, rest) = version.split_once('-').unwrap_or((version, ""));
    let numbers = numbers.split('+').next().unwrap_or_default();
    let mut numbers = numbers.split('.').map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch))) =
        (numbers.next(), numbers.next(), numbers.next())
    else {
        return Entering::NotKnown;
    };
    let version: Version = (major, minor, patch);
    // A version such as 3.6.0-rc.1 comes before 3.6.0, though its numbers are the same.
    let is_before = |release| version < release || (version == release && !rest.is_empty());
    let [.., last] = FIXED;
    let same_line = |fixed: &&Version| (fixed.0, fixed.1) == (version.0, version.1);
    if !is_before(*FIXED.iter().find(same_line).unwrap_or(&last)) {
        Entering::AtOnce
    } else if is_before(ASKABLE) {
        Entering::NotKnown
    } else {
        Entering::LateNowAndThen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_tell_which_servers_enter_watches_late() {
        for (told, versions) in [
            (
                Entering::LateNowAndThen,
                &[
                    "3.4.19",
                    "3.4.23",
                    "3.4.37",
                    "3.5.0",
                    "3.5.21",
                    "3.5.9+dirty",
                    "3.5.22-rc.0",
                    "3.6.0-rc.5",
                    "3.6.1",
                    "3.7.0-alpha.0",
                ][..],
            ),
            (
                Entering::AtOnce,
                &[
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
                ],
            ),
            (
                Entering::NotKnown,
                &[
                    "2.3.8",
                    "3.3.27",
                    "3.4.9",
                    "3.4.18",
                    "3.4.19-rc.1",
                    "",
                    "3.5",
                    "unknown",
                    "3.x.1",
                ],
            ),
        ] {
            for version in versions {
                assert_eq!(entering(version), told, "{version:?}");
            }
        }
    }

    #[test]
    fn who_is_silent_is_left_alone_and_who_ever_answers_is_not_silent() {
        let asking = Asking::default();
        asking.was_silent();
        assert!(!asking.is_silent(), "it may be one late watch");
        asking.was_silent();
        assert!(asking.is_silent());
        asking.has_answered();
        assert!(!asking.is_silent());
        asking.was_silent();
        asking.was_silent();
        assert!(!asking.is_silent(), "it was slow");
    }

    /// The one that has told its version enters watches at once; the one that gets the watch may be another.
    #[tokio::test]
    async fn of_several_servers_the_version_of_one_says_that_none_is_late() {
        // It is not connected before it is used.
        let client = etcd_client::Client::connect(["127.0.0.1:1"], None).await;
        let server = client.expect("a client").maintenance_client();
        let told = async |asking: Asking, entering| {
            asking.entering.set(entering).expect("once");
            asking.entering(server.clone(), Duration::ZERO).await
        };
        for entering in [
            Entering::AtOnce,
            Entering::LateNowAndThen,
            Entering::NotKnown,
        ] {
            assert_eq!(told(Asking::default(), entering).await, entering);
        }
        let several = Asking::of_several;
        assert_eq!(told(several(), Entering::AtOnce).await, Entering::NotKnown);
        let late = Entering::LateNowAndThen;
        assert_eq!(told(several(), late).await, late);
    }
}
