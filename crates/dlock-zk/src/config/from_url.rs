//! The settings as a URL.

use dlock_core::Result;
use dlock_core::backend::BackendUrl;
use dlock_core::kit::{Login, Tls, UrlForm, UrlKey, UrlScheme};

use super::{Config, Grants};

impl Config {
    /// The URLs that [`from_url`](Config::from_url) reads, as data.
    pub const URL: UrlForm = UrlForm {
        backend: "zk",
        schemes: &[
            UrlScheme::new(
                "zk",
                "zk://user:password@host1:2181,host2:2181/chroot",
                "an ensemble",
            ),
            UrlScheme::new(
                "zks",
                "zks://user:password@host1:2181,host2:2181/chroot",
                "the same with TLS",
            ),
        ],
        keys: &[OWN_KEYS, Login::KEYS, Tls::KEYS],
    };

    /// Reads `zk://user:password@h1:2181,h2:2181/chroot?key=value`, or `zks://` with TLS. Each key is the setting of that name; `docs/urls.md` lists them
    /// all. `lease` is another word for `session`, which every store knows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid), naming the part of the URL that is wrong.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::URL.read(url, Self::parse)
    }

    fn parse(url: &mut BackendUrl) -> Result<Self> {
        let mut config = Self::of(url.hosts().to_vec());
        config.chroot = url.path().trim_end_matches('/').to_owned();
        config.login = Login::take(url)?;
        let by_scheme = url.scheme() == "zks";
        config.tls = Tls::take(url, by_scheme)?;
        if let Some(session) = url.take_session("session")? {
            config.session = session;
        }
        url.set_durations([("connect_timeout", &mut config.connect_timeout)])?;
        url.set([("folder", &mut config.folder)])?;
        url.set([("auth", &mut config.auth)])?;
        url.set([("style", &mut config.style)])?;
        config.access = url.take("access")?;
        if let Some(Grants(grants)) = url.take("allow")? {
            config.grants = grants;
        }
        config.check()?;
        Ok(config)
    }
}

#[rustfmt::skip]
const OWN_KEYS: &[UrlKey] = &[
    UrlKey::new("session", "a duration from 100ms to a day", "30s", "how long the locks of a dead client stay taken"),
    UrlKey::session_lease(),
    UrlKey::connect_timeout("10s"),
    UrlKey::new("folder", "a path", "`dlock`", "the node below the chroot that holds a node for each lock"),
    UrlKey::new("style", "`mutex`, `read-write`", "`mutex`", "which recipe of Curator's shares the paths"),
    UrlKey::new("access", "`open`, `creator`, `creator-read`", "`creator` with a user, else `open`", "who may read and change the nodes that this client creates"),
    UrlKey::new("allow", "`scheme:id:permissions`, several with `;`", "", "others who may"),
    UrlKey::new("auth", "`digest`, `sasl`", "`digest`", "how user and password are shown to the server"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Access;
    use dlock_core::ErrorKind;

    #[test]
    fn urls_are_read() {
        for (url, identity, servers) in [
            ("zk://h", "zk://h:2181/dlock", "h:2181"),
            (
                "zk://b:1,a/shop?folder=x/y",
                "zk://a:2181,b:1/shop/x/y",
                "b:1,a:2181/shop",
            ),
            ("zk://[::1]/", "zk://[::1]:2181/dlock", "[::1]:2181"),
        ] {
            let config = Config::from_url(url).expect(url);
            assert_eq!(config.identity_text(), identity, "{url}");
            assert_eq!(config.servers(), servers, "{url}");
        }
        let session = |url| Config::from_url(url).expect(url).session_time();
        assert_eq!(session("zk://h?lease=7s"), session("zk://h?session=7s"));
        assert_ne!(session("zk://h?lease=7s"), session("zk://h"));
        let access = |url| Config::from_url(url).expect(url).effective_access();
        assert_eq!(access("zk://h"), Some(Access::Open));
        assert_eq!(access("zk://u:p@h"), Some(Access::Creator));
        assert_eq!(access("zk://u:p@h?access=open"), Some(Access::Open));
        let others = "digest:ops:aGFzaA=:cdrwa;ip:10.0.0.0/8:r";
        let url = format!("zk://h?allow={others}");
        assert_eq!(access(&url), None);
        let config = Config::from_url(&url).expect(&url);
        let grants = config.grants().iter();
        let told: Vec<_> = grants
            .map(|grant| (grant.scheme.as_str(), grant.id.as_str(), grant.permissions))
            .collect();
        assert_eq!(
            told,
            [("digest", "ops:aGFzaA=", 31), ("ip", "10.0.0.0/8", 1)]
        );
        let by_hand = Config::new([("h", 2181)]).allow(others).expect("good");
        assert_eq!(by_hand, config);
    }

    #[test]
    fn mistakes_are_named() {
        for (url, expected) in [
            ("memory:", "takes zk, zks"),
            ("zk:", "no host"),
            ("zk://h?session=1ms", "session is 1ms"),
            ("zk://h?connect_timeout=0s", "connect_timeout is 0ns"),
            ("zk://h?session=soon", "session=\"soon\""),
            ("zk://h//x", "the chroot"),
            ("zk://h/a/../b", "the chroot"),
            ("zk://h?folder=", "the folder"),
            ("zk://h?folder=a//b", "the folder"),
            ("zk://h?folder=zookeeper", "the folder"),
            ("zk://h?style=curator", "mutex or read-write"),
            ("zk://h?access=all", "open, creator or creator-read"),
            ("zk://h?allow=ops", "scheme:id:permissions"),
            ("zk://h?allow=ip:10.0.0.1:", "scheme:id:permissions"),
            ("zk://h?allow=ip:10.0.0.1:x", "out of cdrwa"),
            ("zk://h?access=creator", "there is no user"),
            ("zk://h?auth=sasl", "there is no user"),
            ("zk://u:p@h?auth=kerberos", "digest or sasl"),
            ("zk://:p@h", "give both or none"),
            ("zk://a%3Ab:p@h", "the user has a colon"),
            ("zk://h?lifetime=3s", "is not known"),
            ("zk://h?lease=3s&session=3s", "give one of them"),
            ("zk://h?ca=/etc/passwd", "TLS, which is off"),
            ("zk://h?server_name=x", "TLS, which is off"),
            ("zk://h?password_file=/x", "give both or none"),
            ("zk://u:p@h?password_file=/x", "give one of them"),
            (
                "zk://u@h?password_file=/no/such/file",
                "/no/such/file, which cannot be read",
            ),
        ] {
            let error = Config::from_url(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(expected), "{url}: {error}");
            assert_eq!(error.backend(), Some("zk"), "{url}");
        }
        match Config::from_url("zks://h?server_name=zk.shop") {
            Ok(config) => {
                let expected = Tls::new().server_name("zk.shop");
                assert_eq!(config.tls, Some(expected));
                assert_eq!(config.tls.is_some(), cfg!(feature = "tls"));
                let error = Config::from_url("zks://h?ca=/no/such/file").expect_err("no file");
                assert!(error.message().contains("cannot be read"), "{error}");
            }
            Err(error) => assert!(error.to_string().contains("feature \"tls\""), "{error}"),
        }
    }
}
