//! What makes locks in a ZooKeeper unsafe.

use dlock_zk::Config;
use dlock_zk::client::zookeeper_client::{Client, Permission};
use dlocks::backend::BackendUrl;

use crate::doctor::{Finding, Level, Patient, numbers, quorum, session, wire};

pub(crate) async fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let config = match Config::from_url(patient.url) {
        Ok(config) => config,
        Err(error) => return vec![Finding::new(Level::Note, "server", error.to_string())],
    };
    match config.client().await {
        Ok(client) => {
            findings.push(members(&client).await);
            findings.push(access(client, patient.locks.identity()).await);
        }
        Err(error) => findings.push(Finding::new(Level::Note, "members", error.to_string())),
    }
    if let Ok(url) = BackendUrl::parse(patient.url)
        && url.scheme() == "zk"
    {
        for host in url.hosts() {
            let address = (host.name.as_str(), host.port.unwrap_or(2181));
            findings.extend(server(address, &host.with_port(2181)).await);
        }
    } else {
        findings.push(Finding::new(
            Level::Note,
            "persistence",
            "servers are not asked over TLS which version they run and whether they sync their logs",
        ));
    }
    let limits =
        "its minSessionTimeout and maxSessionTimeout are 2 and 20 ticks unless they are set";
    findings.extend(session(patient, config.asked_session(), limits));
    findings
}

async fn members(client: &Client) -> Finding {
    match client.get_config().await {
        Ok((config, _)) => ensemble(&String::from_utf8_lossy(&config)),
        Err(error) => Finding::new(
            Level::Note,
            "members",
            format!("the server does not tell: {error}"),
        ),
    }
}

/// By the lines `server.N=…` of the ensemble's configuration; a server of its own has none.
fn ensemble(config: &str) -> Finding {
    let voters = config
        .lines()
        .filter(|line| line.starts_with("server.") && !line.contains(":observer"));
    quorum::judge(voters.count())
}

/// Who may change the folder of the locks. That we may, the measuring has shown.
async fn access(client: Client, identity: &str) -> Finding {
    // The identity is zk://hosts/chroot/folder, and the client's root is the chroot.
    let path = identity
        .splitn(4, '/')
        .nth(3)
        .map_or("/".to_owned(), |path| format!("/{path}"));
    let Ok(client) = client.chroot("/") else {
        return Finding::new(Level::Note, "access", "the root cannot be looked at");
    };
    match client.get_acl(&path).await {
        Ok((acls, _)) => {
            let open = acls
                .iter()
                .any(|acl| acl.scheme() == "world" && acl.permission().has(Permission::DELETE));
            if open {
                let text = format!(
                    "whoever reaches the server can free the locks in {path}: give user:password in the URL"
                );
                Finding::new(Level::Note, "access", text)
            } else {
                let text = format!("the locks in {path} are not open to everybody");
                Finding::new(Level::Good, "access", text)
            }
        }
        Err(error) => Finding::new(Level::Note, "access", format!("{path}: {error}")),
    }
}

/// What one server says to four-letter words, as far as it is allowed to.
async fn server(address: (&str, u16), shown: &str) -> Vec<Finding> {
    let Some(about) = wire::ask(address, "srvr").await else {
        let text = format!("{shown} does not answer");
        return vec![Finding::new(Level::Note, "server", text)];
    };
    let mut findings = vec![version(shown, &about)];
    if let Some(figures) = wire::ask(address, "mntr").await {
        findings.push(syncs(shown, &figures));
    }
    findings
}

fn version(shown: &str, about: &str) -> Finding {
    let told = about
        .lines()
        .find_map(|line| line.strip_prefix("Zookeeper version: "));
    let Some(told) = told else {
        let text = format!("{shown} does not tell: allow srvr in 4lw.commands.whitelist");
        return Finding::new(Level::Note, "version", text);
    };
    let end = told.find(['-', ',']).unwrap_or(told.len());
    let version = told.get(..end).unwrap_or(told);
    let found = numbers(version);
    if found.as_slice() < &[3, 5, 3] {
        let text =
            format!("{shown} runs {version}, which has no container nodes: use 3.8 or later");
        return Finding::new(Level::Unsafe, "version", text);
    }
    if found.as_slice() < &[3, 8] {
        let text =
            format!("{shown} runs {version}, which is no longer maintained: use 3.8 or later");
        return Finding::new(Level::Note, "version", text);
    }
    Finding::new(Level::Good, "version", format!("{shown} runs {version}"))
}

/// The measuring has written something: a server that has never synced its log since does not.
fn syncs(shown: &str, figures: &str) -> Finding {
    let count = figures
        .lines()
        .find_map(|line| line.strip_prefix("zk_cnt_fsynctime"))
        .and_then(|count| count.trim().parse::<u64>().ok());
    match count {
        Some(0) => Finding::new(
            Level::Unsafe,
            "persistence",
            format!(
                "{shown} does not sync its log: locks are lost with the power; leave forceSync on"
            ),
        ),
        Some(_) => Finding::new(Level::Good, "persistence", format!("{shown} syncs its log")),
        None => Finding::new(
            Level::Note,
            "persistence",
            format!(
                "{shown} does not tell whether it syncs its log: allow mntr in 4lw.commands.whitelist"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_judged_by_what_they_say() {
        for (said, level) in [
            (
                "Zookeeper version: 3.4.14-4c25d48, built on x\nMode: leader",
                Level::Unsafe,
            ),
            ("Zookeeper version: 3.6.3--6401e4a, built on x", Level::Note),
            (
                "Zookeeper version: 3.8.0-${mvngit.commit.id}, built on x",
                Level::Good,
            ),
            ("Zookeeper version: 3.10.1, built on x", Level::Good),
            (
                "srvr is not executed because it is not in the whitelist.",
                Level::Note,
            ),
        ] {
            assert_eq!(version("a:1", said).level, level, "{said}");
        }
        for (said, level) in [
            ("zk_cnt_fsynctime\t0", Level::Unsafe),
            ("zk_version\t3\nzk_cnt_fsynctime\t12\n", Level::Good),
            (
                "mntr is not executed because it is not in the whitelist.",
                Level::Note,
            ),
        ] {
            assert_eq!(syncs("a:1", said).level, level, "{said}");
        }
    }

    #[test]
    fn observers_do_not_count() {
        let line = |n: u32, role| format!("server.{n}=h:1:2:{role}\n");
        let three = (0..3).map(|n| line(n, "participant")).collect::<String>();
        let config = three + &line(3, "observer") + "version=0";
        assert_eq!(ensemble(&config).level, Level::Good);
        assert!(ensemble("").text.contains("one server"));
    }
}
