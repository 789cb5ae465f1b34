use super::*;
use proptest::prelude::*;

#[test]
fn short_forms_have_no_host() {
    for (text, scheme, path) in [
        ("memory:", "memory", ""),
        ("memory://", "memory", ""),
        ("file:/var/lock", "file", "/var/lock"),
        ("file:///var/lock", "file", "/var/lock"),
        ("FILE:rel/dir", "file", "rel/dir"),
    ] {
        let url = BackendUrl::parse(text).expect(text);
        assert_eq!((url.scheme(), url.path()), (scheme, path), "{text}");
        assert!(url.hosts().is_empty());
    }
}

#[test]
fn every_part_is_decoded() {
    let url = BackendUrl::parse("zk://us%40er:p%3Aa%23@[::1]:2181,b/ch%20root").expect("good");
    assert_eq!(url.user(), Some("us@er"));
    assert_eq!(url.password(), Some("p:a#"));
    assert_eq!(url.hosts()[0].with_port(1), "[::1]:2181");
    assert_eq!(url.hosts()[1].with_port(1), "b:1");
    assert_eq!(url.path(), "/ch root");
}

#[test]
fn mistakes_name_the_part() {
    for (text, expected) in [
        ("localhost", "no scheme"),
        ("://x", "scheme must be"),
        ("redis://h:port", "the port of \"h\" is not a number"),
        ("redis://h:99999", "write user:password@host"),
        ("redis://h:-1", "is not a number"),
        ("redis://h:+1", "is not a number"),
        ("redis://h:", "is not a number"),
        ("redis://a,,b", "empty host name"),
        ("redis://[::1", "closing bracket"),
        ("redis://[::1]6379", "write [::1]:6379"),
        ("redis://[::1]:6379x", "the port of \"::1\" is not a number"),
        ("redis://[localhost]:1", "brackets are for IPv6"),
        ("redis://[]:1", "brackets are for IPv6"),
        ("redis://a%0d%0ab", "holds the character '\\r'"),
        ("redis://a%00", "holds the character '\\0'"),
        ("redis://a%7F", "holds the character '\\u{7f}'"),
        ("redis://a%20b", "holds the character ' '"),
        ("redis://a%2Fb", "holds the character '/'"),
        ("redis://a%3A1", "holds the character ':'"),
        ("redis://a%40b", "holds the character '@'"),
        ("redis://[fe80::1%250a%0a]:1", "holds the character '\\n'"),
        ("redis://%ff", "host is not UTF-8"),
        ("redis://h?x", "\"x\" has no value"),
        ("redis://h?x=1&x=2", "twice"),
        ("redis://h/#f", "fragment"),
        ("redis://h/a b", "write it percent-encoded"),
        ("redis://h/a\nb", "at byte 11"),
        ("redis://h/%ff", "path is not UTF-8"),
        ("redis://u:pa/ss@h", "encode '/' as %2F"),
        ("redis://u:pa?ss@h", "encode '/' as %2F"),
        ("redis://u:p@x/ss@h", "encode '/' as %2F"),
        ("redis:u:pass@h", "write it like redis://user:password@host"),
        (
            "redis:/u:pass@h",
            "write it like redis://user:password@host",
        ),
        (
            "redis:///u:pass@h",
            "write it like redis://user:password@host",
        ),
        ("redis:u:pass", "write it like redis://user:password@host"),
        ("u:pass@h", "begin with a scheme"),
    ] {
        let error = BackendUrl::parse(text).expect_err(text);
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
}

#[test]
fn unknown_and_bad_parameters_are_named() {
    let mut url = BackendUrl::parse("x://h?n=abc&d=fast&other=1").expect("good");
    let error = url.take::<u32>("n").expect_err("not a number");
    assert!(error.to_string().contains("n=\"abc\""), "{error}");
    let error = url.take_duration("d").expect_err("not a duration");
    assert!(error.to_string().contains("500ms"), "{error}");
    let error = url.finish(&["n", "d"]).expect_err("unknown");
    assert!(error.to_string().contains("it takes n, d"), "{error}");
}

#[test]
fn a_session_is_given_by_the_stores_own_word_or_by_lease() {
    for (query, expected) in [("", None), ("?own=3s", Some(3)), ("?lease=4s", Some(4))] {
        let mut url = BackendUrl::parse(&format!("x://h{query}")).expect("good");
        let session = url.take_session("own").expect(query);
        assert_eq!(session, expected.map(Duration::from_secs), "{query}");
        url.finish(&[]).expect("taken");
    }
    for (query, expected) in [
        ("?own=3s&lease=3s", "give one of them"),
        ("?lease=soon", "lease=\"soon\""),
    ] {
        let mut url = BackendUrl::parse(&format!("x://h{query}")).expect("good");
        let error = url.take_session("own").expect_err(query);
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn the_password_is_never_shown() {
    let url = BackendUrl::parse("x://me:hunter2@h/?token=hunter2").expect("good");
    assert!(!format!("{url:?} {url}").contains("hunter2"));
}

#[test]
fn a_path_may_hold_what_a_login_could_not_be() {
    for (text, path) in [
        ("file:/home/me@corp/a:b", "/home/me@corp/a:b"),
        ("memory:shop:test", "shop:test"),
        ("redis+unix:///run/me%40corp", "/run/me@corp"),
        ("zk://h/a:b", "/a:b"),
    ] {
        assert_eq!(BackendUrl::parse(text).expect(text).path(), path);
    }
    let url = BackendUrl::parse("zk://[fe80::1%25eth0]:1").expect("a zone");
    assert_eq!(url.hosts()[0].with_port(9), "[fe80::1%eth0]:1");
}

/// Whatever the URL looks like: neither the error nor the value shows `password`.
fn shows_nothing(url: &str, password: &str) -> Result<(), TestCaseError> {
    let text = match BackendUrl::parse(url) {
        Ok(parsed) => format!("{parsed} {parsed:?} {parsed:#?}"),
        Err(error) => format!("{error} {error:?} {error:#?}"),
    };
    prop_assert!(!text.contains(password), "{url:?} gives {text}");
    Ok(())
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in "\\PC*") {
        let _ = BackendUrl::parse(&text);
    }

    #[test]
    fn any_password_survives_encoding_and_stays_hidden(password in "[^\\x00]{8,40}") {
        let encoded = percent_encoding::utf8_percent_encode(&password, percent_encoding::NON_ALPHANUMERIC);
        let url = BackendUrl::parse(&format!("x://u:{encoded}@h")).expect("good");
        prop_assert_eq!(url.password(), Some(password.as_str()));
        prop_assert!(!url.to_string().contains(&password));
    }

    /// A password with everything in it that should have been encoded, in a URL that lacks this or that.
    #[test]
    fn a_password_before_its_at_sign_is_never_shown(
        password in "[a-zA-Z0-9]Q7[a-zA-Z0-9:@/?#=&,;+ !$*()._~\\[\\]\t-]{4,24}",
        user in "[a-z]{0,6}",
        scheme in "redis(s|\\+cluster)?|etcd|zk|mysql|x",
        begin in "://|:|:/|:///|//|",
        end in "@|@/0|@host|@host:6379|@host/path|@host\\?a=b|@,|@:|@h:port|@\\[::1|@\\[::1\\]6379|@%0a|@h%ff",
    ) {
        shows_nothing(&format!("{scheme}{begin}{user}:{password}{end}"), &password)?;
        shows_nothing(&format!("{user}:{password}{end}"), &password)?;
    }

    /// The '@' is forgotten as well, or encoded: the password stands where a port should.
    #[test]
    fn a_password_whose_host_was_forgotten_is_never_shown(
        password in "[a-zA-Z0-9]Q7[a-zA-Z0-9:;+!$*()._~-]{4,24}|[0-9]{6,12}",
        user in "[a-z]{0,6}|\\[[a-z]{0,6}|\\[::1\\]",
        scheme in "redis(s|\\+cluster)?|etcd|zk|mysql|x",
        begin in "://|:|:/|:///|:////|//",
        end in "|/|/0|%40host|\\?a=b|/0\\?a",
    ) {
        shows_nothing(&format!("{scheme}{begin}{user}:{password}{end}"), &password)?;
    }
}
