use super::*;

#[test]
fn display_names_backend_operation_and_lock() {
    let name = Name::new("stock:42").expect("a good name");
    let error = Error::new(ErrorKind::Unreachable, "connection refused")
        .context("redis", Operation::Acquire, Some(&name))
        .context("other", Operation::Close, None);
    assert_eq!(
        error.to_string(),
        "redis: acquire \"stock:42\": store unreachable: connection refused"
    );
}

#[test]
fn doubt_follows_from_the_kind() {
    for (kind, held) in [
        (ErrorKind::Invalid, HeldNow::No),
        (ErrorKind::TooLate, HeldNow::No),
        (ErrorKind::Unreachable, HeldNow::Unknown),
        (ErrorKind::TimedOut, HeldNow::Unknown),
        (ErrorKind::Store, HeldNow::Unknown),
    ] {
        assert_eq!(Error::new(kind, "").held_now(), held, "{kind:?}");
    }
}

/// Every kind, with what it says of itself about a retry. The match below makes a new kind stop the build here.
pub(crate) const KINDS: [(ErrorKind, bool); 11] = [
    (ErrorKind::Invalid, false),
    (ErrorKind::Unsupported, false),
    (ErrorKind::Unreachable, true),
    (ErrorKind::TimedOut, true),
    (ErrorKind::Denied, false),
    (ErrorKind::Store, true),
    (ErrorKind::TooLate, true),
    (ErrorKind::Lost, false),
    (ErrorKind::Conflict, false),
    (ErrorKind::Busy, true),
    (ErrorKind::Closed, false),
];

fn row_of(kind: ErrorKind) -> usize {
    match kind {
        ErrorKind::Invalid => 0,
        ErrorKind::Unsupported => 1,
        ErrorKind::Unreachable => 2,
        ErrorKind::TimedOut => 3,
        ErrorKind::Denied => 4,
        ErrorKind::Store => 5,
        ErrorKind::TooLate => 6,
        ErrorKind::Lost => 7,
        ErrorKind::Conflict => 8,
        ErrorKind::Busy => 9,
        ErrorKind::Closed => 10,
    }
}

#[test]
fn what_was_sent_is_in_doubt_whatever_kind_of_error_follows() {
    for (row, (kind, retryable)) in KINDS.into_iter().enumerate() {
        assert_eq!(row_of(kind), row, "{kind:?} stands in its row");
        for before in [HeldNow::No, HeldNow::Yes, HeldNow::Unknown] {
            let error = Error::new(kind, "no answer").with_held(before);
            let sent = error.clone().after_sending(true);
            assert_eq!(sent.held_now(), HeldNow::Unknown, "{kind:?}, sent");
            let kept = error.after_sending(false);
            assert_eq!(kept.held_now(), HeldNow::No, "{kind:?}, not sent");
            for error in [sent, kept] {
                assert_eq!(error.kind(), kind, "doubt does not change the kind");
                assert_eq!(error.is_retryable(), retryable, "{kind:?}");
                assert_eq!(error.message(), "no answer");
            }
        }
    }
}

#[test]
fn a_clone_says_the_same_and_shares_the_cause() {
    let name = Name::new("stock:42").expect("a good name");
    let cause = std::io::Error::from_raw_os_error(111);
    let error = Error::new(ErrorKind::Unreachable, "connection refused")
        .with_source(cause)
        .with_held(HeldNow::Yes)
        .with_retryable(false)
        .context("redis", Operation::Release, Some(&name));
    let copy = error.clone();
    assert_eq!(format!("{copy:?}"), format!("{error:?}"));
    assert_eq!(copy.to_string(), error.to_string());
    assert!(
        format!("{copy:?}").starts_with("Error { kind: Unreachable, message:"),
        "{copy:?}"
    );
    let cause = |error: &Error| -> *const std::io::Error {
        let source = StdError::source(error).expect("a cause");
        source.downcast_ref().expect("the client's own error")
    };
    assert_eq!(cause(&error), cause(&copy));
}

#[test]
fn text_is_a_cause_and_no_cause_is_none() {
    let error = Error::invalid("wrong").with_source("because of that");
    let source = StdError::source(&error).expect("a cause");
    assert_eq!(source.to_string(), "because of that");
    assert_eq!(error.to_string(), "invalid input: wrong");
    assert!(StdError::source(&Error::invalid("wrong")).is_none());
}
