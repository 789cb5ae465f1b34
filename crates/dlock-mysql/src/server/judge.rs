//! Whether a server can keep locks in a mode.

use std::collections::HashMap;

use crate::config::LockMode;
use crate::connect::Answer;

/// The server's settings, as it tells them.
pub(super) type Variables = HashMap<String, String>;

pub(super) fn found(answer: &Answer) -> Variables {
    answer
        .rows
        .iter()
        .filter_map(|row| Some((row.text(0)?, row.text(1)?)))
        .collect()
}

fn is_on(found: &Variables, name: &str) -> bool {
    found
        .get(name)
        .is_some_and(|value| matches!(value.as_str(), "ON" | "1" | "YES"))
}

/// Whether a variable that says "read-only" says no. What is not known says yes.
pub(crate) fn is_off(value: &str) -> bool {
    matches!(value, "OFF" | "0" | "NO")
}

pub(super) fn version(found: &Variables) -> &str {
    found.get("version").map_or("", String::as_str)
}

pub(super) fn is_maria(version: &str) -> bool {
    version.contains("MariaDB")
}

pub(super) fn logs_statements(found: &Variables) -> bool {
    let format = found.get("binlog_format").map(String::as_str);
    is_on(found, "log_bin") && format == Some("STATEMENT")
}

/// The reason why the mode would break on this server. It is `is_direct` when it calls our connection by the number that we were greeted with.
pub(super) fn judge(mode: LockMode, found: &Variables, is_direct: bool) -> Result<(), String> {
    if let Some(too_old) = too_old(version(found)) {
        return Err(too_old);
    }
    for variable in ["super_read_only", "read_only", "innodb_read_only"] {
        let value = found.get(variable);
        if variable == "read_only" && value.is_none() {
            return Err(
                "the server does not tell whether it is read-only (the variable read_only): is it a MySQL or MariaDB?"
                    .to_owned(),
            );
        }
        if value.is_some_and(|value| !is_off(value)) {
            return Err(format!(
                "the server is read-only ({variable} is on), as a replica is: connect to the primary, which all clients must use"
            ));
        }
    }
    let several = several_writers(found);
    if mode == LockMode::Session && logs_statements(found) {
        return Err(
            "the server logs statements (binlog_format is STATEMENT), and then locks no rows at READ COMMITTED, which mode=session \
             needs. Let it log rows (ROW or MIXED), or use another mode"
                .to_owned(),
        );
    }
    if !is_direct && matches!(mode, LockMode::Session | LockMode::Advisory) {
        return Err(format!(
            "between this program and the server is a proxy that has connections of its own: locks of mode={mode} belong to a \
             connection, and would be given to others with it. Connect to the server itself, or use mode=lease"
        ));
    }
    match (several, mode) {
        (None, _) | (Some(_), LockMode::Lease) => Ok(()),
        (Some(several), LockMode::Unique) => Err(format!(
            "the server belongs to {several}: its automatic numbers do not increase from node to node, so mode=unique would \
             give wrong tokens. Use mode=lease"
        )),
        (Some(several), _) => Err(format!(
            "the server belongs to {several}: locks of mode={mode} are known to one node only, so clients of two nodes would \
             hold the same lock. Use mode=lease"
        )),
    }
}

/// What makes several nodes take writes, if something does: each of them has named locks, row locks and automatic numbers of its own.
pub(super) fn several_writers(found: &Variables) -> Option<&'static str> {
    // Percona's cluster does not show wsrep_on.
    let provider = found.get("wsrep_provider").map_or("", String::as_str);
    let is_galera = match found.get("wsrep_on") {
        Some(_) => is_on(found, "wsrep_on"),
        None => !matches!(provider, "" | "none"),
    };
    if is_galera {
        Some("a Galera cluster (wsrep_on, wsrep_provider)")
    } else if found
        .get("group_replication_group_name")
        .is_some_and(|name| !name.is_empty())
        && found
            .get("group_replication_single_primary_mode")
            .is_some_and(|value| value == "OFF")
    {
        Some("a group with several primaries (group_replication_single_primary_mode is off)")
    } else {
        None
    }
}

fn too_old(version: &str) -> Option<String> {
    // Old MariaDB servers put this in front, for old replicas.
    let digits = version.strip_prefix("5.5.5-").unwrap_or(version);
    let mut parts = digits
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (parts.next(), parts.next()) else {
        return Some(format!(
            "the server's version is {version:?}, which tells nothing: MySQL 8.0 or MariaDB 10.6 is needed, or later"
        ));
    };
    let number = (major, minor);
    let least = if is_maria(version) { (10, 6) } else { (8, 0) };
    (number < least).then(|| {
        format!("the server's version is {version}: MySQL 8.0 or MariaDB 10.6 is needed, or later")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server tells that takes writes, unless it says otherwise.
    fn variables(of: &[(&str, &str)]) -> Variables {
        [("read_only", "OFF")]
            .iter()
            .chain(of)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn servers_that_break_a_mode_are_refused_with_the_reason() {
        use LockMode::{Advisory, Lease, Session, Unique};
        const MARIA: (&str, &str) = ("version", "10.11.6-MariaDB-0+deb12u1");
        for (found, modes, expected) in [
            (vec![("version", "5.7.44")], vec![Lease], "5.7.44"),
            (
                vec![("version", "5.5.5-10.3.1-MariaDB")],
                vec![Lease],
                "10.6",
            ),
            (
                vec![MARIA, ("wsrep_on", "ON")],
                vec![Unique, Session, Advisory],
                "Galera",
            ),
            (
                vec![
                    ("version", "8.0.36"),
                    ("group_replication_group_name", "g"),
                    ("group_replication_single_primary_mode", "OFF"),
                ],
                vec![Unique, Session, Advisory],
                "several primaries",
            ),
            (
                vec![MARIA, ("log_bin", "ON"), ("binlog_format", "STATEMENT")],
                vec![Session],
                "ROW or MIXED",
            ),
            (
                vec![
                    ("version", "8.0.36"),
                    ("wsrep_provider", "/usr/lib/libgalera_smm.so"),
                ],
                vec![Unique, Session, Advisory],
                "Galera",
            ),
            (vec![("version", "")], vec![Lease], "tells nothing"),
            (vec![], vec![Lease], "tells nothing"),
            (
                vec![MARIA, ("read_only", "NO_LOCK")],
                vec![Lease, Session],
                "connect to the primary",
            ),
            (
                vec![MARIA, ("read_only", "ON")],
                vec![Lease, Unique, Session, Advisory],
                "connect to the primary",
            ),
        ] {
            for mode in modes {
                let reason = judge(mode, &variables(&found), true).expect_err(expected);
                assert!(reason.contains(expected), "{reason}");
            }
        }
    }

    #[test]
    fn good_servers_are_taken() {
        for found in [
            vec![
                ("version", "10.6.0-MariaDB"),
                ("wsrep_on", "OFF"),
                ("wsrep_provider", "/usr/lib/libgalera_smm.so"),
                ("read_only", "OFF"),
            ],
            vec![
                ("version", "8.0.36"),
                ("group_replication_single_primary_mode", "ON"),
            ],
            vec![("version", "11.4.2-MariaDB")],
            vec![("version", "9.1.0")],
        ] {
            for mode in [
                LockMode::Lease,
                LockMode::Unique,
                LockMode::Session,
                LockMode::Advisory,
            ] {
                assert_eq!(judge(mode, &variables(&found), true), Ok(()), "{found:?}");
            }
        }
        assert_eq!(
            judge(
                LockMode::Lease,
                &variables(&[("version", "8.0.36"), ("wsrep_on", "ON")]),
                true
            ),
            Ok(())
        );
    }

    #[test]
    fn a_server_that_hides_whether_it_takes_writes_is_refused() {
        let mut found = variables(&[("version", "9.1.0")]);
        found.remove("read_only");
        let reason = judge(LockMode::Lease, &found, true).expect_err("it does not tell");
        assert!(reason.contains("does not tell"), "{reason}");
    }

    #[test]
    fn proxies_that_share_connections_break_the_modes_that_live_on_one() {
        let found = variables(&[("version", "8.0.36")]);
        for mode in [LockMode::Session, LockMode::Advisory] {
            let reason = judge(mode, &found, false).expect_err("a proxy");
            assert!(reason.contains("is a proxy"), "{reason}");
        }
        for mode in [LockMode::Lease, LockMode::Unique] {
            assert_eq!(judge(mode, &found, false), Ok(()));
        }
    }
}
