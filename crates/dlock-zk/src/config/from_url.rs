//! The settings as a URL.

use dlock_core::backend::BackendUrl;
use dlock_core::{Error, Result};

use super::{Config, Grants, Password, Tls};

const KNOWN: &[&str] = &[
    "session",
    "lease",
    "connect_timeout",
    "folder",
    "access",
    "allow",
    "auth",
    "ca",
    "cert",
    "key",
    "server_name",
    "password_file",
];

impl Config {
    /// Reads `zk://user:password@h1:2181,h2:2181/chroot?key=value`, or `zks://` with TLS.
    ///
    /// The parameters are `session`, `connect_timeout`, `folder`, `access`, `allow`, `auth`, `password_file` and, with `zks`, the files `ca`, `cert` and `key`, and `server_name`. `lease` is
    /// another word for `session`, which every store knows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid), naming the part of the URL that is wrong.
    pub fn from_url(url: &str) -> Result<Self> {
        let mut url = BackendUrl::parse(url)?;
        let tls = match url.scheme() {
            "zk" => false,
            "zks" => true,
            other => {
                return Err(Error::invalid(format!(
                    "the URL's scheme is {other:?}: this backend takes zk or zks"
                )));
            }
        };
        let mut config = Self::of(url.hosts().to_vec());
        config.chroot = url.path().trim_end_matches('/').to_owned();
        let file: Option<String> = url.take("password_file")?;
        config.credentials = match (url.user(), url.password(), file) {
            (Some(_), Some(_), Some(_)) => {
                return Err(Error::invalid(
                    "the URL has a password and password_file: give one of them",
                ));
            }
            (Some(user), None, Some(file)) => Some((user.to_owned(), Password::File(file.into()))),
            (Some(user), password, None) => {
                let password = password.unwrap_or_default().to_owned();
                Some((user.to_owned(), Password::Text(password)))
            }
            (None, None, Some(_)) => {
                return Err(Error::invalid(
                    "the URL has password_file but no user: write user@",
                ));
            }
            (None, Some(_), _) => {
                return Err(Error::invalid(
                    "the URL has a password but no user: write user:password@",
                ));
            }
            (None, None, None) => None,
        };
        if let Some(session) = url.take_session("session")? {
            config.session = session;
        }
        if let Some(limit) = url.take_duration("connect_timeout")? {
            config.connect_timeout = limit;
        }
        if let Some(folder) = url.take("folder")? {
            config.folder = folder;
        }
        config.access = url.take("access")?;
        config.scheme = url.take("auth")?.unwrap_or_default();
        if let Some(Grants(grants)) = url.take("allow")? {
            config.grants = grants;
        }
        if tls {
            let file =
                |what: &str, path: Option<String>| path.map(|path| read(what, &path)).transpose();
            let ca = file("ca", url.take("ca")?)?;
            let cert = file("cert", url.take("cert")?)?;
            let key = file("key", url.take("key")?)?;
            config.tls = Some(Tls {
                ca,
                server_name: url.take("server_name")?,
                identity: match (cert, key) {
                    (Some(cert), Some(key)) => Some((cert, key)),
                    (None, None) => None,
                    _ => {
                        return Err(Error::invalid(
                            "the URL's parameters cert and key belong together: give both or none",
                        ));
                    }
                },
            });
        }
        url.finish(KNOWN)?;
        config.check()?;
        Ok(config)
    }
}

fn read(what: &str, path: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        Error::invalid(format!(
            "the file {path:?} of the URL's parameter {what} cannot be read: {error}"
        ))
    })
}

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
            ("memory:", "takes zk or zks"),
            ("zk:", "no host"),
            ("zk://h?session=1ms", "session is 1ms"),
            ("zk://h?connect_timeout=0s", "connect_timeout is 0ns"),
            ("zk://h?session=soon", "session=\"soon\""),
            ("zk://h//x", "the chroot"),
            ("zk://h/a/../b", "the chroot"),
            ("zk://h?folder=", "the folder"),
            ("zk://h?folder=a//b", "the folder"),
            ("zk://h?folder=zookeeper", "the folder"),
            ("zk://h?access=all", "open, creator or creator-read"),
            ("zk://h?allow=ops", "scheme:id:permissions"),
            ("zk://h?allow=ip:10.0.0.1:", "scheme:id:permissions"),
            ("zk://h?allow=ip:10.0.0.1:x", "out of cdrwa"),
            ("zk://h?access=creator", "there is no user"),
            ("zk://h?auth=sasl", "there is no user"),
            ("zk://u:p@h?auth=kerberos", "digest or sasl"),
            ("zk://:p@h", "a password but no user"),
            ("zk://a%3Ab:p@h", "the user has a colon"),
            ("zk://h?lifetime=3s", "is not known"),
            ("zk://h?lease=3s&session=3s", "give one of them"),
            ("zk://h?ca=/etc/passwd", "does not go together"),
            ("zk://h?server_name=x", "does not go together"),
            ("zk://h?password_file=/x", "but no user"),
            ("zk://u:p@h?password_file=/x", "give one of them"),
            (
                "zk://u@h?password_file=/no/such/file",
                "/no/such/file cannot be read",
            ),
            ("zks://h?ca=/no/such/file", "cannot be read"),
        ] {
            let error = Config::from_url(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(expected), "{url}: {error}");
        }
        match Config::from_url("zks://h?server_name=zk.shop") {
            Ok(config) => {
                let tls = config.tls.expect("TLS");
                assert_eq!(tls.server_name.as_deref(), Some("zk.shop"));
                assert!(cfg!(feature = "tls") && tls.ca.is_none());
            }
            Err(error) => assert!(error.to_string().contains("feature \"tls\""), "{error}"),
        }
    }
}
