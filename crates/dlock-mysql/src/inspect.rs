//! Rows -> what people and tools get to know.

use std::time::{Duration, SystemTime};

use dlock_core::{FencingToken, HolderInfo, LockInfo, Mode, Name};

use crate::connect::AnswerRow;
use crate::fence::first_of;

/// One lock.
pub(crate) fn lock(name: &Name, rows: &[AnswerRow]) -> LockInfo {
    let mut info = LockInfo::new(name.clone());
    info.holders = rows.iter().filter_map(holder).collect();
    info
}

/// Many, in the order of the rows.
pub(crate) fn locks(rows: &[AnswerRow]) -> Vec<LockInfo> {
    let mut found: Vec<LockInfo> = Vec::new();
    for row in rows {
        let name = row.text(0).and_then(|name| Name::new(name).ok());
        let (Some(name), Some(holder)) = (name, holder(row)) else {
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
fn holder(row: &AnswerRow) -> Option<HolderInfo> {
    let mode = match row.number(2) {
        None => Mode::Exclusive,
        Some(0) => Mode::Shared,
        Some(permits) => Mode::Permit {
            limit: u32::try_from(permits).ok()?,
        },
    };
    let owner: String = row
        .bytes(1)?
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let mut holder = HolderInfo::new(owner, mode);
    let first = |token| match mode {
        Mode::Exclusive => first_of(token),
        _ => token,
    };
    holder.token = row.number(3).map(first).map(FencingToken::new);
    holder.expires_in = row.number(4).map(Duration::from_micros);
    holder.since = row
        .number(5)
        .and_then(|micros| SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros)));
    holder.label = row.text(6).unwrap_or_default();
    Some(holder)
}
