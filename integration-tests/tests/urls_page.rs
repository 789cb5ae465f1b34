//! docs/urls.md is what the code says.
#![allow(
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

use std::fmt::Write;

use dlock_core::Result;
use dlock_core::kit::{Login, Tls, UrlForm, UrlKey};

const DOCUMENT: &str = include_str!("../../docs/urls.md");
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/urls.md");

const HEAD: &str = "\
# URLs

Every scheme and every key of every store. This page is made from the code: `DLOCK_WRITE=1 cargo test -p integration-tests --test urls_page` writes it, and
without the variable the same test fails when it is not up to date.

`scheme://user:password@host1:port,host2:port/path?key=value&key=value`. Text is percent-encoded where it has one of `:/?#@&=%` or a space. A key that a store does
not know is an error, which lists those that it knows; every error names the store, and none shows a password. Durations are written like `500ms`, `30s` or `2m`.

A key is the setting of that name in the store's `Config`, whose documentation says more.

## In every store

| key | value | default | |
|---|---|---|---|
| `lease` | a duration | 30s | how long a hold lasts without a renewal; in a store whose holds live as long as their session, the session's time |

`lease` is read by `dlocks::connect` and the `dlock` command. Locks of `memory:` and `file:` end with their process.

## In every store that is reached over a network

TLS is on with the scheme that says so, or with `tls=true`, never because a certificate is given. What the client of a store cannot do is refused, as is TLS in a
program that was built without the store's feature `tls`.

";

/// A store, and what it says of itself.
fn forms() -> [UrlForm; 8] {
    [
        dlock_memory::Config::URL,
        dlock_file::Config::URL,
        dlock_redis::Config::URL,
        dlock_redlock::Config::URL,
        dlock_mysql::Config::URL,
        dlock_postgres::Config::URL,
        dlock_etcd::Config::URL,
        dlock_zk::Config::URL,
    ]
}

fn is_shared(key: &UrlKey) -> bool {
    let mut shared = [Login::KEYS, Tls::KEYS].into_iter().flatten();
    shared.any(|shared| shared.name == key.name)
}

fn row(page: &mut String, key: &UrlKey) {
    let UrlKey {
        name,
        value,
        default,
        about,
        ..
    } = key;
    writeln!(page, "| `{name}` | {value} | {default} | {about} |").expect("text");
}

const TABLE: &str = "| key | value | default | |\n|---|---|---|---|\n";

fn page() -> String {
    let mut page = HEAD.to_owned();
    page += TABLE;
    for key in [Login::KEYS, Tls::KEYS].into_iter().flatten() {
        row(&mut page, key);
    }
    for form in forms() {
        write!(page, "\n## {}\n\n", form.backend).expect("text");
        page += "| URL | |\n|---|---|\n";
        for scheme in form.schemes {
            writeln!(page, "| `{}` | {} |", scheme.example, scheme.about).expect("text");
        }
        let own: Vec<&UrlKey> = form.keys.iter().copied().flatten().collect();
        if own.iter().any(|key| !is_shared(key)) {
            page += "\n";
            page += TABLE;
        }
        for key in own.iter().filter(|key| !is_shared(key)) {
            row(&mut page, key);
        }
        if own.iter().any(|key| is_shared(key)) {
            page += "\nAnd login and TLS as above.\n";
        }
    }
    page
}

#[test]
fn the_page_is_what_the_code_says() {
    let page = page();
    if std::env::var_os("DLOCK_WRITE").is_some() {
        std::fs::write(PATH, &page).expect("docs/urls.md");
        return;
    }
    assert!(
        page == DOCUMENT,
        "docs/urls.md is not up to date: run `DLOCK_WRITE=1 cargo test -p integration-tests --test urls_page`"
    );
}

/// What stands in the page is what a URL may have: with at least one scheme of the store each key is taken, though its value may be refused.
#[test]
fn every_key_of_the_page_is_read_by_its_store() {
    let readers: [fn(&str) -> Result<()>; 8] = [
        |url| dlock_memory::Config::from_url(url).map(drop),
        |url| dlock_file::Config::from_url(url).map(drop),
        |url| dlock_redis::Config::from_url(url).map(drop),
        |url| dlock_redlock::Config::from_url(url).map(drop),
        |url| dlock_mysql::Config::from_url(url).map(drop),
        |url| dlock_postgres::Config::from_url(url).map(drop),
        |url| dlock_etcd::Config::from_url(url).map(drop),
        |url| dlock_zk::Config::from_url(url).map(drop),
    ];
    for (form, read) in forms().into_iter().zip(readers) {
        for key in form.key_names() {
            let is_read = form.schemes.iter().any(|scheme| {
                let (plain, _) = scheme
                    .example
                    .split_once('?')
                    .unwrap_or((scheme.example, ""));
                let url = format!("{plain}?{key}=1")
                    .replace(":port", "")
                    .replace("/db", "");
                match read(&url.replace(":p1", "").replace(":p2", "").replace(":p3", "")) {
                    Ok(()) => true,
                    Err(error) => !error.message().contains("does not go together"),
                }
            });
            assert!(is_read, "{}: nobody takes {key}", form.backend);
        }
    }
}
