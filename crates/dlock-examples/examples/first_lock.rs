//! What the pages of the stores show as the first lock, with the URL as its argument; a test runs it with each of them.
#![allow(clippy::print_stdout, reason = "an example talks to a person")]

// [first_lock]
#[tokio::main]
async fn main() -> Result<(), dlocks::Error> {
    let locks = dlocks::connect(&url()).await?;
    let guard = locks.mutex("stock:42")?.lock().await?;
    println!("mine, with token {:?}", guard.token());
    guard.release().await.map(drop)
}
// [end]

fn url() -> String {
    std::env::args().nth(1).unwrap_or("memory:".to_owned())
}
