use std::time::Duration;

use super::*;
use crate::config::ServerAddress;

#[test]
fn a_url_sets_everything() {
    let config = Config::from_url(
        "postgresql://app:s%40cret@db-1,db-2:5433/shop?mode=lease&schema=locks&table_prefix=l_&connections=3&connect_timeout=1s\
         &answer_timeout=2s&waiter_lease=10s&create_tables=false&listen=false&target_session_attrs=read-write",
    )
    .expect("a good URL");
    assert_eq!(config.login, Login::new("app", "s@cret"));
    assert_eq!(config.connections, 3);
    assert_eq!(config.waiter_lease, Duration::from_secs(10));
    assert!(!config.create_tables && !config.listen);
    assert_eq!(config.all_places(), "db-1:5432,db-2:5433");
    assert_eq!(config.database.as_deref(), Some("shop"));
    assert_eq!(
        (config.schema.as_str(), config.table_prefix.as_str()),
        ("locks", "l_")
    );
    assert!(!format!("{config:?}").contains("s@cret"));
}

#[test]
fn sockets_are_named_as_libpq_names_them() {
    for url in [
        "postgres:///shop?host=/run/postgresql&user=app&port=5433",
        "postgres://app@%2Frun%2Fpostgresql:5433/shop",
        "postgres://app@/shop?host=/run/postgresql&port=5433",
        "postgres://app@%2frun%2fpostgresql:5433?dbname=shop",
    ] {
        let config = Config::from_url(url).expect(url);
        assert_eq!(
            config.servers,
            [ServerAddress::Unix("/run/postgresql".into(), 5433)],
            "{url}"
        );
        assert_eq!(config.login.user.as_deref(), Some("app"), "{url}");
        assert_eq!(config.database.as_deref(), Some("shop"), "{url}");
    }
}

#[test]
fn mistakes_are_named_without_secrets() {
    for (url, expected) in [
        ("mysql://h/d", "takes postgres, postgresql"),
        ("postgres:///d", "names no host"),
        ("postgres://u:s3cret@h/a/b", "more than the name"),
        ("postgres://u:s3cret@h/d?dbname=e", "database twice"),
        ("postgres://u:s3cret@h/d?host=g", "its host twice"),
        (
            "postgres://u:s3cret@h/d?mode=fast",
            "it is lease or session",
        ),
        ("postgres://u:s3cret@h/d?table_prefix=a-b", "table_prefix"),
        ("postgres://u:s3cret@h/d?schema=A", "schema"),
        (
            "postgres://u:s3cret@h/d?lease=3s",
            "not known to \"postgres\"",
        ),
        ("postgres://u:s3cret@h/d?connections=0", "from 1 to 10000"),
        ("postgres://u:s3cret@h/d?waiter_lease=1ms", "from 500ms"),
        (
            "postgres://u:s3cret@h/d?connect_timeout=0s",
            "from 1ms to 600s",
        ),
        (
            "postgres://u:s3cret@h/d?connect_timeout=0",
            "from 1ms to 600s",
        ),
        (
            "postgres://u:s3cret@h/d?connect_timeout=x",
            "write it like 500ms",
        ),
        (
            "postgres://u:s3cret@h/d?sslmode=prefer",
            "verify-full or disable",
        ),
        (
            "postgres://u:s3cret@h/d?sslmode=on",
            "disable or verify-full",
        ),
        ("postgres://u:s3cret@h/d?cert=c", "belong together"),
        ("postgres://u:s3cret@h/d?ca=c", "for TLS, which is off"),
        (
            "postgres://u:s3cret@h/d?sslrootcert=c",
            "for TLS, which is off",
        ),
        (
            "postgres://u:s3cret@h/d?tls=true&ca=c&sslrootcert=c",
            "about the same",
        ),
        (
            "postgres://u:s3cret@h/d?tls=true&sslmode=disable",
            "about the same",
        ),
        (
            "postgres://u:s3cret@h/d?tls=true&sslcert=c",
            "belong together",
        ),
        (
            "postgres://u:s3cret@h/d?tls=yes",
            "true, false, or unverified",
        ),
        (
            "postgres://u@/d?host=/run/x&tls=true",
            "a socket on this machine",
        ),
        ("postgres://u:s3cret@h/d?user=v", "the user twice"),
        ("postgres://u:s3cret@h/d?hostaddr=127.0.0.1", "server_name"),
        ("postgres://u:s3cret@h/d?passfile=f", "password_file"),
        ("postgres://h/d?password=s3cret", "password_file"),
        (
            "postgres://u:s3cret@h/d?channel_binding=require",
            "cannot do",
        ),
        ("postgres:///d?host=a,b&port=1,2,3", "2 hosts and 3 ports"),
        ("postgres:///d?host=a&port=x", "a number"),
        (
            "postgres://u:s3cret@h/d?mode=session&session_validity=3s&lease=3s",
            "give one of them",
        ),
        (
            "postgres://u:s3cret@h/d?password_file=f",
            "give one of them",
        ),
        (
            "postgres://u:s3cret@h/d?target_session_attrs=read-only",
            "a server that takes writes",
        ),
    ] {
        let text = Config::from_url(url).expect_err(url).to_string();
        assert!(text.contains(expected), "{text}");
        assert!(text.starts_with("postgres: configure: "), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn words_of_libpq_are_taken() {
    let read = |url: &str| Config::from_url(url).expect(url);
    let config = read("postgres:///shop?host=db-1,db-2&port=5433,5434&connect_timeout=10");
    assert_eq!(config.all_places(), "db-1:5433,db-2:5434");
    assert_eq!(config.connect_timeout, Duration::from_secs(10));
    assert_eq!(
        read("postgres:///shop?host=a,b&port=7").all_places(),
        "a:7,b:7"
    );
    let config = read(
        "postgres://h/d?application_name=shop&options=-c%20statement_timeout%3D5s&channel_binding=disable&gssencmode=prefer\
         &target_session_attrs=primary",
    );
    assert_eq!(config.application_name, "shop");
    assert_eq!(config.options.as_deref(), Some("-c statement_timeout=5s"));
}

#[test]
fn lease_is_the_validity_of_a_session() {
    let config = Config::from_url("postgres://h/d?mode=session&lease=7s").expect("a good URL");
    assert_eq!(config.session_validity, Duration::from_secs(7));
}

#[cfg(feature = "tls")]
#[test]
fn tls_has_the_words_of_every_store_and_those_of_libpq() {
    let read =
        |rest: &str| Config::from_url(&format!("postgres://h/d?{rest}")).map(|config| config.tls);
    let usual = Some(Tls::new());
    for (rest, expected) in [
        ("sslmode=disable", None),
        ("tls=false", None),
        ("sslmode=require", usual.clone()),
        ("sslmode=verify-full", usual.clone()),
        ("tls=true", usual),
        ("tls=true&ca=system", Some(Tls::new().system_ca())),
        (
            "sslmode=verify-full&sslrootcert=system",
            Some(Tls::new().system_ca()),
        ),
        ("tls=unverified", Some(Tls::new().unverified())),
        (
            "tls=true&server_name=db",
            Some(Tls::new().server_name("db")),
        ),
    ] {
        assert_eq!(read(rest).expect(rest), expected, "{rest}");
    }
}

#[cfg(not(feature = "tls"))]
#[test]
fn tls_without_the_feature_says_what_is_missing() {
    let error = Config::from_url("postgres://h/d?tls=true").expect_err("no TLS");
    assert_eq!(error.kind(), dlock_core::ErrorKind::Unsupported, "{error}");
    assert!(error.message().contains("dlock-postgres"), "{error}");
}
