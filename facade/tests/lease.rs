//! `?lease=` in the URL, on the stores that need no server. The others are in the integration tests.
#![cfg(feature = "memory")]

use std::time::Duration;

use dlocks::{ErrorKind, Settings};

const FIVE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_url_gives_the_lease() {
    let locks = dlocks::connect("memory:leases?lease=5s").await.unwrap();
    assert_eq!(locks.lease(), FIVE);
    let same = dlocks::connect("memory:leases").await.unwrap();
    assert_eq!(locks.identity(), same.identity(), "the store is the same");
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    let left = same.inspect("x").await.unwrap().holders[0].expires_in;
    assert!(left.unwrap() <= FIVE, "the store has it: {left:?}");
    let _ = guard.release().await.unwrap();
}

#[tokio::test]
async fn a_setting_comes_before_the_url() {
    let with = |settings| {
        dlocks::builder("memory:?lease=5s")
            .settings(settings)
            .connect()
    };
    let locks = with(Settings::new().label("me")).await.unwrap();
    assert_eq!(locks.lease(), FIVE, "other settings leave it");
    let locks = with(Settings::new().lease(2 * FIVE)).await.unwrap();
    assert_eq!(locks.lease(), 2 * FIVE);
}

#[tokio::test]
async fn a_lease_that_cannot_be_is_refused() {
    for (url, expected) in [
        ("memory:?lease=soon", "lease=\"soon\""),
        ("memory:?lease=1ns", "the lease is 1ns"),
        ("memory:?lease=1s&lease=2s", "twice"),
    ] {
        let error = dlocks::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[cfg(feature = "file")]
#[tokio::test]
async fn a_store_without_leases_takes_the_word_too() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}/locks?lease=5s", folder.path().display());
    let locks = dlocks::connect(&url).await.unwrap();
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    assert_eq!(guard.valid_until(), None, "it ends with the process");
}
