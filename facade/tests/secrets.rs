//! A password never gets into an error, whichever store the URL names and whatever is wrong with it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;

/// Nobody is connected to: each of these URLs has a parameter that no store takes.
fn error_of(url: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let error = runtime.block_on(dlocks::open(url)).unwrap_err();
    format!("{error} {error:?} {error:#?}")
}

proptest! {
    #[test]
    fn a_password_is_in_no_error(
        password in "[a-zA-Z0-9]Q7[a-zA-Z0-9:@/?=&,;+!$*()._~-]{4,24}",
        user in "[a-z]{0,6}",
        begin in "://|:|:/|:///|:////|//",
        end in "@|@/0|@host|@host:6379|@h1,h2|@host/path|@host/1|@,|@h:port|@\\[::1\\]6379",
    ) {
        for scheme in dlocks::compiled_in() {
            let url = format!("{scheme}{begin}{user}:{password}{end}?nonsense=1");
            // A file is named by its path: there is no login, and the path is what must be shown.
            if scheme == "file" {
                continue;
            }
            let text = error_of(&url);
            prop_assert!(!text.contains(&password), "{url:?} gives {text}");
        }
    }
}
