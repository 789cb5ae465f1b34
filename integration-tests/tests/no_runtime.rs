//! Outside of a runtime every `connect` is an error: the clients below would panic there.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use dlock_core::{ErrorKind, Result};

/// Drives a future as an executor that knows nothing of tokio does.
fn expect_refusal<T>(backend: &str, connect: impl Future<Output = Result<T>>) {
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(outcome) = pin!(connect).poll(&mut context) else {
        panic!("{backend} waits for a runtime that is not there");
    };
    let error = outcome.err().expect("there is no runtime");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let text = error.to_string();
    let expected = format!("{backend}: connect: invalid input: called outside of a tokio runtime");
    assert!(text.starts_with(&expected), "{text}");
}

macro_rules! refuses {
    ($($test:ident $krate:ident $backend:literal $($url:literal)*;)*) => {$(
        #[test]
        fn $test() {
            for url in [$($url),*] {
                let config = $krate::Config::from_url(url).expect(url);
                expect_refusal($backend, config.connect());
            }
        }
    )*};
}

refuses! {
    redis_needs_a_runtime dlock_redis "redis"
        "redis://127.0.0.1:1" "rediss://127.0.0.1:1" "redis+sentinel://127.0.0.1:1/m" "redis+cluster://127.0.0.1:1";
    redlock_needs_a_runtime dlock_redlock "redlock" "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3";
    etcd_needs_a_runtime dlock_etcd "etcd" "etcd://127.0.0.1:1" "etcds://127.0.0.1:1";
    zookeeper_needs_a_runtime dlock_zk "zk" "zk://127.0.0.1:1" "zks://127.0.0.1:1";
    mysql_needs_a_runtime dlock_mysql "mysql" "mysql://u@127.0.0.1:1/d" "mysql://u@127.0.0.1:1/d?mode=session";
    postgres_needs_a_runtime dlock_postgres "postgres" "postgres://u@127.0.0.1:1/d";
}
