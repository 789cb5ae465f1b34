use super::*;

fn take(url: &str, by_scheme: bool) -> Result<Option<Tls>> {
    let mut url = BackendUrl::parse(url)?;
    let tls = Tls::take(&mut url, by_scheme)?;
    url.finish(&[])?;
    Ok(tls)
}

#[test]
fn the_scheme_or_a_word_turns_it_on_and_nothing_else_does() {
    for (url, by_scheme, expected) in [
        ("x://h", false, None),
        ("x://h", true, Some(Tls::new())),
        ("x://h?tls=true", false, Some(Tls::new())),
        ("x://h?tls=true", true, Some(Tls::new())),
        ("x://h?tls=false", false, None),
        ("x://h?tls=unverified", false, Some(Tls::new().unverified())),
        ("x://h?ca=system", true, Some(Tls::new().system_ca())),
        ("x://h?ca=/c", true, Some(Tls::new().ca_file("/c"))),
        (
            "x://h?tls=true&cert=/a&key=/b&server_name=n",
            false,
            Some(
                Tls::new()
                    .client_certificate_files("/a", "/b")
                    .server_name("n"),
            ),
        ),
    ] {
        assert_eq!(take(url, by_scheme).expect(url), expected, "{url}");
    }
    for (url, by_scheme, expected) in [
        ("x://h?ca=/c", false, "TLS, which is off"),
        ("x://h?cert=/a&key=/b", false, "TLS, which is off"),
        ("x://h?server_name=n&tls=false", false, "TLS, which is off"),
        ("x://h?tls=false", true, "leave one of them out"),
        ("x://h?tls=yes", false, "true, false, or unverified"),
        ("x://h?tls=unverified&ca=/c", false, "trusts every server"),
        ("x://h?cert=/a", true, "belong together"),
        ("x://h?key=/b", true, "belong together"),
    ] {
        let error = take(url, by_scheme).expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        assert!(error.message().contains(expected), "{url}: {error}");
    }
}

#[test]
fn what_a_backend_cannot_do_is_refused_in_the_same_words() {
    let little = TlsOffer {
        crate_name: "dlock-x",
        enabled: true,
        ..TlsOffer::default()
    };
    let without = TlsOffer {
        enabled: false,
        ..little
    };
    use ErrorKind::{Invalid, Unsupported};
    for (tls, offer, kind, expected) in [
        (
            Tls::new(),
            without,
            Unsupported,
            "feature \"tls\" of the crate dlock-x",
        ),
        (Tls::new().system_ca(), little, Unsupported, "ca=system"),
        (
            Tls::new().unverified(),
            little,
            Unsupported,
            "tls=unverified",
        ),
        (
            Tls::new().server_name("n"),
            little,
            Unsupported,
            "server_name",
        ),
        (
            Tls::new().ca_file("/no/such"),
            little,
            Invalid,
            "ca is /no/such, which cannot be read",
        ),
        (
            Tls::new().client_certificate_files("/no/cert", "/no/key"),
            little,
            Invalid,
            "cert is /no/cert",
        ),
    ] {
        let error = tls.check(offer).expect_err(expected);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(expected), "{error}");
    }
    let all = TlsOffer {
        system_ca: true,
        unverified: true,
        server_name: true,
        ..little
    };
    for tls in [
        Tls::new(),
        Tls::new().system_ca(),
        Tls::new().unverified().server_name("n"),
        Tls::new().ca("pem").client_certificate("cert", "s3cret"),
    ] {
        tls.check(all).expect("offered");
        assert!(!format!("{tls:?}").contains("s3cret"));
    }
}
