//! A connection that carries one hold, or one wish for it, and how the server knows it.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::ErrorKind;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::{SessionLocks, within};
use crate::config::Config;
use crate::connect::{Arg, Job, Turns, Wire};
use crate::error::Trouble;

/// How often a connection that is being ended is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// One connection. It does nothing else until its hold is over.
#[derive(Debug)]
pub(super) struct Carrier {
    wire: Wire,
    pub(super) sign: i64,
}

impl Carrier {
    pub(super) async fn ask(&mut self, sql: &str, args: &[Arg<'_>]) -> Result<Vec<Row>, Trouble> {
        self.wire.ask_often(sql, args).await
    }

    /// Asks for one number.
    pub(super) async fn number(&mut self, sql: &str, args: &[Arg<'_>]) -> Result<i32, Trouble> {
        let rows = self.ask(sql, args).await?;
        let number = rows.first().and_then(|row| row.try_get(0).ok());
        number.ok_or_else(|| Trouble::unexpected_reply("nothing that we understand"))
    }

    /// A sign of life, without a question.
    pub(super) async fn ping(&mut self) -> Result<(), Trouble> {
        self.wire.text("").await
    }

    pub(super) async fn close(self) {
        self.wire.close().await;
    }
}

/// For how long the server lets a connection be silent before it ends it (PostgreSQL 14 and later; older ones by their keep-alives). By then a
/// hold on it is over, as its last sign of life is good no more.
fn silence(validity: Duration) -> Duration {
    validity.max(Duration::from_secs(1))
}

/// What belongs to a connection that carries: it waits as long as it takes, and is ended when it is silent for too long. Where the server can,
/// it looks whether those who wait are still there. No time-out for locks would be 0, which our functions take for "not set".
fn setup(config: &Config, sign: i64) -> String {
    let silent = silence(config.session_validity);
    let (ms, seconds) = (silent.as_millis(), silent.as_secs().max(1));
    format!(
        "SET lock_timeout = 2147483647; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; \
         SET default_transaction_isolation = 'read committed'; \
         SET tcp_keepalives_idle = {seconds}; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 3; \
         SELECT set_config(name, '{ms}', false) FROM pg_settings WHERE name = 'idle_session_timeout'; \
         SELECT set_config(name, '1000', false) FROM pg_settings WHERE name = 'client_connection_check_interval' AND version() ~ 'linux'; \
         SELECT pg_advisory_lock({sign})"
    )
}

impl SessionLocks {
    /// A connection for one attempt; whether it was used before.
    pub(super) async fn carrier(&self) -> Result<(Carrier, bool), Trouble> {
        let spare = {
            let mut spare = self.spare();
            spare.retain(|carrier| self.is_fresh(carrier));
            spare.pop()
        };
        match spare {
            Some(carrier) => Ok((carrier, true)),
            None => Ok((self.open().await?, false)),
        }
    }

    pub(super) async fn open(&self) -> Result<Carrier, Trouble> {
        let mut wire = self.shared.open_alone().await?;
        let sign = fastrand::i64(..);
        let begin = setup(&self.config, sign);
        let prepare = async {
            wire.text(&begin).await?;
            if self.config.prepare {
                wire.learn(&self.often).await?;
            }
            Ok(())
        };
        within(self.config.answer_timeout, prepare)
            .await
            .map_err(Trouble::unsent)?;
        Ok(Carrier { wire, sign })
    }

    /// Keeps a connection that holds nothing for the next attempt.
    pub(super) fn keep(&self, carrier: Carrier) {
        let mut spare = self.spare();
        spare.retain(|carrier| self.is_fresh(carrier));
        if spare.len() < self.config.connections && carrier.wire.is_open() {
            spare.push(carrier);
        }
    }

    /// Not for so long without a word that the server may have ended it.
    fn is_fresh(&self, carrier: &Carrier) -> bool {
        carrier.wire.idle_for() * 2 < silence(self.config.session_validity)
    }

    pub(super) fn spare(&self) -> MutexGuard<'_, Vec<Carrier>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a connection, and returns when the server has let go of what it held.
    pub(super) async fn end(&self, sign: i64, limit: Duration) -> Result<(), Trouble> {
        self.end_by(sign, limit, Turns::Calls).await
    }

    /// The same, in the turn of others.
    pub(super) async fn end_by(
        &self,
        sign: i64,
        limit: Duration,
        turns: Turns,
    ) -> Result<(), Trouble> {
        let known = || self.yes(&self.sql.known, sign, limit, turns);
        if !known().await? {
            return Ok(());
        }
        let args: [Arg<'_>; 1] = [(&sign, Type::INT8)];
        let job = Job::Ask(&self.sql.end, &args);
        self.shared
            .call_by(job, limit, turns)
            .await
            .map_err(|trouble| trouble.about("ending a connection in doubt"))?;
        let gone = async {
            while known().await? {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Ok(())
        };
        within(limit, gone).await
    }

    /// Whether the connection waits for a key.
    pub(super) async fn waits(&self, sign: i64, limit: Duration) -> Result<bool, Trouble> {
        self.yes(&self.sql.waits, sign, limit, Turns::Calls).await
    }

    async fn yes(
        &self,
        sql: &str,
        sign: i64,
        limit: Duration,
        turns: Turns,
    ) -> Result<bool, Trouble> {
        let args: [Arg<'_>; 1] = [(&sign, Type::INT8)];
        let job = Job::Ask(sql, &args);
        self.shared.call_by(job, limit, turns).await?.first()
    }

    /// Tries everything once, so that a missing permission shows at connect. It changes nothing, for no lock has such a name.
    pub(crate) async fn rehearse(&self) -> Result<(), Trouble> {
        let about = |trouble: Trouble| trouble.about("checking what we may do").unsent();
        let (mut carrier, _) = self.carrier().await.map_err(about)?;
        let (name, nobody, zero) = ("", uuid::Uuid::nil(), 0_i64);
        let args: [Arg<'_>; 3] = [
            (&name, Type::TEXT),
            (&nobody, Type::UUID),
            (&zero, Type::INT8),
        ];
        let limit = self.config.connect_timeout;
        let gone = carrier.number(&self.sql.prove, &args);
        let gone = within(limit, gone).await.map_err(about)?;
        let known = self.yes(&self.sql.known, carrier.sign, limit, Turns::Calls);
        known.await.map_err(about)?;
        if gone != 2 {
            return Err(Trouble::new(
                ErrorKind::Store,
                "the functions of mode=session answer strangely",
            )
            .unsent());
        }
        self.keep(carrier);
        Ok(())
    }
}
