//! The flash sale with the stock in a Redis.

use std::time::Duration;

use dlock_core::Locks;
use integration_tests::RedisServer;

const PURCHASES: usize = 100;
pub(crate) const STOCK: usize = integration_tests::WORKERS * PURCHASES;

pub(crate) async fn fill(shop: &RedisServer) {
    let stock = STOCK.to_string();
    shop.command(&["SET", "stock", &stock]).await.expect("SET");
}

pub(crate) async fn left(shop: &RedisServer) -> usize {
    let left = shop.command(&["GET", "stock"]).await.expect("GET");
    let left = left.text().expect("a stock");
    left.parse().expect("a number")
}

/// So many workers buy under the lock, each reading the stock and writing one less. Tells how many they got.
pub(crate) async fn sell(locks: Locks, shop: &str, workers: usize) -> usize {
    let connection = redis::Client::open(shop)
        .expect("a URL")
        .get_multiplexed_async_connection()
        .await
        .expect("a connection");
    let tasks: Vec<_> = (0..workers)
        .map(|_| {
            let (locks, mut connection) = (locks.clone(), connection.clone());
            tokio::spawn(async move {
                connection.set_response_timeout(Duration::from_secs(30));
                let mut sold = 0;
                for _ in 0..PURCHASES {
                    let mutex = locks.mutex("sale").expect("a name");
                    let guard = mutex.lock().await.expect("the lock");
                    let stock: i64 = redis::cmd("GET")
                        .arg("stock")
                        .query_async(&mut connection)
                        .await
                        .expect("GET");
                    if stock > 0 {
                        let () = redis::cmd("SET")
                            .arg("stock")
                            .arg(stock - 1)
                            .query_async(&mut connection)
                            .await
                            .expect("SET");
                        sold += 1;
                    }
                    let _ = guard.release().await.expect("release");
                }
                sold
            })
        })
        .collect();
    let mut sold = 0;
    for task in tasks {
        sold += task.await.expect("a worker");
    }
    locks.close().await.expect("close");
    sold
}
