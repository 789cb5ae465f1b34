#![doc = include_str!("../README.md")]

// Every block of Rust in these pages is compiled, and run unless it says that it is not. (Other pages show code of the tests: see ci/docs.)
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/getting-started.md")]
    struct GettingStarted;
    #[doc = include_str!("../../../docs/transactions.md")]
    struct Transactions;
    #[doc = include_str!("../../../docs/conformance.md")]
    struct Conformance;
    // Its other blocks are shown from a test, which compares them.
    #[doc = include_str!("../../../docs/write-a-backend.md")]
    struct WriteABackend;
    #[doc = include_str!("../../../docs/stores/etcd.md")]
    struct Etcd;
    #[doc = include_str!("../../../docs/stores/file.md")]
    struct File;
    #[doc = include_str!("../../../docs/stores/memory.md")]
    struct Memory;
    #[doc = include_str!("../../../docs/stores/mysql.md")]
    struct MySql;
    #[doc = include_str!("../../../docs/stores/postgres.md")]
    struct Postgres;
    #[doc = include_str!("../../../docs/stores/redis.md")]
    struct Redis;
    #[doc = include_str!("../../../docs/stores/redlock.md")]
    struct Redlock;
    #[doc = include_str!("../../../docs/stores/zookeeper.md")]
    struct ZooKeeper;
}
