//! What the server answers to a wish for the lock.

use dlock_core::ErrorKind;

use super::mark::MarkPeek;
use crate::connect::Answer;
use crate::error::Trouble;
use crate::server::is_off;

/// The time to wait for a row is over. So MariaDB also says that NOWAIT was in vain.
const WAITED: u16 = 1205;
/// NOWAIT, as MySQL calls it.
const NO_WAIT: u16 = 3572;

/// The answer to a wish for the lock.
#[derive(Debug, Clone, Copy)]
pub(super) enum Grab {
    Busy,
    /// It is ours.
    Granted(MarkPeek),
}

/// What `session_grab.sql` says.
pub(super) fn row_grabbed(answer: Result<Answer, Trouble>) -> Result<Grab, Trouble> {
    match answer {
        Ok(answer) if answer.rows.is_empty() => Ok(Grab::Busy),
        Ok(answer) => {
            check_writable(&answer, 1)?;
            Ok(Grab::Granted(peek(&answer, 0)))
        }
        // A wait may have been long. A deadlock ends the transaction, and has another number.
        Err(trouble) if is_row_busy(&trouble) => Ok(Grab::Busy),
        Err(trouble) => Err(trouble),
    }
}

/// What `advisory_grab.sql` says.
pub(super) fn named_grabbed(answer: &Answer) -> Result<Grab, Trouble> {
    match answer.first_number() {
        Some(1) => {
            check_writable(answer, 2)?;
            Ok(Grab::Granted(peek(answer, 1)))
        }
        Some(_) => Ok(Grab::Busy),
        // Out of memory, or the waiter was killed.
        None => Err(Trouble::new(
            ErrorKind::Store,
            "GET_LOCK answered NULL, which is an error of the server and not \"busy\": see its log",
        )),
    }
}

/// A lock of a server that was demoted excludes nobody: its successor gives the same one to others.
pub(super) fn check_writable(answer: &Answer, column: usize) -> Result<(), Trouble> {
    let row = answer.rows.first();
    match row.and_then(|row| row.text(column)) {
        Some(text) if is_off(&text) => Ok(()),
        _ => Err(Trouble::demoted()),
    }
}

fn peek(answer: &Answer, column: usize) -> MarkPeek {
    let text = answer.rows.first().and_then(|row| row.text(column));
    MarkPeek::parse(text.as_deref())
}

/// Whether others have the row locked.
pub(super) fn is_row_busy(trouble: &Trouble) -> bool {
    matches!(trouble.code, Some(WAITED | NO_WAIT))
}
