//! What makes locks in an etcd unsafe.

use dlock_etcd::Config;
use dlock_etcd::client::etcd_client::{AlarmAction, AlarmType, Client, StatusResponse};
use dlocks::backend::BackendUrl;

use crate::doctor::{Finding, Level, Patient, numbers, quorum, session, wire};

/// What a server without a setting of its own refuses to grow beyond.
const DEFAULT_QUOTA: i64 = 2 << 30;

pub(crate) async fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let note = |text: String| vec![Finding::new(Level::Note, "server", text)];
    let config = async { Config::from_url(patient.url)?.discovered().await };
    let config = match config.await {
        Ok(config) => config,
        Err(error) => return note(error.to_string()),
    };
    let mut reached = Vec::new();
    let mut silent = Vec::new();
    for endpoint in config.endpoints() {
        match ask(&config, &endpoint).await {
            Ok((client, status)) => reached.push((endpoint, client, status)),
            Err(why) => silent.push(Finding::new(
                Level::Note,
                "member",
                format!("{endpoint} does not answer: {why}"),
            )),
        }
    }
    let Some((endpoint, client, status)) = reached.first_mut() else {
        return silent;
    };
    let mut findings = vec![members(client, status).await];
    findings.push(alarms(client).await);
    findings.push(size(status, quota(patient.url, endpoint).await));
    findings.extend(reached.iter().map(|(endpoint, _, status)| {
        let said = version(status.version());
        Finding {
            text: format!("{endpoint} runs {}", said.text),
            ..said
        }
    }));
    findings.extend(silent);
    findings.push(access(patient.url));
    let shortest = "the shortest is 1.5 times its election time";
    findings.extend(session(patient, config.asked_session(), shortest));
    findings
}

async fn ask(config: &Config, endpoint: &str) -> Result<(Client, StatusResponse), String> {
    let mut client = config
        .client(endpoint)
        .await
        .map_err(|error| error.to_string())?;
    let status = client.status().await.map_err(|error| error.to_string())?;
    Ok((client, status))
}

async fn members(client: &mut Client, status: &StatusResponse) -> Finding {
    if status.leader() == 0 {
        let text = "the cluster has no leader: most members are down, and nothing can be locked";
        return Finding::new(Level::Unsafe, "members", text);
    }
    match client.member_list().await {
        Ok(list) => quorum::judge(list.members().len()),
        Err(error) => Finding::new(
            Level::Note,
            "members",
            format!("the server does not tell: {error}"),
        ),
    }
}

/// By the mistakes that etcd's own list of changes tells of.
fn version(version: &str) -> Finding {
    let found = numbers(version);
    let patch_of = |minor| match found.as_slice() {
        [3, m, patch, ..] if *m == minor => Some(*patch),
        _ => None,
    };
    let before = |minor, fixed| patch_of(minor).is_some_and(|patch| patch < fixed);
    let (level, text) = if found.as_slice() < &[3, 4] {
        (Level::Unsafe, "which is no longer maintained: use 3.6")
    } else if before(4, 31) || before(5, 13) {
        (
            Level::Unsafe,
            "where an old leader can end living leases, and their locks (fixed in 3.4.31 and 3.5.13)",
        )
    } else if before(4, 38) || before(5, 23) || before(6, 5) {
        (
            Level::Unsafe,
            "where a lease that has ended can be renewed (fixed in 3.4.38, 3.5.23 and 3.6.5)",
        )
    } else {
        return Finding::new(Level::Good, "version", version);
    };
    Finding::new(level, "version", format!("{version}, {text}"))
}

async fn alarms(client: &mut Client) -> Finding {
    let asked = client.alarm(AlarmAction::Get, AlarmType::None, None).await;
    let raised = match asked {
        Ok(answer) => answer.alarms().iter().map(|a| a.alarm()).collect(),
        Err(error) => {
            let text = format!("the server does not tell: {error}");
            return Finding::new(Level::Note, "alarms", text);
        }
    };
    raised_alarms(raised)
}

fn raised_alarms(raised: Vec<AlarmType>) -> Finding {
    let (level, text) = if raised.contains(&AlarmType::Corrupt) {
        (
            Level::Unsafe,
            "CORRUPT: members have different data, so a lock can be held twice",
        )
    } else if raised.contains(&AlarmType::Nospace) {
        (
            Level::Unsafe,
            "NOSPACE: nothing can be locked; compact and defragment, then run etcdctl alarm disarm",
        )
    } else {
        (Level::Good, "none")
    };
    Finding::new(level, "alarms", text)
}

/// The limit of the database's size, if the server tells whoever asks.
async fn quota(url: &str, endpoint: &str) -> Option<i64> {
    let address = endpoint.strip_prefix("http://")?;
    let parsed = BackendUrl::parse(url).ok()?;
    let host = parsed
        .hosts()
        .iter()
        .find(|host| host.with_port(2379) == address)?;
    let asked = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n");
    let answer = wire::ask((&host.name, host.port.unwrap_or(2379)), &asked).await?;
    let line = answer
        .lines()
        .find_map(|line| line.strip_prefix("etcd_server_quota_backend_bytes "))?;
    // Written as 2.147483648e+09.
    line.trim().parse::<f64>().ok().map(|bytes| bytes as i64)
}

fn size(status: &StatusResponse, quota: Option<i64>) -> Finding {
    let told = Some(status.db_size_quota()).filter(|quota| *quota > 0);
    room(status.db_size(), told.or(quota))
}

fn room(used: i64, quota: Option<i64>) -> Finding {
    let Some(quota) = quota else {
        let text = format!(
            "{} MiB; the server does not tell its limit, which is {} MiB unless it was set",
            used >> 20,
            DEFAULT_QUOTA >> 20
        );
        return Finding::new(Level::Note, "database", text);
    };
    let text = format!("{} MiB of {} MiB", used >> 20, quota >> 20);
    if used > quota / 10 * 8 {
        let text = format!("{text}: when it is full nothing can be locked; compact and defragment");
        return Finding::new(Level::Note, "database", text);
    }
    Finding::new(Level::Good, "database", text)
}

/// That we may take locks, the measuring has shown.
fn access(url: &str) -> Finding {
    let parsed = BackendUrl::parse(url).ok();
    let (login, certificate) = parsed.map_or((false, false), |mut url| {
        let certificate = url.take::<String>("cert").is_ok_and(|cert| cert.is_some());
        (url.user().is_some(), certificate)
    });
    if login {
        // A server that knows no users refuses a login.
        Finding::new(Level::Good, "access", "we are known to the server")
    } else if certificate {
        Finding::new(
            Level::Note,
            "access",
            "we show a certificate; whether the server asks everybody for one is not known",
        )
    } else {
        Finding::new(
            Level::Note,
            "access",
            "no login was needed: whoever reaches the server can take and free every lock",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_known_mistakes_are_unsafe() {
        for (text, level) in [
            ("3.3.27", Level::Unsafe),
            ("3.4.23", Level::Unsafe),
            ("3.4.31", Level::Unsafe),
            ("3.4.38", Level::Good),
            ("3.5.12", Level::Unsafe),
            ("3.5.23", Level::Good),
            ("3.6.4", Level::Unsafe),
            ("3.6.5", Level::Good),
            ("3.7.0", Level::Good),
            ("4.0.0", Level::Good),
        ] {
            assert_eq!(version(text).level, level, "{text}");
        }
        assert!(version("3.4.30").text.contains("3.4.31"));
    }

    #[test]
    fn alarms_and_a_full_database_are_seen() {
        use AlarmType::{Corrupt, Nospace};
        assert_eq!(raised_alarms(vec![]).level, Level::Good);
        assert!(raised_alarms(vec![Nospace]).text.contains("disarm"));
        assert_eq!(raised_alarms(vec![Nospace, Corrupt]).level, Level::Unsafe);
        assert_eq!(room(100 << 20, Some(DEFAULT_QUOTA)).level, Level::Good);
        assert_eq!(room(1700 << 20, Some(DEFAULT_QUOTA)).level, Level::Note);
        let unknown = room(1 << 20, None);
        assert_eq!(unknown.level, Level::Note, "{}", unknown.text);
    }
}
