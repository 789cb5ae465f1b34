//! Extends what is still ours, many holds in one statement.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::LossReason;
use dlock_core::backend::{Lease, Renewal};

use crate::connect::{Arg, Job, SharedConnections};
use crate::error::Trouble;

/// Core renews 256 leases at most in one call.
const LARGEST_LIST: usize = 256;

/// The statements that extend holds of one table, and tell which are there: one text for each length of the lists, in powers of two, so that
/// each stays prepared.
#[derive(Debug)]
pub(crate) struct RenewStatements {
    renew: Vec<String>,
    still_ours: Vec<String>,
}

/// Which holds of a batch were there.
#[derive(Debug)]
pub(crate) enum Found {
    All,
    Some(HashSet<[u8; 16]>),
}

impl RenewStatements {
    pub(crate) fn new(renew: &str, still_ours: &str) -> Self {
        Self {
            renew: lists(renew),
            still_ours: lists(still_ours),
        }
    }

    /// The statement that extends one hold.
    pub(crate) fn of_one(&self) -> Option<&str> {
        self.renew.first().map(String::as_str)
    }

    pub(crate) async fn run(
        &self,
        shared: &SharedConnections,
        leases: &[&Lease],
        limit: Duration,
    ) -> Result<Found, Trouble> {
        if leases.is_empty() {
            return Ok(Found::All);
        }
        let (Some((renew, size)), Some((still_ours, _))) = (
            sized(&self.renew, leases.len()),
            sized(&self.still_ours, leases.len()),
        ) else {
            return Err(Trouble::unexpected_reply("to too many leases at once").unsent());
        };
        let ids: Vec<_> = leases.iter().map(|lease| lease.attempt()).collect();
        // The last one stands in for what the list has too many.
        let at = |index: usize| index.min(leases.len() - 1);
        let names = (0..size).filter_map(|index| leases.get(at(index)));
        let mut args: Vec<Arg<'_>> = names.map(|lease| lease.name().as_str().into()).collect();
        let owners = (0..size).filter_map(|index| ids.get(at(index)));
        args.extend(owners.map(|id| Arg::from(id.as_uuid().as_bytes().as_slice())));
        let told = shared.call(Job::Exec(renew, &args), limit).await?;
        if told.answer.affected == leases.len() as u64 {
            return Ok(Found::All);
        }
        let told = shared.call(Job::Exec(still_ours, &args), limit).await?;
        let ours = told
            .answer
            .rows
            .iter()
            .filter_map(|row| row.bytes(0)?.try_into().ok());
        Ok(Found::Some(ours.collect()))
    }
}

/// The answer for one lease of a batch.
pub(crate) fn renewal(found: &Result<Found, Trouble>, lease: &Arc<Lease>) -> Renewal {
    match found {
        Ok(Found::All) => Renewal::Extended,
        Ok(Found::Some(ours)) if ours.contains(lease.attempt().as_uuid().as_bytes()) => {
            Renewal::Extended
        }
        Ok(Found::Some(_)) => Renewal::Lost(LossReason::Gone),
        Err(trouble) => Renewal::Failed(trouble.clone().into()),
    }
}

fn lists(sql: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut size = 1;
    while size <= LARGEST_LIST {
        all.push(sql.replace("{list}", &vec!["?"; size].join(", ")));
        size *= 2;
    }
    all
}

/// The statement for so many entries, and how long its lists are. `None` when there are too many.
fn sized(lists: &[String], entries: usize) -> Option<(&str, usize)> {
    let size = entries.max(1).next_power_of_two();
    let sql = lists.get(size.trailing_zeros() as usize)?;
    Some((sql, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_rounded_up_to_powers_of_two() {
        let all = lists("IN ({list})");
        for (entries, size) in [(1, 1), (2, 2), (3, 4), (5, 8), (256, 256)] {
            let (sql, found) = sized(&all, entries).expect("in range");
            assert_eq!(found, size);
            assert_eq!(sql.matches('?').count(), size);
        }
        assert_eq!(sized(&all, 257), None);
    }
}
