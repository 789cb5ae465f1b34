//! The cases, by theme.

mod abandon;
mod batches;
mod cancel;
mod deaths;
mod deny;
mod drops;
mod ends;
mod exclusion;
mod fairness;
mod half_open;
mod leases;
mod limits;
mod linger;
mod looks;
mod loss;
mod lost_replies;
mod max_hold;
mod modes;
mod names;
mod pass_on;
mod reach;
mod residue;
mod skew;
mod stale;
mod tokens;
mod validity;
mod wakeup;
mod wanted;
mod words;

use crate::Case;

/// Every case of the suite.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    [
        exclusion::CASES,
        names::CASES,
        limits::CASES,
        reach::CASES,
        stale::CASES,
        validity::CASES,
        loss::CASES,
        tokens::CASES,
        deaths::CASES,
        cancel::CASES,
        abandon::CASES,
        drops::CASES,
        lost_replies::CASES,
        residue::CASES,
        wakeup::CASES,
        fairness::CASES,
        modes::CASES,
        max_hold::CASES,
        pass_on::CASES,
        linger::CASES,
        wanted::CASES,
        leases::CASES,
        ends::CASES,
        batches::CASES,
        looks::CASES,
        words::CASES,
        half_open::CASES,
        deny::CASES,
        skew::CASES,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::Clause;

    #[test]
    fn every_clause_has_a_case() {
        for clause in Clause::ALL {
            let found = cases().any(|case| case.clause == *clause);
            assert!(found, "{clause} has no case: {}", clause.summary());
        }
    }

    #[test]
    fn names_are_unique() {
        let mut seen = HashSet::new();
        for case in cases() {
            assert!(seen.insert(case.name), "{} is there twice", case.name);
        }
    }

    #[test]
    fn clauses_are_numbered_without_a_gap() {
        for (index, clause) in Clause::ALL.iter().enumerate() {
            assert_eq!(clause.to_string(), format!("C{}", index + 1));
        }
    }
}
