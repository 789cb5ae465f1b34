//! Where the folder of the file backend lies.

use std::path::Path;

use crate::doctor::{Finding, Level, Patient};

/// File systems that other hosts may have mounted too (`statfs(2)`).
#[cfg(target_os = "linux")]
const NETWORK: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x517b, "SMB"),
    (0x00c3_6400, "Ceph"),
    (0x0102_1997, "9P"),
    (0x5346_414f, "AFS"),
    (0x6573_5546, "FUSE"),
];

pub(crate) async fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let identity = patient.locks.identity();
    let folder = Path::new(identity.strip_prefix("file:").unwrap_or(identity));
    let mut findings = vec![network(folder)];
    if folder.starts_with("/tmp") || folder.starts_with("/var/tmp") {
        findings.push(Finding::new(
            Level::Note,
            "folder",
            "temporary folders are emptied now and then; the files are marked to be kept, but not every cleaner looks",
        ));
    }
    findings
}

#[cfg(target_os = "linux")]
fn network(folder: &Path) -> Finding {
    let kind = rustix::fs::statfs(folder).map(|found| found.f_type as u64 & 0xffff_ffff);
    let known = kind
        .ok()
        .and_then(|kind| NETWORK.iter().find(|(magic, _)| *magic == kind));
    match known {
        Some((_, name)) => Finding::new(
            Level::Unsafe,
            "file system",
            format!(
                "{} is on {name}: its locks may not reach other hosts, or outlive their process; use a local folder",
                folder.display()
            ),
        ),
        None => Finding::new(
            Level::Good,
            "file system",
            format!("{} is local", folder.display()),
        ),
    }
}

#[cfg(not(target_os = "linux"))]
fn network(folder: &Path) -> Finding {
    Finding::new(
        Level::Note,
        "file system",
        format!("make sure that {} is a local folder", folder.display()),
    )
}
