use crate::renew::Extend;
use crate::schema::guarded;

/// The SQL of this mode, with the names of the tables filled in.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) acquire: String,
    pub(crate) acquire_closely: String,
    pub(crate) peek: String,
    pub(crate) first_use: String,
    pub(crate) release: String,
    pub(crate) undo: String,
    pub(crate) mark: String,
    pub(crate) forget: String,
    pub(crate) part_acquire: String,
    pub(crate) part_release: String,
    pub(crate) part_undo: String,
    pub(crate) downgrade: String,
    pub(crate) inspect: String,
    pub(crate) list: String,
    pub(crate) end: String,
    pub(crate) part_end: String,
    pub(crate) sweep: String,
    pub(crate) sweep_dead: String,
    pub(crate) extend: Extend,
    pub(crate) part_extend: Extend,
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
            undo: one(include_str!("../sql/lease_undo.sql")),
            mark: one(include_str!("../sql/abandon_mark.sql")),
            forget: one(include_str!("../sql/abandon_forget.sql")),
            part_acquire: one(include_str!("../sql/holders_acquire.sql")),
            part_release: one(include_str!("../sql/holders_release.sql")),
            part_undo: one(include_str!("../sql/holders_undo.sql")),
            downgrade: one(include_str!("../sql/downgrade.sql")),
            inspect: one(include_str!("../sql/inspect.sql")),
            list: one(include_str!("../sql/list.sql")),
            end: one(include_str!("../sql/lease_break.sql")),
            part_end: one(include_str!("../sql/holders_break.sql")),
            sweep: one(include_str!("../sql/sweep.sql")),
            sweep_dead: one(include_str!("../sql/sweep_dead.sql")),
            extend: Extend::new(
                &one(include_str!("../sql/lease_renew.sql")),
                &one(include_str!("../sql/lease_still_ours.sql")),
            ),
            part_extend: Extend::new(
                &one(include_str!("../sql/holders_renew.sql")),
                &one(include_str!("../sql/holders_still_ours.sql")),
            ),
        }
    }
}
