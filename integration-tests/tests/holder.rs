//! The helper process that holds a lock.

#![allow(
    clippy::unwrap_used,
    reason = "a test ends where its expectation breaks"
)]

use std::time::Duration;

use integration_tests::Holder;

const PROGRAM: &str = env!("CARGO_BIN_EXE_hold-lock");

async fn start(mode: &str) -> Holder {
    let lease = Some(Duration::from_secs(5));
    Holder::start(PROGRAM, "memory:", "a name", mode, lease)
        .await
        .unwrap()
}

#[tokio::test]
async fn it_holds_answers_and_gives_back_in_every_mode() {
    for mode in ["exclusive", "shared", "3"] {
        let mut holder = start(mode).await;
        assert!(holder.held().await.unwrap() > 0);
        assert!(holder.is_held().await.unwrap());
        assert_eq!(holder.release().await.unwrap(), "Freed");
        assert!(holder.event().await.is_err(), "it ends");
    }
}

#[tokio::test]
async fn it_can_be_stopped_continued_and_killed() {
    let mut holder = start("exclusive").await;
    holder.held().await.unwrap();
    holder.freeze().unwrap();
    holder.thaw().unwrap();
    assert!(holder.is_held().await.unwrap());
    holder.kill().await.unwrap();
    assert!(holder.event().await.is_err());
    assert!(holder.freeze().is_err());
}

#[tokio::test]
async fn a_mistake_is_told() {
    let error = Holder::start(PROGRAM, "nonsense", "a name", "exclusive", None)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("no scheme"), "{error}");
}
