//! Which faults each store is put to, and what is expected of it.

use super::faults::Fault;
use super::store::Store;

/// The verdict that is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// No checker finds anything, but updates that an unfenced register loses to a holder that was seen to stand still, or to write as its validity passed.
    Safe,
    /// Two may hold at once for a while, for this reason. The fenced register loses nothing all the same, and all is well afterwards.
    Hole(&'static str),
    /// As a hole, by a bug of the server that the reason names. It shows now and then, and cannot be forced.
    Bug(&'static str),
    /// Nobody holds beside another, but nobody may get in at all any more, by a bug of the server that the reason names. Allowed where the servers
    /// themselves show that it is theirs: none of them answers a client that is not ours.
    Stalls(&'static str),
}

impl Expected {
    /// As the table says it.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::Safe => "safe".to_owned(),
            Self::Hole(why) => format!("known hole: {why}"),
            Self::Bug(why) | Self::Stalls(why) => {
                format!("safe but for a bug of the server: {why}")
            }
        }
    }
}

const OLD_LEADER: &str = "before etcd 3.4.31 and 3.5.13 a leader that was replaced while it stood still ends leases that live";
const LOST_ACK: &str = "a ZooKeeper leader whose followers left it and came back may take the acknowledgement of a proposal for that of itself, and commits nothing any more (ZOOKEEPER-4685 and its like)";
const FORGETS: &str =
    "what the server forgets it gives again; the holder learns it at its next renewal";
const BY_HAND: &str = "the holder learns it at its next renewal";
const NOT_REPLICATED: &str = "replication is asynchronous: the replica may not know the hold";
const BY_THEIR_CLOCKS: &str =
    "leases run by the nodes' wall clocks, and those of a bare quorum are moved";
const BY_ITS_CLOCK: &str = "leases run by the server's wall clock";

/// What is expected, or why the two do not go together.
///
/// # Errors
/// The reason why there is no such scenario.
pub fn expected(store: Store, fault: Fault) -> Result<Expected, &'static str> {
    use Fault as F;
    use Store as S;
    let redis = matches!(store, S::Redis | S::Redlock);
    let mysql = store.mysql_mode().is_some();
    let postgres = matches!(store, S::Postgres | S::PostgresPair | S::PostgresSession);
    let group = matches!(store, S::EtcdCluster | S::ZkEnsemble | S::PostgresPair);
    match fault {
        _ if fault.is_of_network() && store == S::File => Err("there is no network"),
        F::ClientRate if store == S::File => Err("a hold has no lease"),
        F::ServerFrozen | F::ServerRestarted | F::ServerEmpty | F::ServerClock
            if store == S::File =>
        {
            Err("there is no server")
        }
        F::ServerEmpty if store == S::Redis => Ok(Expected::Hole(FORGETS)),
        F::ServerEmpty => Err("its servers keep their data"),
        F::ServerFrozen | F::ServerRestarted if store == S::PostgresPair => {
            Err("as for one server")
        }
        F::ServerFrozen if store == S::ZkEnsemble => Ok(Expected::Stalls(LOST_ACK)),
        F::ServerRestarted if matches!(store, S::RedisSentinel | S::RedisCluster) => {
            Err("see fail-over")
        }
        F::ServerClock => match store {
            S::Redis | S::MysqlLease | S::MysqlUnique => Ok(Expected::Hole(BY_ITS_CLOCK)),
            S::Etcd => Err(
                "its server is a Go program, which asks the kernel for the time past the C library: libfaketime does not reach it",
            ),
            S::MysqlSession | S::MysqlAdvisory => Ok(Expected::Safe),
            S::Redlock => Ok(Expected::Hole(BY_THEIR_CLOCKS)),
            S::Postgres | S::PostgresSession => {
                Err("its server is another user's than the clock, which cannot be shared")
            }
            _ => Err("as for one server, or not staged"),
        },
        F::ServerRate if redis => Ok(Expected::Safe),
        F::ServerRate => {
            Err("as for redis, or its leases do not run by the wall clock; see client-rate")
        }
        F::WritesRefused if redis || mysql || (postgres && store != S::PostgresPair) => {
            Ok(Expected::Safe)
        }
        F::WritesRefused => Err("not staged"),
        F::SaveFailed if redis => Ok(Expected::Safe),
        F::SaveFailed => Err("a fault of Redis"),
        F::OutOfMemory if redis => Ok(Expected::Safe),
        F::Eviction if store == S::Redis => Ok(Expected::Hole(FORGETS)),
        F::OutOfMemory | F::Eviction => Err("a fault of Redis"),
        F::ConnectionsKilled if redis || mysql || postgres => Ok(Expected::Safe),
        F::ConnectionsKilled => Err("see resets"),
        F::ConnectionLimit | F::LoginRefused if redis || mysql => Ok(Expected::Safe),
        F::ConnectionLimit | F::LoginRefused if postgres => {
            Err("postgres_states.rs; the role of these tests is the owner, whom no limit stops")
        }
        F::ConnectionLimit | F::LoginRefused => Err("not staged"),
        F::HoldDeleted => match store {
            S::Redis | S::Etcd | S::MysqlLease | S::MysqlUnique | S::Postgres => {
                Ok(Expected::Hole(BY_HAND))
            }
            S::Zk => Ok(Expected::Hole(BY_HAND)),
            // There `break_lock` ends the holder's connection, and the next one waits until the holder must know.
            S::MysqlSession | S::MysqlAdvisory | S::PostgresSession => Ok(Expected::Safe),
            _ => Err("as for one server, or locks cannot be broken"),
        },
        F::Compacted if store == S::Etcd => Ok(Expected::Safe),
        F::Compacted if store == S::EtcdCluster => Err("as for one server"),
        F::Compacted => Err("a fault of etcd"),
        F::LeaderKilled | F::LeaderFrozen | F::QuorumLost if store == S::PostgresPair => {
            Err("a standby becomes the primary when somebody says so: see fail-over")
        }
        F::LeaderFrozen if store == S::EtcdCluster => Ok(Expected::Bug(OLD_LEADER)),
        F::LeaderKilled | F::LeaderFrozen if group => Ok(Expected::Safe),
        F::LeaderFrozen if matches!(store, S::RedisSentinel | S::RedisCluster) => {
            Ok(Expected::Hole(NOT_REPLICATED))
        }
        F::LeaderKilled if matches!(store, S::RedisSentinel | S::RedisCluster) => {
            Err("see fail-over")
        }
        F::LeaderKilled | F::LeaderFrozen => Err("it has no leader"),
        F::QuorumLost if group || store == S::Redlock => Ok(Expected::Safe),
        F::QuorumLost => Err("it has no quorum"),
        F::SwitchOver if store == S::RedisSentinel => Ok(Expected::Hole(NOT_REPLICATED)),
        F::FailOver if matches!(store, S::RedisSentinel | S::RedisCluster) => {
            Ok(Expected::Hole(NOT_REPLICATED))
        }
        // Every commit waits for the standby, so it knows all that anybody was told.
        F::FailOver | F::SwitchOver if store == S::PostgresPair => Ok(Expected::Safe),
        F::SwitchOver if store == S::EtcdCluster => Ok(Expected::Safe),
        // The master takes no writes any more until the replica has all of them.
        F::SwitchOver if store == S::RedisCluster => Ok(Expected::Safe),
        F::SwitchOver | F::FailOver if postgres => Err("see postgres-pair"),
        F::SwitchOver | F::FailOver if mysql => Err("mysql_safety.rs switches over"),
        F::SwitchOver | F::FailOver => Err("see the leader's faults"),
        F::Resharding if store == S::RedisCluster => Ok(Expected::Safe),
        F::Resharding => Err("it has no slots"),
        F::NodeDown | F::NodeFrozen | F::NodeEmpty if store == S::Redlock => Ok(Expected::Safe),
        F::NodesForget if store == S::Redlock => Ok(Expected::Hole(
            "nodes that were said to keep their data forget the hold: two quorums without a node in common that knows",
        )),
        F::NodeDown | F::NodeFrozen | F::NodesForget | F::NodeEmpty => Err("a fault of Redlock"),
        _ => Ok(Expected::Safe),
    }
}

/// Every scenario of a store.
#[must_use]
pub fn of(store: Store) -> Vec<(Fault, Expected)> {
    let faults = Fault::ALL.into_iter();
    faults
        .filter_map(|fault| Some((fault, expected(store, fault).ok()?)))
        .collect()
}
