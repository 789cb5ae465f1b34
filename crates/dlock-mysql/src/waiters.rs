//! Who waits in `lease` and `unique`, where there is no queue: a waiter leaves a sign, and a holder that would give way looks for it
//! ([C23](dlock_core::contract#c23)).
//!
//! A sign is a row among the abandoned attempts, under a number that no attempt has: eight bytes of the name's digest, four for the client, four for the
//! waiter. Like those rows it goes by its time, whoever removes it, so it needs no table of its own. It costs a waiter a committed
//! write, hence none before it has waited for a while: a holder hears of it with its next renewal, and not sooner.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::Name;
use tokio::time::Instant;

use crate::connect::{Arg, Job, SharedConnections};
use crate::key::digest_of;
use crate::schema::guarded;

/// Who waits for less is not worth a write.
const SHOW_AFTER: Duration = Duration::from_millis(200);
/// How often it is renewed; `waiter_show.sql` and `unique_waiter_show.sql` let it live for longer.
const SHOW_EVERY: Duration = Duration::from_secs(5);

/// The signs of one client, and what it knows of others'.
#[derive(Debug)]
pub(crate) struct Waiters {
    shared: Arc<SharedConnections>,
    client: [u8; 4],
    sql: Arc<SignStatements>,
}

#[derive(Debug)]
struct SignStatements {
    show: String,
    remove: String,
    others: String,
}

impl Waiters {
    pub(crate) fn of_lease(
        shared: &Arc<SharedConnections>,
        prefix: &str,
        takes_writes: &str,
    ) -> Self {
        let one = |sql: &str| guarded(sql, prefix, takes_writes);
        Self::new(
            shared,
            SignStatements {
                show: one(include_str!("sql/waiter_show.sql")),
                remove: one(include_str!("sql/waiter_remove.sql")),
                others: one(include_str!("sql/waiter_others.sql")),
            },
        )
    }

    pub(crate) fn of_unique(
        shared: &Arc<SharedConnections>,
        prefix: &str,
        takes_writes: &str,
    ) -> Self {
        let one = |sql: &str| guarded(sql, prefix, takes_writes);
        Self::new(
            shared,
            SignStatements {
                show: one(include_str!("sql/unique_waiter_show.sql")),
                remove: one(include_str!("sql/unique_waiter_remove.sql")),
                others: one(include_str!("sql/unique_waiter_others.sql")),
            },
        )
    }

    fn new(shared: &Arc<SharedConnections>, sql: SignStatements) -> Self {
        Self {
            shared: shared.clone(),
            client: fastrand::u32(..).to_be_bytes(),
            sql: Arc::new(sql),
        }
    }

    /// Whether somebody of another client has left a sign. Not when the server does not answer: then nobody gets the lock from it either.
    pub(crate) async fn others_wait(&self, name: &Name, limit: Duration) -> bool {
        let (first, last) = (key(name, [0; 4], [0; 4]), key(name, [0xFF; 4], [0xFF; 4]));
        let args: [Arg<'_>; 3] = [
            first.as_slice().into(),
            last.as_slice().into(),
            self.client.as_slice().into(),
        ];
        let asked = Job::Exec(&self.sql.others, &args);
        match self.shared.call(asked, limit).await {
            Ok(told) => told.answer.first_number().is_some_and(|others| others > 0),
            Err(trouble) => {
                tracing::debug!(?trouble, %name, "nobody knows whether others wait");
                false
            }
        }
    }

    /// The sign of one that begins to wait.
    pub(crate) fn sign(&self, name: &Name) -> Sign {
        Sign {
            key: key(name, self.client, fastrand::u32(..).to_be_bytes()),
            shared: self.shared.clone(),
            sql: self.sql.clone(),
            show_at: Instant::now() + SHOW_AFTER,
            is_shown: false,
        }
    }
}

fn key(name: &Name, client: [u8; 4], waiter: [u8; 4]) -> [u8; 16] {
    let mut key = [0; 16];
    let parts = digest_of(name)
        .into_iter()
        .take(8)
        .chain(client)
        .chain(waiter);
    key.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
    key
}

/// What one waiter leaves at the server. It is removed when this is dropped, in the background, and else goes by its time.
#[derive(Debug)]
pub(crate) struct Sign {
    key: [u8; 16],
    shared: Arc<SharedConnections>,
    sql: Arc<SignStatements>,
    show_at: Instant,
    is_shown: bool,
}

impl Sign {
    /// Others hold the lock still.
    pub(crate) async fn show(&mut self, limit: Duration) {
        let now = Instant::now();
        if now < self.show_at {
            return;
        }
        self.show_at = now + SHOW_EVERY;
        // Before it is sent: whoever drops this meanwhile removes it.
        self.is_shown = true;
        let args = [self.key.as_slice().into()];
        let show = Job::Exec(&self.sql.show, &args);
        if let Err(trouble) = self.shared.call(show, limit).await {
            tracing::debug!(?trouble, "a waiter could not make itself known");
        }
    }
}

impl Drop for Sign {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        if !self.is_shown {
            return;
        }
        let (key, shared, sql) = (self.key, self.shared.clone(), self.sql.clone());
        runtime.spawn(async move {
            let args = [key.as_slice().into()];
            let remove = Job::Exec(&sql.remove, &args);
            if let Err(trouble) = shared.call(remove, SHOW_EVERY).await {
                tracing::debug!(
                    ?trouble,
                    "the sign of a waiter stays until its time is over"
                );
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_a_name_stand_together() {
        let name = |text: &str| Name::new(text).expect("a good name");
        let (first, last) = (
            key(&name("a"), [0; 4], [0; 4]),
            key(&name("a"), [0xFF; 4], [0xFF; 4]),
        );
        let sign = key(&name("a"), [1, 2, 3, 4], [5, 6, 7, 8]);
        assert!(first < sign && sign < last);
        assert_eq!(sign[8..], [1, 2, 3, 4, 5, 6, 7, 8]);
        let other = key(&name("b"), [1, 2, 3, 4], [5, 6, 7, 8]);
        assert!(other < first || other > last);
    }
}
