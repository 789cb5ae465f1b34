//! The short way of mode `advisory`: one statement takes a lock that is free together with its mark, and makes the mark of a lock that a
//! waiter was granted its own. Where it does not apply, the lock is asked for, the mark looked at and claimed, one after the other.

use std::time::Duration;

use dlock_core::backend::Request;

use super::kind::{Kind, Locking};
use super::mark::{HoldKey, take_args};
use crate::connect::Connection;
use crate::error::Trouble;

/// What `advisory_take.sql` says when it took nothing.
const OTHERS_HAVE_IT: u64 = 1;
const TAKES_NO_WRITES: u64 = 3;

/// What the short way brought.
#[derive(Debug, Clone, Copy)]
pub(super) enum Take {
    /// The lock and the mark are ours.
    Held(HoldKey),
    /// Another connection has the lock.
    Busy,
    /// Nothing: the owner of the mark may not have left in order, or there is no mark, or this mode has no short way on this server.
    LongWay,
    /// Others were busy with the mark's row for too long. The lock may have been granted all the same, by this statement or before it.
    RowIsBusy,
}

impl Kind {
    /// Takes a lock and its mark at once, if it is free and its last holder has left in order.
    pub(super) async fn take(
        &self,
        connection: &mut Connection,
        request: &Request,
        valid: Duration,
    ) -> Result<Take, Trouble> {
        let Locking::Named {
            short_way: Some(short_way),
            ..
        } = &self.how
        else {
            return Ok(Take::LongWay);
        };
        let attempt = request.attempt();
        let lock = self.named_lock(request.name());
        let args = take_args(request, &attempt, valid, connection.call_sign(), &lock);
        let answer = match connection.exec(&short_way.take, &args).await {
            Ok(answer) => answer,
            Err(trouble) if trouble.contended => return Ok(Take::RowIsBusy),
            Err(trouble) => return Err(trouble.in_doubt()),
        };
        match (answer.affected, answer.id) {
            (1, fence) => Ok(Take::Held(HoldKey { attempt, fence })),
            (_, OTHERS_HAVE_IT) => Ok(Take::Busy),
            (_, TAKES_NO_WRITES) => Err(Trouble::demoted()),
            _ => Ok(Take::LongWay),
        }
    }
}
