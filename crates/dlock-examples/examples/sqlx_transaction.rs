//! Commit, then release: everything inside `run`, the commit included, comes before the lock is given back. The other order protects nothing,
//! because the next holder reads what is not committed yet.
//!
//! `DATABASE_URL` names the database, `DLOCK_URL` the store of the locks (default: the same database).
#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;

use dlocks::Mutex;
use sqlx::PgPool;

const TRANSFERS: u32 = 20;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let database = std::env::var("DATABASE_URL")?;
    let pool = PgPool::connect(&database).await?;
    for statement in [
        "CREATE TABLE IF NOT EXISTS accounts (id bigint PRIMARY KEY, cents bigint NOT NULL)",
        "INSERT INTO accounts VALUES (1, 1000), (2, 0) ON CONFLICT (id) DO UPDATE SET cents = EXCLUDED.cents",
    ] {
        sqlx::query(statement).execute(&pool).await?;
    }
    let locks = dlocks::connect(&std::env::var("DLOCK_URL").unwrap_or(database)).await?;
    let lock = locks.mutex("accounts:1+2")?;

    let mut transfers = Vec::new();
    for _ in 0..TRANSFERS {
        let (pool, lock) = (pool.clone(), lock.clone());
        transfers.push(tokio::spawn(
            async move { transfer(&pool, &lock, 50).await },
        ));
    }
    for transfer in transfers {
        transfer.await??;
    }
    let cents: Vec<(i64,)> = sqlx::query_as("SELECT cents FROM accounts ORDER BY id")
        .fetch_all(&pool)
        .await?;
    println!("after {TRANSFERS} transfers of 50: {cents:?}");
    Ok(())
}

/// Reads both balances, decides, and writes both. At READ COMMITTED two of these at once would lose money.
async fn transfer(
    pool: &PgPool,
    lock: &Mutex,
    amount: i64,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    lock.run(async |_| {
        let mut tx = pool.begin().await?;
        let (from,): (i64,) = sqlx::query_as("SELECT cents FROM accounts WHERE id = 1")
            .fetch_one(&mut *tx)
            .await?;
        let (to,): (i64,) = sqlx::query_as("SELECT cents FROM accounts WHERE id = 2")
            .fetch_one(&mut *tx)
            .await?;
        for (id, cents) in [(1, from - amount), (2, to + amount)] {
            sqlx::query("UPDATE accounts SET cents = $2 WHERE id = $1")
                .bind(id)
                .bind(cents)
                .execute(&mut *tx)
                .await?;
        }
        // Inside: the lock is given back after this.
        tx.commit().await
    })
    .await??;
    Ok(())
}
