//! Several stores at once, behind one type.
#![cfg(feature = "memory")]

use dlocks::{Capability, ErrorKind, Locks, Settings};
use std::time::Duration;

#[tokio::test]
async fn stores_are_swapped_at_run_time() {
    let mut current: Locks = dlocks::connect("memory:swap-a").await.unwrap();
    let guard = current.mutex("x").unwrap().lock().await.unwrap();
    let same = dlocks::connect("memory:swap-a").await.unwrap();
    assert!(same.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    current = dlocks::connect("memory:swap-b").await.unwrap();
    assert!(
        current
            .mutex("x")
            .unwrap()
            .try_lock()
            .await
            .unwrap()
            .is_some(),
        "another store, other locks"
    );
    assert!(guard.is_held(), "the guard keeps its store alive");
}

#[tokio::test]
async fn requirements_and_settings_are_checked_at_connect() {
    let error = dlocks::builder("memory:")
        .require(&[Capability::Fencing, Capability::NetworkWide])
        .connect()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("exclusion between machines"),
        "{error}"
    );
    let error = dlocks::builder("memory:")
        .settings(Settings::new().lease(Duration::ZERO))
        .connect()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn debug_output_has_no_url() {
    let text = format!("{:?}", dlocks::builder("memory://user:hunter2@h"));
    assert!(!text.contains("hunter2"), "{text}");
}
