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
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x7461_636f, "OCFS2"),
    (0x1983_0326, "BeeGFS"),
];

/// And those that only this host has.
#[cfg(target_os = "linux")]
const LOCAL: &[(u64, &str)] = &[
    (0xef53, "ext"),
    (0x5846_5342, "XFS"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "ZFS"),
    (0xf2f5_2010, "F2FS"),
    (0xca45_1a4e, "bcachefs"),
    (0x3153_464a, "JFS"),
    (0x5265_4973, "ReiserFS"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlay"),
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
    judge(kind.ok(), folder)
}

#[cfg(target_os = "linux")]
fn judge(kind: Option<u64>, folder: &Path) -> Finding {
    let folder = folder.display();
    let of = |list: &'static [(u64, &str)]| list.iter().find(|(magic, _)| Some(*magic) == kind);
    let (level, text) = if let Some((_, name)) = of(NETWORK) {
        (
            Level::Unsafe,
            format!(
                "{folder} is on {name}: its locks may not reach other hosts, or outlive their process; use a local folder"
            ),
        )
    } else if of(LOCAL).is_some() {
        (Level::Good, format!("{folder} is local"))
    } else {
        (
            Level::Note,
            format!(
                "{folder} is on a file system that dlock does not know: make sure that it is local"
            ),
        )
    };
    Finding::new(level, "file system", text)
}

#[cfg(not(target_os = "linux"))]
fn network(folder: &Path) -> Finding {
    Finding::new(
        Level::Note,
        "file system",
        format!("make sure that {} is a local folder", folder.display()),
    )
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_system_that_is_known_to_be_local_is_good() {
        for (kind, level) in [
            (Some(0xef53), Level::Good),
            (Some(0x6969), Level::Unsafe),
            (Some(0x0bad_cafe), Level::Note),
            (None, Level::Note),
        ] {
            assert_eq!(judge(kind, Path::new("/x")).level, level, "{kind:?}");
        }
    }
}
