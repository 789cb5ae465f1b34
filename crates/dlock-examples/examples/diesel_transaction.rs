//! Commit, then release, with diesel: its connections block, so the lock is that of `dlocks::blocking`, and everything inside `run`, the commit
//! included, comes before the lock is given back.
//!
//! The database is a file of SQLite. Inside the transaction a fence refuses the token of a holder that comes late, as [docs/guarantees.md] says for
//! every SQL row: the highest token that was seen stands beside what it protects.
//!
//! [docs/guarantees.md]: ../../../docs/guarantees.md
#![allow(clippy::print_stdout, reason = "an example talks to a person")]
#![allow(missing_docs, reason = "the macro of the table makes public items")]

use std::error::Error;
use std::path::Path;
use std::thread;

use diesel::prelude::*;
use diesel::result::Error::RollbackTransaction;
use dlocks::FencingToken;
use dlocks::blocking::{self, Mutex};

const BUYERS: usize = 4;
const EACH: usize = 10;

diesel::table! {
    stock (id) {
        id -> Integer,
        items -> BigInt,
        /// The highest token that was seen.
        token -> BigInt,
    }
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let folder = std::env::temp_dir().join(format!("dlock-diesel-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let outcome = sell(&folder);
    std::fs::remove_dir_all(&folder)?;
    println!("{} sold, {} left", BUYERS * EACH, outcome?);
    Ok(())
}

fn sell(folder: &Path) -> Result<i64, Box<dyn Error + Send + Sync>> {
    let database = folder.join("shop.sqlite").display().to_string();
    let mut connection = SqliteConnection::establish(&database)?;
    diesel::sql_query(
        "CREATE TABLE stock (id INTEGER PRIMARY KEY, items BIGINT NOT NULL, token BIGINT NOT NULL)",
    )
    .execute(&mut connection)?;
    let all = i64::try_from(BUYERS * EACH)?;
    diesel::insert_into(stock::table)
        .values((stock::id.eq(42), stock::items.eq(all), stock::token.eq(0)))
        .execute(&mut connection)?;

    let url =
        std::env::var("DLOCK_URL").unwrap_or(format!("file:{}", folder.join("locks").display()));
    let lock = blocking::connect(&url)?.mutex("stock:42")?;
    let buyers: Vec<_> = (0..BUYERS)
        .map(|_| {
            let (lock, database) = (lock.clone(), database.clone());
            thread::spawn(move || buy(&lock, &database))
        })
        .collect();
    for buyer in buyers {
        buyer.join().map_err(|_| "a buyer panicked")??;
    }
    let late = take_one(&mut connection, 1);
    println!(
        "a late holder is refused: {}",
        matches!(late, Err(RollbackTransaction))
    );
    let left = stock::table.find(42).select(stock::items);
    Ok(left.first(&mut connection)?)
}

fn buy(lock: &Mutex, database: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut connection = SqliteConnection::establish(database)?;
    for _ in 0..EACH {
        lock.run(|guard| {
            let token = guard.token().and_then(FencingToken::as_i64);
            take_one(&mut connection, token.ok_or("a store without tokens")?)?;
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        })??;
    }
    Ok(())
}

/// Reads, decides and writes. Without the lock two of these at once would sell one item twice.
fn take_one(connection: &mut SqliteConnection, token: i64) -> QueryResult<()> {
    connection.transaction(|connection| {
        // The check takes the row, so that a later holder's check comes after this transaction.
        let row = stock::table.filter(stock::id.eq(42).and(stock::token.le(token)));
        let seen = diesel::update(row)
            .set(stock::token.eq(token))
            .execute(connection)?;
        if seen == 0 {
            return Err(RollbackTransaction);
        }
        let items: i64 = stock::table
            .find(42)
            .select(stock::items)
            .first(connection)?;
        diesel::update(stock::table.find(42))
            .set(stock::items.eq(items - 1))
            .execute(connection)?;
        Ok(())
    })
}
