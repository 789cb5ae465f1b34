//! `?lease=…`, which means the same in the URL of every store.

use std::time::Duration;

use dlock_core::backend::BackendUrl;
use dlock_core::{Operation, Result};

/// The URL for the backend, and the lease for [`Settings`](crate::Settings) if it is not the backend's own affair.
///
/// A store whose holds live as long as their session needs the time when it connects, so there the parameter stays in the URL.
pub(crate) fn split(url: &str) -> Result<(String, Option<Duration>)> {
    let whole = || Ok((url.to_owned(), None));
    let (Some((scheme, _)), Some((rest, query))) = (url.split_once(':'), url.split_once('?'))
    else {
        return whole();
    };
    // Without what stands between them, which may be no host, as the folder of a socket. What is wrong with a URL, its backend tells.
    let Ok(mut parsed) = BackendUrl::parse(&format!("{scheme}:?{query}")) else {
        return whole();
    };
    if lives_by_session(&mut parsed)? {
        return whole();
    }
    let lease = parsed
        .take_duration("lease")
        .map_err(|error| error.with_operation(Operation::Connect))?;
    let Some(lease) = lease else {
        return whole();
    };
    let others: Vec<&str> = query.split('&').filter(|pair| !is_lease(pair)).collect();
    if others.is_empty() {
        return Ok((rest.to_owned(), Some(lease)));
    }
    Ok((format!("{rest}?{}", others.join("&")), Some(lease)))
}

fn lives_by_session(url: &mut BackendUrl) -> Result<bool> {
    Ok(match url.scheme() {
        "etcd" | "etcds" | "etcd+srv" | "etcds+srv" | "zk" | "zks" => true,
        "mysql" => matches!(
            url.take::<String>("mode")?.as_deref(),
            Some("session" | "advisory")
        ),
        "postgres" | "postgresql" => url.take::<String>("mode")?.as_deref() == Some("session"),
        _ => false,
    })
}

/// Also when somebody has percent-encoded the word: the URL's own parser decodes it.
fn is_lease(pair: &str) -> bool {
    BackendUrl::parse(&format!("x:?{pair}"))
        .and_then(|mut url| url.take::<String>("lease"))
        .is_ok_and(|lease| lease.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_goes_to_the_settings_or_stays_for_the_session() {
        let seconds = |n| Some(Duration::from_secs(n));
        for (url, rest, lease) in [
            ("memory:", "memory:", None),
            ("memory:?lease=5s", "memory:", seconds(5)),
            ("memory:?l%65ase=5s", "memory:", seconds(5)),
            (
                "redis://u:p%3F@h/2?a=1&lease=5s&prefix=x%26y",
                "redis://u:p%3F@h/2?a=1&prefix=x%26y",
                seconds(5),
            ),
            (
                "redis://h?longest_lease=5s",
                "redis://h?longest_lease=5s",
                None,
            ),
            (
                "mysql://h/d?lease=1m&mode=unique",
                "mysql://h/d?mode=unique",
                seconds(60),
            ),
            (
                "mysql://h/d?mode=session&lease=5s",
                "mysql://h/d?mode=session&lease=5s",
                None,
            ),
            (
                "mysql://h/d?mode=advisory&lease=5s",
                "mysql://h/d?mode=advisory&lease=5s",
                None,
            ),
            (
                "postgres:///d?host=/run/postgresql&lease=5s&user=u",
                "postgres:///d?host=/run/postgresql&user=u",
                seconds(5),
            ),
            (
                "postgres://u@%2Frun%2Fpostgresql:5433/d?lease=5s",
                "postgres://u@%2Frun%2Fpostgresql:5433/d",
                seconds(5),
            ),
            (
                "postgresql://%2Frun%2Fpostgresql/d?mode=session&lease=5s",
                "postgresql://%2Frun%2Fpostgresql/d?mode=session&lease=5s",
                None,
            ),
            ("etcds://h?lease=5s", "etcds://h?lease=5s", None),
            ("etcd+srv://h?lease=5s", "etcd+srv://h?lease=5s", None),
            ("zk://h?lease=5s", "zk://h?lease=5s", None),
            ("not a URL?lease=5s", "not a URL?lease=5s", None),
        ] {
            assert_eq!(split(url).expect(url), (rest.to_owned(), lease), "{url}");
        }
        let error = split("memory:?lease=soon").expect_err("no duration");
        assert!(error.to_string().contains("lease=\"soon\""), "{error}");
    }
}
