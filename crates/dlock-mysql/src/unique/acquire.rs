//! One attempt, and its undo. An attempt has three steps, each a statement:
//!
//! 1. *Claim*: insert a row of the name. Its unique key lets one in.
//! 2. *Clear the way*, where a row was there: it is another's (busy), or that of a holder that died (it is taken over), or our own, of a
//!    request that was sent before.
//! 3. *Draw the token* while the row is ours, by the statement of step 1: see `unique_claim.sql` for why the first number will not do.
//!
//! ```text
//!            row made                      token drawn
//!   claim ──────────────────────────▶ draw ───────────▶ held
//!     │                                ▲ │
//!     │ a row is there                 │ │ somebody took it meanwhile (its lease has ended; if that is by our clock too: an error, too late)
//!     ▼                     taken over │ ▼
//!   clear the way ─────────────────────┘ claim, from the beginning
//!     ├── another's, live ──▶ busy
//!     ├── gone meanwhile ───▶ claim, from the beginning
//!     └── ours, with token ─▶ held (its lease begins anew)
//! ```

use std::time::Duration;

use dlock_core::backend::{Lease, Request};
use dlock_core::{Moment, kit};

use super::UniqueLocks;
use crate::connect::{AnswerRow, Arg};
use crate::error::Trouble;
use crate::key::micros;
use crate::renew::Found;
use crate::wait::{InTheWay, Tried};

/// How often a lock that changes under our hands is looked at before it counts as busy.
const LOOKS: usize = 4;
/// "Duplicate entry".
const DUPLICATE: u16 = 1062;

/// What a claim brought.
enum Claimed {
    /// A row, by a request that was sent then.
    Now(Moment),
    /// A row of this very attempt was there, and has this token now.
    Before(u64),
    /// Nothing: a row is there.
    NotYet,
}

/// What is in the way of a claim.
enum Row {
    /// It is gone already.
    Gone,
    /// Another one holds the lock.
    Others(InTheWay),
    /// This attempt holds it, with this token.
    Ours(u64),
    /// Of a holder that died.
    Expired(u64),
}

/// The arguments of one attempt.
struct Wish<'a> {
    request: &'a Request,
    name: Arg<'a>,
    owner: Arg<'a>,
    lease: Arg<'a>,
    label: Arg<'a>,
}

impl UniqueLocks {
    pub(super) async fn try_acquire(
        &self,
        request: &Request,
        look_first: bool,
    ) -> Result<Tried, Trouble> {
        let attempt = request.attempt();
        let wish = Wish {
            request,
            name: request.name().as_str().into(),
            owner: attempt.as_uuid().as_bytes().as_slice().into(),
            lease: micros(request.lease()).into(),
            label: request.label().into(),
        };
        if look_first {
            // A claim locks the row of the holder.
            if let Row::Others(others) = self.look(&wish).await? {
                return Ok(Tried::Busy(others));
            }
        }
        for _ in 0..LOOKS {
            let from = match self.claim(&wish).await? {
                Claimed::Now(from) => from,
                Claimed::Before(token) => match self.begin_anew(request, token).await? {
                    Some(lease) => return Ok(Tried::Held(lease)),
                    None => continue,
                },
                Claimed::NotYet => match self.look(&wish).await? {
                    Row::Gone => continue,
                    Row::Others(others) => return Ok(Tried::Busy(others)),
                    Row::Ours(token) => match self.begin_anew(request, token).await? {
                        Some(lease) => return Ok(Tried::Held(lease)),
                        None => continue,
                    },
                    Row::Expired(id) => match self.take_over(&wish, id).await? {
                        Some(from) => from,
                        None => continue,
                    },
                },
            };
            if let Some(token) = self.draw(&wish).await? {
                return Ok(Tried::Held(Lease::new(request, from).with_token(token)));
            }
            if request.now() >= from + request.lease() {
                // Our row's lease ended before its token was drawn. Answers that take so long will do so again, and each new row keeps the lock
                // from others for a lease.
                return Err(kit::too_late(request.lease()).into());
            }
        }
        // Others come and go, or ours has its token already: undo what there may be, so that busy is proof.
        self.abandon(request).await?;
        Ok(Tried::Busy(InTheWay::default()))
    }

    async fn claim(&self, wish: &Wish<'_>) -> Result<Claimed, Trouble> {
        let sent = wish.request.now();
        let told = self.exec(&self.sql.claim, &wish.claim()).await?;
        Ok(match told.answer.affected {
            0 => Claimed::NotYet,
            1 => Claimed::Now(sent),
            _ => Claimed::Before(told.answer.id),
        })
    }

    /// The token; `None` when the row is not ours, or has its token already.
    async fn draw(&self, wish: &Wish<'_>) -> Result<Option<u64>, Trouble> {
        let told = self.exec(&self.sql.claim, &wish.claim()).await?;
        Ok((told.answer.affected == 2).then_some(told.answer.id))
    }

    async fn look(&self, wish: &Wish<'_>) -> Result<Row, Trouble> {
        let args = [wish.owner.clone(), wish.name.clone(), wish.owner.clone()];
        let told = self.exec(&self.sql.look, &args).await?;
        row(&told.answer.rows)
    }

    /// Takes the row of a dead holder, by a request that was sent then; `None` when somebody was faster, or the attempt was abandoned.
    async fn take_over(&self, wish: &Wish<'_>, id: u64) -> Result<Option<Moment>, Trouble> {
        let sent = wish.request.now();
        let args = [
            wish.owner.clone(),
            wish.lease.clone(),
            wish.lease.clone(),
            wish.label.clone(),
            id.into(),
        ];
        match self.exec(&self.sql.take_over, &args).await {
            Ok(told) => Ok((told.answer.affected == 1).then_some(sent)),
            Err(trouble) if trouble.code == Some(DUPLICATE) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// Begins the lease of a hold anew that this very attempt has; `None` when it is gone.
    async fn begin_anew(&self, request: &Request, token: u64) -> Result<Option<Lease>, Trouble> {
        let lease = Lease::new(request, request.now());
        let found = self
            .sql
            .renew
            .run(&self.shared, &[&lease], self.limit)
            .await?;
        Ok(match found {
            Found::Some(ours) if ours.is_empty() => None,
            _ => Some(lease.with_token(token)),
        })
    }

    pub(super) async fn abandon(&self, request: &Request) -> Result<(), Trouble> {
        let attempt = request.attempt();
        let owner = Arg::from(attempt.as_uuid().as_bytes().as_slice());
        self.exec(&self.sql.abandon, &[owner.clone(), owner])
            .await?;
        if let Err(trouble) = self.exec(&self.sql.forget, &[]).await {
            tracing::debug!(?trouble, "old markers were not removed");
        }
        Ok(())
    }
}

impl<'a> Wish<'a> {
    fn claim(&self) -> [Arg<'a>; 5] {
        [
            self.name.clone(),
            self.owner.clone(),
            self.lease.clone(),
            self.lease.clone(),
            self.label.clone(),
        ]
    }
}

/// As `unique_look.sql` tells it.
fn row(rows: &[AnswerRow]) -> Result<Row, Trouble> {
    let ours = |row: &AnswerRow| row.number(1) == Some(1);
    if rows.iter().any(|row| ours(row) && row.number(2) == Some(1)) {
        return Err(kit::abandoned().into());
    }
    let Some(row) = rows.first() else {
        return Ok(Row::Gone);
    };
    let (id, left) = (row.number(0).unwrap_or(0), row.number(4).unwrap_or(0));
    Ok(if left == 0 {
        Row::Expired(id)
    } else if !ours(row) {
        Row::Others(InTheWay {
            left: Some(Duration::from_micros(left)),
            age: row.number(5).map(Duration::from_micros),
        })
    } else if row.number(3) == Some(1) {
        Row::Ours(id)
    } else {
        Row::Gone
    })
}
