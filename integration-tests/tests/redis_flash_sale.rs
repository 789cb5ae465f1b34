//! The flash sale: 5000 items, 50 workers in 3 processes, 100 purchases each: read the stock, check it, write one less.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use integration_tests::{RedisServer, Sale};
use redis_support::sale::{STOCK, sell};
use redis_support::*;

#[tokio::test]
async fn the_stock_ends_at_zero_with_three_processes() {
    let server = RedisServer::start().await.expect("redis");
    sale::fill(&server).await;
    let sale = Sale::start(|workers| format!("{workers} {}", server.url()));
    assert_eq!(sale.sold().await, STOCK);
    assert_eq!(sale::left(&server).await, 0);
    server.command(&["DEL", "stock"]).await.expect("DEL");
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

/// Does nothing unless the test above has started it.
#[tokio::test]
async fn one_process_of_the_sale() {
    let Some(job) = Sale::job() else { return };
    let locks = client(&job[1]).await;
    Sale::tell(sell(locks, &job[1], job[0].parse().expect("a number")).await);
}
