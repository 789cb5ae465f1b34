use crate::renew::RenewStatements;
use crate::schema::guarded;

/// The SQL of this mode, with the names of the tables filled in.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) acquire: String,
    pub(crate) acquire_closely: String,
    pub(crate) peek: String,
    pub(crate) first_use: String,
    pub(crate) release: String,
    pub(crate) abandon: String,
    pub(crate) mark: String,
    pub(crate) forget: String,
    pub(crate) part_acquire: String,
    pub(crate) part_release: String,
    pub(crate) part_abandon: String,
    pub(crate) downgrade: String,
    pub(crate) inspect: String,
    pub(crate) list: String,
    pub(crate) break_lock: String,
    pub(crate) part_break_lock: String,
    pub(crate) sweep: String,
    pub(crate) sweep_dead: String,
    pub(crate) renew: RenewStatements,
    pub(crate) part_renew: RenewStatements,
}

impl Statements {
    pub(crate) fn new(prefix: &str, takes_writes: &str, bells: bool) -> Self {
        let one = |sql: &str| guarded(sql, prefix, takes_writes);
        // Where there are no bells nobody has the named lock, and a log of statements could not repeat the question.
        let who_waits = if bells {
            "IS_USED_LOCK(?), IS_USED_LOCK(?)"
        } else {
            "IF(? IS NULL AND ? IS NULL, 1, NULL)"
        };
        Self {
            acquire: one(include_str!("../sql/lease_acquire.sql")),
            acquire_closely: one(include_str!("../sql/lease_acquire_closely.sql")),
            peek: one(include_str!("../sql/lease_peek.sql")),
            first_use: one(include_str!("../sql/lease_first_use.sql")),
            release: one(include_str!("../sql/lease_release.sql"))
                .replace("{who_waits}", who_waits),
            abandon: one(include_str!("../sql/lease_abandon.sql")),
            mark: one(include_str!("../sql/abandon_mark.sql")),
            forget: one(include_str!("../sql/abandon_forget.sql")),
            part_acquire: one(include_str!("../sql/holders_acquire.sql")),
            part_release: one(include_str!("../sql/holders_release.sql")),
            part_abandon: one(include_str!("../sql/holders_abandon.sql")),
            downgrade: one(include_str!("../sql/downgrade.sql")),
            inspect: one(include_str!("../sql/inspect.sql")),
            list: one(include_str!("../sql/list.sql")),
            break_lock: one(include_str!("../sql/lease_break.sql")),
            part_break_lock: one(include_str!("../sql/holders_break.sql")),
            sweep: one(include_str!("../sql/sweep.sql")),
            sweep_dead: one(include_str!("../sql/sweep_dead.sql")),
            renew: RenewStatements::new(
                &one(include_str!("../sql/lease_renew.sql")),
                &one(include_str!("../sql/lease_still_ours.sql")),
            ),
            part_renew: RenewStatements::new(
                &one(include_str!("../sql/holders_renew.sql")),
                &one(include_str!("../sql/holders_still_ours.sql")),
            ),
        }
    }
}
