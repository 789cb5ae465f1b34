//! The settings as a URL.

use dlock_core::backend::{BackendUrl, Host};
use dlock_core::kit::{Login, Tls, UrlForm, UrlKey, UrlScheme};
use dlock_core::{Error, Result};

use super::Config;
use super::srv::Srv;

impl Config {
    /// The URLs that [`from_url`](Config::from_url) reads, as data.
    pub const URL: UrlForm = UrlForm {
        backend: "etcd",
        schemes: &[
            UrlScheme::new(
                "etcd",
                "etcd://user:password@host1:2379,host2:2379",
                "a cluster",
            ),
            UrlScheme::new(
                "etcds",
                "etcds://user:password@host1:2379,host2:2379",
                "the same with TLS",
            ),
            UrlScheme::new(
                "etcd+srv",
                "etcd+srv://user:password@domain",
                "a cluster whose members DNS knows (feature `srv`)",
            ),
            UrlScheme::new(
                "etcds+srv",
                "etcds+srv://user:password@domain",
                "the same with TLS",
            ),
        ],
        keys: &[OWN_KEYS, Login::KEYS, Tls::KEYS],
    };

    /// Reads `etcd://user:password@host1:2379,host2:2379?key=value`; `etcds://` uses TLS (feature `tls`). `etcd+srv://domain` and
    /// `etcds+srv://domain` look the members up in DNS (feature `srv`, see [`Config::srv`]). Each key is the setting of that name; `docs/urls.md` lists
    /// them all. `lease` is another word for `session`, which every store knows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid), naming the part that is wrong; never with a password in it.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::URL.read(url, Self::parse)
    }

    fn parse(url: &mut BackendUrl) -> Result<Self> {
        let by_scheme = url.scheme().starts_with("etcds");
        let looked_up = url.scheme().ends_with("+srv");
        if !matches!(url.path(), "" | "/") {
            return Err(Error::invalid(format!(
                "the URL has the path {:?}: write a prefix of keys as ?prefix=…",
                url.path()
            )));
        }
        let mut config = if looked_up {
            let [Host { name, port: None }] = url.hosts() else {
                return Err(Error::invalid(
                    "members are looked up in one domain, and DNS tells their ports: write etcd+srv://example.com",
                ));
            };
            let mut srv = Srv::of(name.clone());
            srv.cluster = url.take("srv_name")?;
            srv.dns = url.take("dns")?;
            Self {
                srv: Some(srv),
                ..Self::of(Vec::new())
            }
        } else {
            Self::of(url.hosts().to_vec())
        };
        config.tls = Tls::take(url, by_scheme)?;
        config.login = Login::take(url)?;
        url.set([("prefix", &mut config.prefix)])?;
        if let Some(session) = url.take_session("session")? {
            config.session = session;
        }
        url.set_durations([
            ("connect_timeout", &mut config.connect_timeout),
            ("answer_timeout", &mut config.answer_timeout),
            ("late_limit", &mut config.late_limit),
        ])?;
        config.check()?;
        Ok(config)
    }
}

#[rustfmt::skip]
const OWN_KEYS: &[UrlKey] = &[
    UrlKey::new("prefix", "1 to 255 bytes", "`dlock`", "what all keys start with"),
    UrlKey::new("session", "a duration of at least 1s", "10s", "how long the store keeps the client's lease, and all its locks, without a sign of life"),
    UrlKey::session_lease(),
    UrlKey::connect_timeout("5s"),
    UrlKey::answer_timeout("2s"),
    UrlKey::new("late_limit", "a duration of at least 1s", "10m", "how long a request that was given up may still be under way to the store"),
    UrlKey::new("srv_name", "a name", "", "the cluster's own name in DNS, with `+srv`"),
    UrlKey::new("dns", "address:port", "the system's", "the DNS server to ask, with `+srv`"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::whole_seconds;

    #[test]
    fn mistakes_are_named() {
        for (url, expected) in [
            ("redis://a", "takes etcd"),
            ("etcd://", "no server is named"),
            ("etcd://a/path", "?prefix="),
            ("etcd://user@a", "give both or none"),
            ("etcd://a?session=0s", "session is 0ns"),
            ("etcd://a?session=999ms", "session is"),
            ("etcd://a?answer_timeout=0s", "answer_timeout is"),
            ("etcd://a?late_limit=10ms", "late_limit is 10ms"),
            ("etcd://a?prefix=", "prefix must have"),
            ("etcd://a?cert=x", "belong together"),
            ("etcds://a?ca=/does/not/exist", "cannot be read"),
            ("etcd://u@a?password_file=/does/not/exist", "cannot be read"),
            ("etcd://u:p@a?password_file=/x", "give one of them"),
            ("etcd://a?password_file=/x", "give both or none"),
            ("etcd://a?server_name=x", "TLS, which is off"),
            ("etcd+srv://a,b", "in one domain"),
            ("etcd+srv://a:1", "DNS tells their ports"),
            ("etcd+srv://", "in one domain"),
            ("etcd+srv://a..b", "is no domain"),
            ("etcd+srv://a?srv_name=b.c", "srv_name is"),
            ("etcd+srv://a?dns=nobody", "dns=\"nobody\""),
            ("etcd://a?dns=127.0.0.1:53", "does not go together"),
            ("etcd://a?lifetime=5s", "it takes prefix, session"),
        ] {
            let error = Config::from_url(url).expect_err(url);
            assert!(error.to_string().contains(expected), "{url}: {error}");
            assert!(
                error.to_string().starts_with("etcd: configure: "),
                "{error}"
            );
        }
    }

    #[test]
    fn everything_in_a_url_arrives() {
        let config = Config::from_url(
            "etcd://me:p%40ss@a,[::1]:9/?prefix=shop&session=1500ms&connect_timeout=1s&answer_timeout=500ms",
        )
        .expect("a good URL");
        assert_eq!(config.addresses(), ["a:2379", "[::1]:9"]);
        assert_eq!(config.login, Login::new("me", "p@ss"));
        assert_eq!(config.prefix, "shop");
        assert_eq!(whole_seconds(config.session), 2);
        assert_eq!(config.identity(), "etcd://[::1]:9,a:2379/shop");
        let shown = format!("{config:?}");
        assert!(shown.contains("me") && !shown.contains("p@ss"), "{shown}");
        let config = Config::from_url("etcd://a?lease=7s").expect("the portable word");
        assert_eq!(whole_seconds(config.session), 7);
        let error = Config::from_url("etcd://a?lease=7s&session=7s").expect_err("both");
        assert!(error.to_string().contains("give one of them"), "{error}");
    }
}
