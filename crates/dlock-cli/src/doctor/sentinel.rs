//! The sentinels before a Redis: do they agree, and could they replace the master?

use std::time::Duration;

use dlock_redis::client::redis;
use dlocks::backend::BackendUrl;
use redis::IntoConnectionInfo;

use crate::doctor::{Finding, Level};

/// For each sentinel, to connect and to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What one sentinel says.
struct Said {
    place: String,
    /// Where it sees the master.
    master: Vec<String>,
    /// How many sentinels it knows, itself included.
    sentinels: usize,
    /// Whether enough of them could replace the master now; else why not.
    could_replace: Result<(), String>,
}

/// Nothing, when the URL names no sentinels.
pub(crate) async fn check(url: &str) -> Vec<Finding> {
    let Ok(mut url) = BackendUrl::parse(url) else {
        return Vec::new();
    };
    let tls = url.scheme() == "rediss+sentinel";
    if !tls && url.scheme() != "redis+sentinel" {
        return Vec::new();
    }
    let name = url.path().trim_start_matches('/');
    let name = name.split('/').next().unwrap_or_default().to_owned();
    let hosts = url.hosts().to_vec();
    let mut said = Vec::new();
    let mut findings = Vec::new();
    let login = Login::of(&mut url, tls);
    for host in hosts {
        let port = host.port.unwrap_or(26379);
        let place = format!("{}:{port}", host.name);
        match ask(&login, (&host.name, port), &name, place.clone()).await {
            Ok(one) => said.push(one),
            Err(error) => findings.push(Finding::new(
                Level::Note,
                "sentinels",
                format!("{place} does not answer: {error}"),
            )),
        }
    }
    let mut all = judge(&said);
    all.extend(findings);
    all
}

/// How the sentinels are reached, which may be otherwise than their master.
struct Login {
    user: Option<String>,
    password: Option<String>,
    tls: bool,
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Login {
    fn of(url: &mut BackendUrl, tls: bool) -> Self {
        let mut text = |key: &str| url.take::<String>(key).ok().flatten();
        let (user, password) = (text("sentinel_user"), text("sentinel_password"));
        let mut file = |key: &str| text(key).and_then(|path| std::fs::read(path).ok());
        Self {
            user,
            password,
            tls,
            ca: file("ca"),
            identity: file("cert").zip(file("key")),
        }
    }

    fn client(&self, host: &str, port: u16) -> redis::RedisResult<redis::Client> {
        let scheme = if self.tls { "rediss" } else { "redis" };
        // An IPv6 address stands in brackets there.
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let info = format!("{scheme}://{host}:{port}").into_connection_info()?;
        let mut settings = redis::RedisConnectionInfo::default();
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        let info = info.set_redis_settings(settings);
        if !self.tls {
            return redis::Client::open(info);
        }
        let identity = self.identity.clone();
        let certificates = redis::TlsCertificates {
            client_tls: identity.map(|(client_cert, client_key)| redis::ClientTlsConfig {
                client_cert,
                client_key,
            }),
            root_cert: self.ca.clone(),
        };
        redis::Client::build_with_tls(info, certificates)
    }
}

/// Not by way of the backend: it takes a sentinel for a mistake, because it keeps no data.
async fn ask(
    login: &Login,
    (host, port): (&str, u16),
    name: &str,
    place: String,
) -> redis::RedisResult<Said> {
    let limits = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let client = login.client(host, port)?;
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&limits)
        .await?;
    let about = |what: &str| {
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg(what).arg(name);
        cmd
    };
    let master = about("GET-MASTER-ADDR-BY-NAME");
    let master = master.query_async(&mut connection).await?;
    let others: Vec<redis::Value> = about("SENTINELS").query_async(&mut connection).await?;
    let could: redis::RedisResult<String> = about("CKQUORUM").query_async(&mut connection).await;
    Ok(Said {
        place,
        master,
        sentinels: others.len() + 1,
        could_replace: could.map(drop).map_err(|error| error.to_string()),
    })
}

fn judge(said: &[Said]) -> Vec<Finding> {
    let Some(first) = said.first() else {
        let text = "none of them answers, so whether they could replace the master is not known";
        return vec![Finding::new(Level::Note, "sentinels", text)];
    };
    let mut findings = Vec::new();
    if let Some(other) = said.iter().find(|other| other.master != first.master) {
        findings.push(Finding::new(
            Level::Unsafe,
            "sentinels",
            format!(
                "they name different masters: {} says {}, and {} says {}: whoever asks them locks in two places",
                first.place,
                first.master.join(":"),
                other.place,
                other.master.join(":")
            ),
        ));
    }
    let known: Vec<usize> = said.iter().map(|one| one.sentinels).collect();
    let (fewest, most) = (
        known.iter().min().copied().unwrap_or_default(),
        known.iter().max().copied().unwrap_or_default(),
    );
    let (level, text) = if fewest != most {
        (
            Level::Note,
            format!("some know {fewest} of them and others {most}: do they see each other?"),
        )
    } else if most < 3 {
        (
            Level::Note,
            format!("{most}: when one is down, nobody replaces a master that fails; run three"),
        )
    } else {
        (Level::Good, format!("{most}, which know each other"))
    };
    findings.push(Finding::new(level, "sentinels", text));
    let cannot = said.iter().find_map(|one| {
        let why = one.could_replace.as_ref().err()?;
        Some(format!(
            "{} says that they could not replace the master now: {why}",
            one.place
        ))
    });
    findings.push(match cannot {
        Some(text) => Finding::new(Level::Note, "fail-over", text),
        None => Finding::new(
            Level::Good,
            "fail-over",
            "enough sentinels see each other to replace the master",
        ),
    });
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(master: &str, sentinels: usize, could_replace: bool) -> Said {
        Said {
            place: format!("s{sentinels}"),
            master: vec![master.to_owned(), "6379".to_owned()],
            sentinels,
            could_replace: could_replace
                .then_some(())
                .ok_or_else(|| "NOQUORUM".to_owned()),
        }
    }

    #[test]
    fn nothing_is_good_that_no_sentinel_has_said() {
        for (what, all, expected) in [
            ("nobody answers", vec![], vec![Level::Note]),
            (
                "three that agree",
                vec![said("a", 3, true), said("a", 3, true)],
                vec![Level::Good, Level::Good],
            ),
            (
                "two masters",
                vec![said("a", 3, true), said("b", 3, true)],
                vec![Level::Unsafe, Level::Good, Level::Good],
            ),
            (
                "too few",
                vec![said("a", 2, true)],
                vec![Level::Note, Level::Good],
            ),
            (
                "they do not see each other",
                vec![said("a", 3, false), said("a", 2, false)],
                vec![Level::Note, Level::Note],
            ),
        ] {
            let levels: Vec<Level> = judge(&all).iter().map(|found| found.level).collect();
            assert_eq!(levels, expected, "{what}");
        }
    }
}
