//! What goes wrong: each fault happens, lasts a while, and is over when the call returns.

mod cuts;
mod servers;
mod strike;
mod time;

use serde::{Deserialize, Serialize};

use super::store::Store;
use crate::Error;

/// How much of a fault that has many places is staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A share of them, which the dice choose: seconds.
    Share,
    /// All of them: minutes.
    Whole,
}

/// Which fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "`text` says what each does")]
pub enum Fault {
    None,
    HolderStoppedShort,
    HolderStoppedLong,
    WaiterStopped,
    WaiterStoppedShort,
    HolderKilled,
    WaiterKilled,
    GranteeKilled,
    RuntimeBlocked,
    ClientClock,
    ClientRate,
    Partition,
    CutToServer,
    CutToClient,
    HalfOpen,
    Latency,
    Jitter,
    RepliesLost,
    RequestsLate,
    Resets,
    CutAtBytes,
    ServerFrozen,
    ServerRestarted,
    ServerEmpty,
    ServerClock,
    ServerRate,
    WritesRefused,
    SaveFailed,
    OutOfMemory,
    Eviction,
    ConnectionsKilled,
    ConnectionLimit,
    LoginRefused,
    HoldDeleted,
    Compacted,
    LeaderKilled,
    LeaderFrozen,
    QuorumLost,
    SwitchOver,
    FailOver,
    Resharding,
    NodeDown,
    NodeFrozen,
    NodesForget,
    NodeEmpty,
}

impl Fault {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 45] = [
        Self::None,
        Self::HolderStoppedShort,
        Self::HolderStoppedLong,
        Self::WaiterStopped,
        Self::WaiterStoppedShort,
        Self::HolderKilled,
        Self::WaiterKilled,
        Self::GranteeKilled,
        Self::RuntimeBlocked,
        Self::ClientClock,
        Self::ClientRate,
        Self::Partition,
        Self::CutToServer,
        Self::CutToClient,
        Self::HalfOpen,
        Self::Latency,
        Self::Jitter,
        Self::RepliesLost,
        Self::RequestsLate,
        Self::Resets,
        Self::CutAtBytes,
        Self::ServerFrozen,
        Self::ServerRestarted,
        Self::ServerEmpty,
        Self::ServerClock,
        Self::ServerRate,
        Self::WritesRefused,
        Self::SaveFailed,
        Self::OutOfMemory,
        Self::Eviction,
        Self::ConnectionsKilled,
        Self::ConnectionLimit,
        Self::LoginRefused,
        Self::HoldDeleted,
        Self::Compacted,
        Self::LeaderKilled,
        Self::LeaderFrozen,
        Self::QuorumLost,
        Self::SwitchOver,
        Self::FailOver,
        Self::Resharding,
        Self::NodeDown,
        Self::NodeFrozen,
        Self::NodesForget,
        Self::NodeEmpty,
    ];

    /// Its name, and what it does.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::None => ("none", "nothing goes wrong"),
            Self::HolderStoppedShort => (
                "holder-stopped-short",
                "the holder's process is stopped for a third of its lease",
            ),
            Self::HolderStoppedLong => (
                "holder-stopped-long",
                "the holder's process is stopped for longer than its lease",
            ),
            Self::WaiterStopped => (
                "waiter-stopped",
                "a waiter's process is stopped for longer than the lease; its turn comes meanwhile",
            ),
            Self::WaiterStoppedShort => (
                "waiter-stopped-short",
                "a waiter's process is stopped for a third of the lease",
            ),
            Self::HolderKilled => ("holder-killed", "the holder's process is killed (SIGKILL)"),
            Self::WaiterKilled => ("waiter-killed", "a waiter's process is killed (SIGKILL)"),
            Self::GranteeKilled => (
                "grantee-killed",
                "a waiter's process stands still when the lock is given to it, and is killed before it knows",
            ),
            Self::RuntimeBlocked => (
                "runtime-blocked",
                "the holder's runtime is blocked for longer than the lease",
            ),
            Self::ClientClock => (
                "client-clock",
                "the wall clock of all clients jumps an hour ahead, then two back",
            ),
            Self::ClientRate => (
                "client-rate",
                "the clocks of the three clients run half a percent slow, right and half a percent fast, and holders are cut off until their holds must have ended",
            ),
            Self::Partition => (
                "partition",
                "nothing passes between the holder and the store, for longer than the lease",
            ),
            Self::CutToServer => (
                "cut-to-server",
                "nothing passes from the holder to the store",
            ),
            Self::CutToClient => (
                "cut-to-client",
                "nothing passes from the store to the holder",
            ),
            Self::HalfOpen => (
                "half-open",
                "the holder's connections fall silent; new ones work",
            ),
            Self::Latency => ("latency", "every round trip takes a third of the lease"),
            Self::Jitter => (
                "jitter",
                "every way has a delay of its own, up to a sixth of the lease, that changes all the time",
            ),
            Self::RepliesLost => (
                "replies-lost",
                "replies are lost after the store has done the work, one after the other",
            ),
            Self::RequestsLate => (
                "requests-late",
                "what the holder sends arrives later than its lease, all at once",
            ),
            Self::Resets => ("resets", "connections are reset again and again"),
            Self::CutAtBytes => (
                "cut-at-bytes",
                "connections are reset in the midst of requests and replies: at a share of all bytes from a new connection to a grant, which the seed chooses, or at each of them (`--bytes all`)",
            ),
            Self::ServerFrozen => (
                "server-frozen",
                "all servers stand still for longer than the lease",
            ),
            Self::ServerRestarted => (
                "server-restarted",
                "all servers are killed and come back with their data",
            ),
            Self::ServerEmpty => (
                "server-empty",
                "the server is killed and comes back without data",
            ),
            Self::ServerClock => (
                "server-clock",
                "the server's wall clock jumps an hour ahead, and back; with Redlock those of two of the three nodes",
            ),
            Self::ServerRate => (
                "server-rate",
                "the server's wall clock runs half a percent fast from its start (Redlock: one node's slow, one right, one fast), and holders are cut off until their holds must have ended",
            ),
            Self::WritesRefused => (
                "writes-refused",
                "the server refuses writes for longer than the lease",
            ),
            Self::SaveFailed => (
                "save-failed",
                "the server cannot save its data and refuses writes, for longer than the lease",
            ),
            Self::OutOfMemory => (
                "out-of-memory",
                "the server has no memory for writes, for longer than the lease",
            ),
            Self::Eviction => ("eviction", "the server evicts keys to make room"),
            Self::ConnectionsKilled => (
                "connections-killed",
                "an administrator ends all connections, several times",
            ),
            Self::ConnectionLimit => (
                "connection-limit",
                "all connections end, and the server takes no new ones for longer than the lease",
            ),
            Self::LoginRefused => (
                "login-refused",
                "all connections end, and the login of the clients is refused for longer than the lease",
            ),
            Self::HoldDeleted => (
                "hold-deleted",
                "an administrator deletes what the store keeps of the holds",
            ),
            Self::Compacted => (
                "compacted",
                "connections are reset, and what watches were at is compacted before they are back, several times",
            ),
            Self::LeaderKilled => ("leader-killed", "the leader is killed, and comes back"),
            Self::LeaderFrozen => (
                "leader-frozen",
                "the leader, or the master, stands still until another has taken its place, and goes on",
            ),
            Self::QuorumLost => (
                "quorum-lost",
                "most servers stand still for longer than the lease",
            ),
            Self::SwitchOver => ("switch-over", "a planned fail-over to the replica"),
            Self::FailOver => (
                "fail-over",
                "the master is killed and its replica takes over",
            ),
            Self::Resharding => ("resharding", "slots move to another node under load"),
            Self::NodeDown => (
                "node-down",
                "one of three nodes is down, and comes back with its data",
            ),
            Self::NodeFrozen => (
                "node-frozen",
                "one of three nodes stands still for longer than the lease",
            ),
            Self::NodesForget => (
                "nodes-forget",
                "a bare quorum of nodes is killed and comes back without data, though it was said to keep it",
            ),
            Self::NodeEmpty => (
                "node-empty",
                "one of three nodes, which keep no data, is killed and comes back without any",
            ),
        }
    }

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.words().0
    }

    /// What it does.
    #[must_use]
    pub fn text(self) -> &'static str {
        self.words().1
    }

    /// The fault of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.as_str() == name)
    }

    /// Whether it happens to the servers, so that no other scenario may use them meanwhile.
    #[must_use]
    pub fn hits_servers(self) -> bool {
        self >= Self::ServerFrozen
    }

    /// The rates of clocks that run too slow, right and too fast: by half of what the contract allows. Of clients or of servers.
    pub(crate) const RATES: [f64; 3] = [0.995, 1.0, 1.005];

    /// Whether clocks run at other rates, so that a hold must last to the end of its lease for anything to be seen.
    pub(crate) fn is_of_rates(self) -> bool {
        matches!(self, Self::ClientRate | Self::ServerRate)
    }

    /// Whether it needs proxies between workers and servers.
    pub(crate) fn is_of_network(self) -> bool {
        self >= Self::Partition && self < Self::ServerFrozen
    }
}

fn not_for(fault: Fault, store: Store) -> Error {
    Error::answer(fault.as_str(), format!("not a fault of {}", store.as_str()))
}
