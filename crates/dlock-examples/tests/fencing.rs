//! Fencing worked out for each place where protected data lives, on real servers. The parts between `// [name]` and `// [end]` are shown in
//! docs/guarantees.md, and `ci/docs` compares.
//!
//! Each test has a holder that was paused past its lease: its lock is broken by force, another one takes it and writes, and then the first
//! wakes up and writes too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex};

use dlocks::{Capability, ErrorKind, FencingToken, Guard, Locks};
use integration_tests::{EtcdServer, MySqlServer, PostgresServer, RedisServer, ZooKeeperServer};

type BoxResult<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

// [require]
/// Ask for it where you need it: a store without tokens is then refused when you connect.
async fn connect(url: &str) -> Result<Locks, dlocks::Error> {
    dlocks::builder(url)
        .require(&[Capability::Fencing])
        .connect()
        .await
}
// [end]

#[tokio::test]
async fn a_store_without_tokens_is_refused() -> BoxResult {
    let server = RedisServer::start().await?;
    let guard = connect(&server.url())
        .await?
        .mutex("stock:42")?
        .lock()
        .await?;
    assert!(guard.token().is_some());
    let plain = format!("{}?style=plain", server.url());
    let error = connect(&plain).await.expect_err("plain has no tokens");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    Ok(())
}

/// Two holds of one lock: the first one is over, and does not know it yet.
async fn late_and_now(late: &Locks, now: &Locks) -> BoxResult<(Guard, Guard)> {
    let first = late.mutex("stock:42")?.lock().await?;
    assert!(now.break_lock("stock:42").await?);
    let second = now.mutex("stock:42")?.lock().await?;
    assert!(first.token() < second.token(), "tokens increase");
    Ok((first, second))
}

fn token_of(guard: &Guard) -> FencingToken {
    guard.token().expect("this store gives tokens")
}

mod sql {
    use super::*;
    use dlocks::postgres::tokio_postgres::Client;

    // [sql]
    /// The row keeps the highest token that has written to it, and refuses a lower one. Whether it was a late holder is the number of rows.
    async fn sell_one(client: &mut Client, token: FencingToken) -> BoxResult {
        let token = token
            .as_i64()
            .ok_or("the token does not fit into a bigint")?;
        let tx = client.transaction().await?;
        let fenced = "UPDATE stock SET items = items - 1, fence = $1 WHERE id = 42 AND fence <= $1";
        if tx.execute(fenced, &[&token]).await? == 0 {
            return Err("a later holder has written here".into()); // dropping tx rolls back
        }
        tx.commit().await?;
        Ok(())
    }
    // [end]

    #[tokio::test]
    async fn a_row_refuses_a_late_holder() -> BoxResult {
        let server = PostgresServer::start().await?;
        let url = server.url();
        let (late, now) = (dlocks::connect(&url).await?, dlocks::connect(&url).await?);
        let mut client = dlocks::postgres::Config::from_url(&url)?.client().await?;
        let make = "CREATE TABLE stock (id bigint PRIMARY KEY, items bigint NOT NULL, fence bigint NOT NULL DEFAULT 0); \
                    INSERT INTO stock VALUES (42, 10)";
        client.batch_execute(make).await?;

        let (first, second) = late_and_now(&late, &now).await?;
        sell_one(&mut client, token_of(&second)).await?;
        let error = sell_one(&mut client, token_of(&first))
            .await
            .expect_err("late");
        assert_eq!(error.to_string(), "a later holder has written here");
        sell_one(&mut client, token_of(&second)).await?;
        let left: i64 = client
            .query_one("SELECT items FROM stock", &[])
            .await?
            .get(0);
        assert_eq!(left, 8);
        Ok(())
    }

    // [sql-many]
    /// Where one lock guards many rows, or rows that must not get a column: the token in a table of its own, in the same transaction.
    async fn sell_many(client: &mut Client, guard: &Guard) -> BoxResult {
        let fence = dlocks::postgres::fenced::Fence::new("public", "shop_")?; // its table is made once, by fence.table_sql()
        let token = guard.token().ok_or("this store gives no tokens")?;
        let tx = client.transaction().await?;
        fence.check(&tx, "stock:42", token).await?; // first: it locks the row of the resource until the commit
        tx.execute("UPDATE stock SET items = items - 1", &[])
            .await?;
        tx.commit().await?;
        Ok(())
    }
    // [end]

    #[tokio::test]
    async fn a_table_of_tokens_refuses_a_late_holder() -> BoxResult {
        let server = PostgresServer::start().await?;
        let url = server.url();
        let (late, now) = (dlocks::connect(&url).await?, dlocks::connect(&url).await?);
        let mut client = dlocks::postgres::Config::from_url(&url)?.client().await?;
        let fence = dlocks::postgres::fenced::Fence::new("public", "shop_")?;
        let make = "CREATE TABLE stock (id bigint PRIMARY KEY, items bigint NOT NULL); INSERT INTO stock VALUES (42, 10)";
        client.batch_execute(make).await?;
        client.batch_execute(fence.table_sql()).await?;

        let (first, second) = late_and_now(&late, &now).await?;
        sell_many(&mut client, &second).await?;
        let error = sell_many(&mut client, &first).await.expect_err("late");
        let kind = error
            .downcast_ref::<dlocks::Error>()
            .map(dlocks::Error::kind);
        assert_eq!(kind, Some(ErrorKind::Lost));
        let left: i64 = client
            .query_one("SELECT items FROM stock", &[])
            .await?
            .get(0);
        assert_eq!(left, 9);
        Ok(())
    }

    #[tokio::test]
    async fn the_same_statement_holds_on_mysql() -> BoxResult {
        use mysql_async::prelude::Queryable;
        let server = MySqlServer::start().await?;
        let url = server.url();
        let (late, now) = (dlocks::connect(&url).await?, dlocks::connect(&url).await?);
        let pool = mysql_async::Pool::new(url.split('?').next().unwrap_or_default());
        let mut connection = pool.get_conn().await?;
        connection
            .query_drop("CREATE TABLE stock (id BIGINT PRIMARY KEY, items BIGINT NOT NULL, fence BIGINT UNSIGNED NOT NULL DEFAULT 0)")
            .await?;
        connection
            .query_drop("INSERT INTO stock VALUES (42, 10, 0)")
            .await?;
        let (first, second) = late_and_now(&late, &now).await?;
        let fenced = "UPDATE stock SET items = items - 1, fence = ? WHERE id = 42 AND fence <= ?";
        for (token, rows) in [(token_of(&second), 1), (token_of(&first), 0)] {
            connection
                .exec_drop(fenced, (token.get(), token.get()))
                .await?;
            assert_eq!(connection.affected_rows(), rows);
        }
        drop(connection);
        pool.disconnect().await?;
        Ok(())
    }
}

mod redis {
    use super::*;
    use dlocks::redis::{Config, RedisBackend};

    // [redis]
    /// The key is written by one script that keeps the highest token beside it. `false`: a later holder has written already.
    async fn set_stock(redis: &RedisBackend, guard: &Guard, items: u32) -> BoxResult<bool> {
        let token = guard.token().ok_or("style=plain gives no tokens")?;
        let items = items.to_string();
        Ok(redis
            .fenced_set("stock:42:left", items.as_bytes(), token)
            .await?)
    }
    // [end]

    #[tokio::test]
    async fn a_key_refuses_a_late_holder() -> BoxResult {
        let server = RedisServer::start().await?;
        let redis = Arc::new(Config::from_url(&server.url())?.connect().await?);
        let late = Locks::new(redis.clone())?;
        let now = dlocks::connect(&server.url()).await?;

        let (first, second) = late_and_now(&late, &now).await?;
        assert!(set_stock(&redis, &second, 9).await?);
        assert!(!set_stock(&redis, &first, 10).await?);
        let reply = server.command(&["GET", "stock:42:left"]).await?;
        assert!(format!("{reply:?}").contains('9'), "{reply:?}");
        Ok(())
    }
}

mod etcd {
    use super::*;
    use dlocks::etcd::client::etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
    use dlocks::etcd::{Config, EtcdBackend};

    // [etcd]
    /// Where the data is in the same etcd no token is needed: the transaction itself asks whether the hold's key is still there.
    async fn put_stock(
        etcd: &mut Client,
        locks: &EtcdBackend,
        guard: &Guard,
        items: u32,
    ) -> BoxResult<bool> {
        let fence = locks.fence(guard).ok_or("a guard of several locks")?;
        let held = Compare::create_revision(fence.key, CompareOp::Equal, fence.create_revision);
        let put = TxnOp::put("stock/42", items.to_string(), None);
        let done = etcd.txn(Txn::new().when([held]).and_then([put])).await?;
        Ok(done.succeeded())
    }
    // [end]

    #[tokio::test]
    async fn a_key_refuses_a_late_holder() -> BoxResult {
        let server = EtcdServer::start().await?;
        let config = Config::from_url(&server.url())?;
        let endpoint = config.endpoints().into_iter().next().ok_or("an endpoint")?;
        let mut client = config.client(&endpoint).await?;
        let late_store = Arc::new(config.clone().connect().await?);
        let now_store = Arc::new(config.connect().await?);
        let (late, now) = (
            Locks::new(late_store.clone())?,
            Locks::new(now_store.clone())?,
        );

        let (first, second) = late_and_now(&late, &now).await?;
        assert!(put_stock(&mut client, &now_store, &second, 9).await?);
        assert!(!put_stock(&mut client, &late_store, &first, 10).await?);
        let got = client.get("stock/42", None).await?;
        assert_eq!(got.kvs().first().map(|kv| kv.value()), Some(&b"9"[..]));
        Ok(())
    }
}

mod zookeeper {
    use super::*;
    use dlocks::zk::{Config, ZkBackend};

    // [zk]
    /// Where the data is in the same ensemble: one transaction that also checks the hold's node.
    async fn set_stock(zk: &ZkBackend, guard: &Guard, items: u32) -> Result<(), dlocks::Error> {
        zk.fenced(guard)
            .set("/stock-42", items.to_string(), None)
            .commit()
            .await
    }
    // [end]

    #[tokio::test]
    async fn a_node_refuses_a_late_holder() -> BoxResult {
        let server = ZooKeeperServer::start().await?;
        let config = Config::from_url(&server.url())?;
        let late_store = Arc::new(config.clone().connect().await?);
        let now_store = Arc::new(config.connect().await?);
        let (late, now) = (
            Locks::new(late_store.clone())?,
            Locks::new(now_store.clone())?,
        );

        let (first, second) = late_and_now(&late, &now).await?;
        now_store
            .fenced(&second)
            .create("/stock-42", "10")
            .commit()
            .await?;
        set_stock(&now_store, &second, 9).await?;
        let error = set_stock(&late_store, &first, 10).await.expect_err("late");
        assert_eq!(error.kind(), ErrorKind::Lost);
        Ok(())
    }
}

mod object_store {
    use super::*;

    /// What a conditional write needs of a store of objects: a version of what was read, and a write that takes place only if that is still the
    /// version (`If-Match` with the ETag at S3, Azure and MinIO; `x-goog-if-generation-match` at Google). This one is in the process.
    #[derive(Default)]
    struct Bucket(Mutex<HashMap<String, (u64, Object)>>);

    #[derive(Clone, Default)]
    struct Object {
        /// In the object's metadata.
        token: u64,
        body: Vec<u8>,
    }

    impl Bucket {
        async fn get(&self, key: &str) -> (u64, Object) {
            self.0.lock().unwrap().get(key).cloned().unwrap_or_default()
        }

        async fn put_if_match(&self, key: &str, etag: u64, object: Object) -> bool {
            let mut objects = self.0.lock().unwrap();
            let now = objects.get(key).map_or(0, |(etag, _)| *etag);
            if now == etag {
                objects.insert(key.to_owned(), (now + 1, object));
            }
            now == etag
        }
    }

    // [object]
    /// The token is in the object's metadata. Read it, refuse if it is higher than ours, and write on condition that nobody has written since.
    async fn put(bucket: &Bucket, key: &str, token: FencingToken, body: &[u8]) -> BoxResult {
        loop {
            let (etag, before) = bucket.get(key).await;
            if before.token > token.get() {
                return Err("a later holder has written here".into());
            }
            let object = Object {
                token: token.get(),
                body: body.to_vec(),
            };
            if bucket.put_if_match(key, etag, object).await {
                return Ok(());
            }
            // Somebody wrote in between. Perhaps a late holder, whom we may overwrite; perhaps a later one: read again.
        }
    }
    // [end]

    #[tokio::test]
    async fn an_object_refuses_a_late_holder() -> BoxResult {
        let bucket = Bucket::default();
        let store = dlocks::memory::MemoryBackend::new();
        let (late, now) = (
            Locks::new(store.another_client())?,
            Locks::new(store.another_client())?,
        );
        let (first, second) = late_and_now(&late, &now).await?;
        put(&bucket, "report", token_of(&second), b"new").await?;
        put(&bucket, "report", token_of(&first), b"old")
            .await
            .expect_err("late");
        assert_eq!(bucket.get("report").await.1.body, b"new");
        Ok(())
    }
}

mod http {
    use super::*;

    // [http]
    /// In the service that owns the resource. The client sends its token with each change, as in `Fencing-Token: 1763430000000001`.
    /// Keep `highest` where the resource is kept, and change both in one step: in memory it would be forgotten with a restart.
    fn admit(
        highest: &mut HashMap<String, u64>,
        resource: &str,
        header: &str,
    ) -> Result<(), (u16, &'static str)> {
        let token: u64 = header
            .parse()
            .map_err(|_| (400, "Fencing-Token is not a number"))?;
        let seen = highest.entry(resource.to_owned()).or_default();
        if token < *seen {
            return Err((409, "a later holder has been here"));
        }
        *seen = token;
        Ok(())
    }
    // [end]

    #[tokio::test]
    async fn a_service_refuses_a_late_holder() -> BoxResult {
        let mut highest = HashMap::new();
        let store = dlocks::memory::MemoryBackend::new();
        let (late, now) = (
            Locks::new(store.another_client())?,
            Locks::new(store.another_client())?,
        );
        let (first, second) = late_and_now(&late, &now).await?;
        let mut send =
            |guard: &Guard| admit(&mut highest, "stock:42", &token_of(guard).to_string());
        assert_eq!(send(&second), Ok(()));
        assert_eq!(send(&first), Err((409, "a later holder has been here")));
        assert_eq!(send(&second), Ok(()), "the holder may write again");
        assert_eq!(
            admit(&mut highest, "stock:42", "x"),
            Err((400, "Fencing-Token is not a number"))
        );
        Ok(())
    }
}
