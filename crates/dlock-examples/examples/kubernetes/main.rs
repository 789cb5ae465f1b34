//! What the pods of `deployment.yaml` run: three replicas with their locks in etcd, of which one works at a time.
//!
//! `DLOCK_URL` names the store and `POD_NAME` the replica; the manifest sets both. A pod that Kubernetes ends (SIGTERM) gives its place away
//! before it goes, so a rolling update has no pause longer than one hand-off; one that vanishes is followed when its session has ended.
#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;
use std::time::Duration;

use dlocks::Guard;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let url = std::env::var("DLOCK_URL")?;
    let me = std::env::var("POD_NAME")?;
    let mut told_to_end = signal(SignalKind::terminate())?;
    let locks = dlocks::connect(&url).await?;
    let election = locks.election("reports")?;
    println!("{me} stands for election");
    loop {
        let leadership = tokio::select! {
            elected = election.campaign(me.as_str()) => elected?,
            _ = told_to_end.recv() => break,
        };
        let token = leadership.token().map_or(0, |token| token.get());
        println!("{me} leads, with token {token}");
        let is_over = tokio::select! {
            () = work(&leadership) => false,
            // Before anybody else can be elected: stop, and stand again.
            reason = leadership.lost() => {
                println!("{me} leads no more: {reason:?}");
                false
            }
            _ = told_to_end.recv() => true,
        };
        let _how_it_ended = leadership.release().await?;
        if is_over {
            break;
        }
    }
    // Nothing stays in the store: the next one need not wait for a session to end.
    locks.close().await?;
    println!("{me} has gone");
    Ok(())
}

/// What the leader does for as long as it leads.
async fn work(leadership: &Guard) {
    while leadership.is_held() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
