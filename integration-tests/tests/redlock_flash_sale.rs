//! The flash sale on a quorum: 50 workers in 3 processes, while a node is killed and comes back.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;
mod redlock_support;

use std::time::Duration;

use dlock_core::Settings;
use integration_tests::{RedisServer, Sale};
use redis_support::residue;
use redis_support::sale::{self, STOCK, sell};
use redlock_support::*;

#[tokio::test]
async fn the_stock_ends_at_zero_while_a_node_dies_and_comes_back() {
    let five = start(5).await.expect("servers");
    let shop = RedisServer::start().await.expect("redis");
    sale::fill(&shop).await;
    // The nodes are new, and count after the longest lease.
    let url = five.url("?longest_lease=2s");
    let sale = Sale::start(|workers| format!("{workers} {} {url}", shop.url()));
    sold(&shop, STOCK / 5).await;
    five.servers[1].kill();
    sold(&shop, STOCK * 2 / 5).await;
    five.servers[1].restart().await.expect("restart");
    assert_eq!(sale.sold().await, STOCK);
    assert_eq!(sale::left(&shop).await, 0);
    for server in &five.servers {
        assert_eq!(residue(server).await, Vec::<String>::new());
    }
}

/// Resolves when so many are sold.
async fn sold(shop: &RedisServer, count: usize) {
    let limit = Duration::from_secs(120);
    integration_tests::until("the sale is under way", limit, || async {
        match sale::left(shop).await {
            left if left <= STOCK - count => Ok(()),
            left => Err(integration_tests::Error::answer(
                "GET stock",
                left.to_string(),
            )),
        }
    })
    .await
    .expect("a sale");
}

/// Does nothing unless the test above has started it.
#[tokio::test]
async fn one_process_of_the_sale() {
    let Some(job) = Sale::job() else { return };
    let settings = Settings::new()
        .lease(Duration::from_secs(2))
        .retry_unreachable_for(Duration::from_secs(30));
    let locks = client_with(&job[2], settings).await;
    Sale::tell(sell(locks, &job[1], job[0].parse().expect("a number")).await);
}
