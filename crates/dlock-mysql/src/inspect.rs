//! Rows -> what people and tools get to know.

use std::time::{Duration, SystemTime};

use dlock_core::{FencingToken, HolderInfo, LockInfo, Mode, Name};

use crate::connect::Line;

/// One lock.
pub(crate) fn lock(name: &Name, lines: &[Line]) -> LockInfo {
    let mut info = LockInfo::new(name.clone());
    info.holders = lines.iter().filter_map(holder).collect();
    info
}

/// Many, in the order of the rows.
pub(crate) fn locks(lines: &[Line]) -> Vec<LockInfo> {
    let mut found: Vec<LockInfo> = Vec::new();
    for line in lines {
        let name = line.text(0).and_then(|name| Name::new(name).ok());
        let (Some(name), Some(holder)) = (name, holder(line)) else {
            continue;
        };
        match found.last_mut().filter(|info| info.name == name) {
            Some(info) => info.holders.push(holder),
            None => {
                let mut info = LockInfo::new(name);
                info.holders.push(holder);
                found.push(info);
            }
        }
    }
    found
}

/// A row of `inspect.sql`.
fn holder(line: &Line) -> Option<HolderInfo> {
    let mode = match line.number(2) {
        None => Mode::Exclusive,
        Some(0) => Mode::Shared,
        Some(permits) => Mode::Permit {
            limit: u32::try_from(permits).ok()?,
        },
    };
    let owner: String = line
        .bytes(1)?
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let mut holder = HolderInfo::new(owner, mode);
    holder.token = line.number(3).map(FencingToken::new);
    holder.expires_in = line.number(4).map(Duration::from_micros);
    holder.since = line
        .number(5)
        .and_then(|micros| SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros)));
    holder.label = line.text(6).unwrap_or_default();
    Some(holder)
}
