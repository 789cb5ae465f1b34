//! A web handler that sells one item under a lock, with an update that a late holder cannot make.
//!
//! The lock keeps most requests from meeting in the database, and lets the handler do more than one statement in peace. The token closes the
//! hole that every lease has: a handler that was paused past its lease writes with an old token, and the row refuses it.
//!
//! `DATABASE_URL` names the database, `DLOCK_URL` the store of the locks (default: the same database).
#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use dlocks::{ErrorKind, FencingToken, Locks};
use sqlx::PgPool;

#[derive(Clone)]
struct Shop {
    locks: Locks,
    pool: PgPool,
}

async fn sell(State(shop): State<Shop>, Path(item): Path<i64>) -> (StatusCode, String) {
    match sell_one(&shop, item).await {
        Ok(Some(left)) => (StatusCode::OK, format!("sold, {left} left\n")),
        Ok(None) => (StatusCode::CONFLICT, "sold out\n".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

async fn sell_one(shop: &Shop, item: i64) -> Result<Option<i64>, Box<dyn Error + Send + Sync>> {
    let lock = shop.locks.mutex(format!("stock:{item}"))?;
    // The work is cancelled when the hold is lost, and the lock given back after the commit.
    let outcome = lock
        .run(async |guard| {
            let token = guard.token().ok_or("this store gives no tokens")?;
            fenced_sale(&shop.pool, item, token).await
        })
        .await;
    match outcome {
        Ok(sold) => sold,
        Err(error) if error.kind() == ErrorKind::Unreachable => {
            Err("the lock cannot be reached: try again".into())
        }
        Err(error) => Err(error.into()),
    }
}

/// `None` when nothing is left; an error when a later holder has written to the row.
async fn fenced_sale(
    pool: &PgPool,
    item: i64,
    token: FencingToken,
) -> Result<Option<i64>, Box<dyn Error + Send + Sync>> {
    let token = token
        .as_i64()
        .ok_or("the token does not fit into a bigint")?;
    let mut tx = pool.begin().await?;
    let fenced = sqlx::query("UPDATE stock SET fence = $2 WHERE id = $1 AND fence <= $2")
        .bind(item)
        .bind(token)
        .execute(&mut *tx)
        .await?;
    if fenced.rows_affected() == 0 {
        return Err("a later holder has written here".into());
    }
    let left: Option<(i64,)> = sqlx::query_as(
        "UPDATE stock SET items = items - 1 WHERE id = $1 AND items > 0 RETURNING items",
    )
    .bind(item)
    .fetch_optional(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(left.map(|(items,)| items))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let database = std::env::var("DATABASE_URL")?;
    let pool = PgPool::connect(&database).await?;
    for statement in [
        "CREATE TABLE IF NOT EXISTS stock (id bigint PRIMARY KEY, items bigint NOT NULL, fence bigint NOT NULL DEFAULT 0)",
        "INSERT INTO stock VALUES (42, 5) ON CONFLICT (id) DO UPDATE SET items = 5",
    ] {
        sqlx::query(statement).execute(&pool).await?;
    }
    let locks = dlocks::connect(&std::env::var("DLOCK_URL").unwrap_or(database)).await?;
    let shop = Shop { locks, pool };
    let app = Router::new()
        .route("/sell/{item}", post(sell))
        .with_state(shop.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}: curl -X POST http://{address}/sell/42");
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    // Ten buyers at once for five items, by plain HTTP; then a holder from long ago.
    let mut buyers = Vec::new();
    for _ in 0..10 {
        buyers.push(tokio::spawn(post_to(address)));
    }
    let mut sold = 0;
    for buyer in buyers {
        sold += u32::from(buyer.await??.starts_with("HTTP/1.1 200"));
    }
    println!("ten buyers, {sold} items sold");
    let late = fenced_sale(&shop.pool, 42, FencingToken::new(0)).await;
    println!(
        "a late holder: {}",
        late.map_or_else(|error| error.to_string(), |_| "sold!".to_owned())
    );
    server.abort();
    Ok(())
}

async fn post_to(address: std::net::SocketAddr) -> std::io::Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request = format!(
        "POST /sell/42 HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
