//! A worker that runs once among many. Each replica of your service runs `replica`; the elected one works until it resigns or is told that it
//! leads no more, and then another one does.
#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::time::Duration;

use dlocks::{Election, Error, Guard, Settings};
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("DLOCK_URL").unwrap_or("memory:leader".to_owned());
    let (tell, mut hear) = mpsc::unbounded_channel();
    let mut replicas = Vec::new();
    for number in 1..=3 {
        // As in three processes: each has a client of its own.
        let locks = dlocks::builder(&url)
            .settings(Settings::new().lease(Duration::from_secs(10)))
            .connect()
            .await?;
        let election = locks.election("reports")?;
        let tell = tell.clone();
        replicas.push(tokio::spawn(async move {
            replica(&election, &format!("replica-{number}"), &tell).await
        }));
    }
    drop(tell);
    let mut leaders = Vec::new();
    while let Some(line) = hear.recv().await {
        println!("{line}");
        leaders.push(line);
    }
    for replica in replicas {
        if let Ok(outcome) = replica.await {
            outcome?;
        }
    }
    println!("{} replicas led, one after the other", leaders.len());
    Ok(())
}

async fn replica(
    election: &Election,
    me: &str,
    tell: &mpsc::UnboundedSender<String>,
) -> Result<(), Error> {
    let leadership = election.campaign(me).await?;
    let token = leadership.token().map_or(0, |token| token.get());
    let _ = tell.send(format!("{me} leads, with token {token}"));
    tokio::select! {
        () = work(&leadership) => {}
        // Before anybody else can be elected: stop, and give nothing more out.
        reason = leadership.lost() => println!("{me} leads no more: {reason:?}"),
    }
    leadership.release().await.map(drop)
}

/// What the leader does. Here it has enough after three steps and resigns, as at a rolling restart.
async fn work(leadership: &Guard) {
    for _ in 0..3 {
        if !leadership.is_held() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
