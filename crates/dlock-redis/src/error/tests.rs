use super::*;
use dlock_core::{Error, HeldNow};
use std::error::Error as _;
use std::io;

fn server(code: &str, detail: &str) -> RedisError {
    let line = format!("-{code} {detail}\r\n");
    let value = redis::parse_redis_value(line.as_bytes()).expect("an error line");
    value.extract_error().expect_err("an error")
}

#[test]
fn every_error_has_its_kind() {
    let io = |kind| RedisError::from(io::Error::new(kind, "x"));
    for (error, kind, retryable) in [
        (
            io(io::ErrorKind::ConnectionRefused),
            ErrorKind::Unreachable,
            true,
        ),
        (io(io::ErrorKind::BrokenPipe), ErrorKind::Unreachable, true),
        (io(io::ErrorKind::TimedOut), ErrorKind::TimedOut, true),
        (
            RedisError::from(io::Error::new(
                io::ErrorKind::InvalidData,
                "invalid peer certificate: UnknownIssuer",
            )),
            ErrorKind::Denied,
            false,
        ),
        (
            RedisError::from(io::Error::new(
                io::ErrorKind::InvalidData,
                "received corrupt message of type InvalidContentType",
            )),
            ErrorKind::Store,
            false,
        ),
        (
            RedisError::from((RedisKind::Parse, "x")),
            ErrorKind::Store,
            false,
        ),
        (
            RedisError::from((RedisKind::RESP3NotSupported, "x")),
            ErrorKind::Unsupported,
            false,
        ),
        (
            RedisError::from((RedisKind::AuthenticationFailed, "x")),
            ErrorKind::Denied,
            false,
        ),
        (
            RedisError::from((RedisKind::ClusterConnectionNotFound, "x")),
            ErrorKind::Unreachable,
            true,
        ),
        (
            RedisError::from((RedisKind::InvalidClientConfig, "x")),
            ErrorKind::Invalid,
            false,
        ),
        (
            server("WRONGPASS", "invalid username-password pair"),
            ErrorKind::Denied,
            false,
        ),
        (
            server("NOAUTH", "Authentication required."),
            ErrorKind::Denied,
            false,
        ),
        (
            server("NOPERM", "this user has no permissions"),
            ErrorKind::Denied,
            false,
        ),
        (
            server(
                "ERR",
                "The user executing the script can't run this command or subcommand script",
            ),
            ErrorKind::Denied,
            false,
        ),
        (
            server("ERR", "unknown command 'HELLO', with args"),
            ErrorKind::Unsupported,
            false,
        ),
        (
            server("ERR", "This instance has cluster support disabled"),
            ErrorKind::Invalid,
            false,
        ),
        (
            server("LOADING", "Redis is loading the dataset in memory"),
            ErrorKind::Unreachable,
            true,
        ),
        (
            server("READONLY", "You can't write against a read only replica."),
            ErrorKind::Unreachable,
            true,
        ),
        (
            server("CLUSTERDOWN", "The cluster is down"),
            ErrorKind::Unreachable,
            true,
        ),
        (server("MOVED", "1 127.0.0.1:1"), ErrorKind::Invalid, false),
        (server("OOM", "command not allowed"), ErrorKind::Store, true),
        (server("ERR", "something else"), ErrorKind::Store, true),
    ] {
        let text = error.to_string();
        let mapped = Error::from(Trouble::from(error));
        assert_eq!(mapped.kind(), kind, "{text}");
        assert_eq!(mapped.is_retryable(), retryable, "{text}");
        assert!(mapped.source().is_some(), "{text}");
    }
}

/// What the server refused before it did anything is certain; what stopped a script in its middle is not.
#[test]
fn a_refusal_is_certain_and_a_script_that_stopped_is_not() {
    for (error, held) in [
        (
            server("MISCONF", "Redis is configured to save RDB"),
            HeldNow::No,
        ),
        (
            server("NOREPLICAS", "Not enough good replicas"),
            HeldNow::No,
        ),
        (server("READONLY", "You can't write"), HeldNow::No),
        (server("OOM", "command not allowed"), HeldNow::No),
        (
            server(
                "ERR",
                "Error running script (call to f_1): @user_script:9: -OOM command not allowed",
            ),
            HeldNow::No,
        ),
        (server("TRYAGAIN", "Multiple keys request"), HeldNow::No),
        (server("MOVED", "1 127.0.0.1:1"), HeldNow::No),
        (server("ASK", "1 127.0.0.1:1"), HeldNow::No),
        (server("CLUSTERDOWN", "The cluster is down"), HeldNow::No),
        (
            server("NOPERM", "this user has no permissions"),
            HeldNow::No,
        ),
        (
            server("NOPERM", "ACL failure in script: User x has no permissions"),
            HeldNow::Unknown,
        ),
        (
            server(
                "ERR",
                "The user executing the script can't run this command",
            ),
            HeldNow::Unknown,
        ),
        (server("ERR", "something else"), HeldNow::Unknown),
        (
            RedisError::from(io::Error::new(io::ErrorKind::BrokenPipe, "x")),
            HeldNow::Unknown,
        ),
    ] {
        let text = error.to_string();
        let mapped = Error::from(Trouble::from(error));
        assert_eq!(mapped.held_now(), held, "{text}");
    }
}
