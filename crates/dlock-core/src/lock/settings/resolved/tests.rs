use super::*;

fn check(settings: Settings) -> Result<ResolvedSettings> {
    settings.check(&Capabilities::new("test"))
}

#[test]
fn defaults_are_thirty_seconds_and_a_third() {
    let checked = check(Settings::new()).expect("defaults");
    assert_eq!(checked.lease, Duration::from_secs(30));
    assert_eq!(checked.renew_every, Some(Duration::from_secs(10)));
    assert_eq!(checked.validity, Some(Duration::from_millis(29_698)));
    assert!(checked.label.contains(&format!(":{}", std::process::id())));
}

#[test]
fn bad_settings_say_what_to_do() {
    let second = Duration::from_secs(1);
    for (settings, expected) in [
        (Settings::new().lease(Duration::ZERO), "the lease is 0ns"),
        (Settings::new().lease(Duration::MAX), "the lease is"),
        (
            Settings::new().lease(second).renew_every(second),
            "must be from 5ms to 500ms",
        ),
        (
            Settings::new().renew_every(Duration::ZERO),
            "the renewal interval is 0ns",
        ),
        (
            Settings::new().trip_timeout(Duration::ZERO),
            "the trip time-out is 0ns",
        ),
        (
            Settings::new().max_hold(Duration::ZERO),
            "the maximum hold is 0ns",
        ),
        (Settings::new().local_turns(0), "local_turns is 0"),
        (
            Settings::new().readers_join(true).local_turns(1),
            "readers join a hold to save a trip",
        ),
        (
            Settings::new().readers_join(true).order(Order::Strict),
            "readers join a hold to save a trip",
        ),
        (
            Settings::new().readers_join(true).max_hold(second),
            "leave max_hold or readers_join out",
        ),
        (Settings::new().label("a\nb"), "control character"),
        (Settings::new().label("x".repeat(2000)), "limit is 1024"),
    ] {
        let error = check(settings).expect_err(expected);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_session_store_refuses_another_lease() {
    let ttl = Duration::from_secs(6);
    let mut capabilities = Capabilities::new("session");
    capabilities.liveness = Liveness::Session { ttl };
    let error = Settings::new()
        .lease(Duration::from_secs(30))
        .check(&capabilities)
        .expect_err("another lease than the session's");
    assert!(error.to_string().contains("live as long as its session"));
    let checked = Settings::new().check(&capabilities).expect("no lease");
    assert_eq!(checked.lease, ttl);
}

#[test]
fn a_hold_of_a_store_that_may_be_early_ends_sooner_and_is_renewed_sooner() {
    let mut capabilities = Capabilities::new("early");
    capabilities.early_expiry = Duration::from_secs(9);
    let lease = Duration::from_secs(30);
    let checked = Settings::new().lease(lease).check(&capabilities);
    let checked = checked.expect("settings");
    let margin = drift_margin(lease) + Duration::from_secs(9);
    assert_eq!(checked.validity, Some(lease - margin));
    assert_eq!(checked.renew_every, Some(Duration::from_secs(7)));
    // However early a store says that it may be, half of the lease is left.
    capabilities.early_expiry = Duration::MAX;
    let checked = Settings::new().lease(lease).check(&capabilities);
    assert!(checked.expect("settings").validity > Some(Duration::from_secs(14)));
}

#[test]
fn a_process_bound_store_has_no_deadline() {
    let mut capabilities = Capabilities::new("file");
    capabilities.liveness = Liveness::Process;
    let checked = Settings::new().check(&capabilities).expect("defaults");
    assert_eq!(checked.validity, None);
    assert_eq!(checked.renew_every, None);
}
