//! What a client tells, as JSON.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, UNIX_EPOCH};

use dlock_core::{FencingToken, HolderInfo, LockInfo, Locks, Mode, Name, WaiterInfo};
use serde_json::{from_value, json, to_value};

fn full() -> LockInfo {
    let mut info = LockInfo::new(Name::new("stock:42").unwrap());
    let mut holder = HolderInfo::new("a1", Mode::Permit { limit: 3 });
    holder.label = "job@host:7".to_owned();
    holder.token = Some(FencingToken::new(i64::MAX as u64));
    holder.since = Some(UNIX_EPOCH + Duration::from_millis(1_500));
    holder.expires_in = Some(Duration::from_millis(250));
    info.holders.push(holder);
    info.holders.push(HolderInfo::new("a2", Mode::Exclusive));
    info.waiters.push(WaiterInfo::new("a3", Mode::Shared));
    info
}

#[test]
fn a_lock_goes_through_json_and_back() {
    let value = to_value(full()).unwrap();
    assert_eq!(value["name"], "stock:42");
    assert_eq!(value["holders"][0]["mode"], json!({"permit": {"limit": 3}}));
    assert_eq!(value["holders"][0]["token"], i64::MAX.to_string());
    assert_eq!(value["holders"][1]["mode"], "exclusive");
    assert_eq!(value["waiters"][0]["mode"], "shared");
    assert_eq!(from_value::<LockInfo>(value).unwrap(), full());
}

#[test]
fn a_lock_of_another_version_is_read() {
    let mut value = to_value(full()).unwrap();
    let holder = value["holders"][1].as_object_mut().unwrap();
    holder.remove("token");
    holder.insert("colour".to_owned(), json!("blue"));
    assert_eq!(from_value::<LockInfo>(value).unwrap(), full());
}

#[test]
fn a_name_is_checked_on_the_way_in() {
    assert_eq!(
        from_value::<Name>(json!("a b")).unwrap(),
        Name::new("a b").unwrap()
    );
    for (bad, why) in [
        (json!(""), "empty"),
        (json!("a\nb"), "control character"),
        (json!("x".repeat(256)), "256 bytes"),
        (json!(7), "string"),
    ] {
        let error = from_value::<Name>(bad).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let mut lock = to_value(full()).unwrap();
    lock["name"] = json!("");
    assert!(from_value::<LockInfo>(lock).is_err());
}

#[test]
fn a_token_is_a_number_that_bigint_holds() {
    let highest = i64::MAX as u64;
    let exact = (1 << 53) - 1;
    for good in [0, 1, exact, exact + 1, exact + 2, highest] {
        let token = FencingToken::new(good);
        let text = json!(good.to_string());
        // Whoever reads numbers as doubles takes 2^53 and 2^53 + 1 for the same.
        let written = if good > exact { &text } else { &json!(good) };
        assert_eq!(to_value(token).unwrap(), *written);
        assert_eq!(from_value::<FencingToken>(json!(good)).unwrap(), token);
        assert_eq!(from_value::<FencingToken>(text).unwrap(), token);
        assert_eq!(token.as_i64(), Some(good as i64));
    }
    for bad in [
        json!(highest + 1),
        json!((highest + 1).to_string()),
        json!(u64::MAX),
        json!(-1),
        json!("-1"),
        json!("1.0"),
        json!("one"),
        json!(1.5),
    ] {
        assert!(from_value::<FencingToken>(bad.clone()).is_err(), "{bad}");
    }
    let error = to_value(FencingToken::new(highest + 1)).unwrap_err();
    assert!(error.to_string().contains("BIGINT"), "{error}");
    assert_eq!(FencingToken::new(highest + 1).as_i64(), None);
}

#[tokio::test]
async fn statistics_are_written() {
    let locks = Locks::new(dlock_memory::MemoryBackend::new()).unwrap();
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    let value = to_value(locks.stats()).unwrap();
    assert_eq!((&value["acquired"], &value["held"]), (&json!(1), &json!(1)));
    assert_eq!(value["losses"]["expired"], 0);
    assert_eq!(value["wait"]["count"], 1);
    assert!(value["wait"]["p99"]["nanos"].is_number(), "{value}");
    let _ = guard.release().await.unwrap();
}
