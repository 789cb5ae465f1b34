//! Mode `lease`: a row with the time until which it is held, and a queue.

mod acquire;
mod backend;
mod inspect;
mod listener;
mod release;
mod renew;
mod wait;
mod wanted;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Capabilities, Fairness, Hearing, Liveness, Reach, WakeUp};
use tokio_postgres::types::Type;

pub(crate) use self::backend::LeaseBackend;
pub(crate) use self::inspect::{lock, locks};
use self::listener::Listener;
use crate::config::Config;
use crate::connect::{Often, SharedConnections};
use crate::error::Trouble;
use crate::fence::TURNS;
use crate::schema;

/// How soon a waiter that listens wakes, and a holder hears that somebody waits, with nobody disturbing.
const BOUND: Duration = Duration::from_millis(50);
/// The longest pause of a waiter that asks.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Locks of mode `lease`. The verbs of the backend are methods of it, each in the file of its name.
#[derive(Debug)]
pub(crate) struct LeaseLocks {
    shared: Arc<SharedConnections>,
    sql: Statements,
    waiter_lease: Duration,
    listener: Listener,
    capabilities: Capabilities,
    identity: String,
}

/// The statements, with the names of the functions filled in.
#[derive(Debug)]
struct Statements {
    acquire: String,
    release: String,
    renew: String,
    downgrade: String,
    break_lock: String,
    sweep: String,
    inspect: String,
    list: String,
    waiters: String,
    listen: String,
}

impl Statements {
    fn new(config: &Config) -> Self {
        let fill = |sql: &str| schema::statement(sql, config);
        let look = |which: &str| fill(&include_str!("../sql/look.sql").replace("{which}", which));
        Self {
            acquire: fill(
                "SELECT said, number, last_token FROM {prefix}acquire($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            ),
            release: fill("SELECT {prefix}release($1, $2, $3)"),
            renew: fill("SELECT renewed, left_out FROM {prefix}renew($1, $2, $3)"),
            downgrade: fill("SELECT {prefix}downgrade($1, $2)"),
            break_lock: fill("SELECT {prefix}break($1)"),
            sweep: fill("SELECT {prefix}sweep($1)"),
            inspect: look("name = $1"),
            list: look("starts_with(name, $1)"),
            waiters: fill(
                "SELECT EXISTS (SELECT FROM {prefix}waiters WHERE name = $1 AND client <> $2 AND until > clock_timestamp())",
            ),
            listen: fill("SELECT {prefix}listen($1, $2, $3, $4)"),
        }
    }
}

impl LeaseLocks {
    /// `listens`: no pooler stands in between, and the user wants it.
    pub(crate) fn new(
        shared: Arc<SharedConnections>,
        config: &Config,
        identity: String,
        listens: bool,
    ) -> Self {
        Self {
            sql: Statements::new(config),
            waiter_lease: config.waiter_lease,
            listener: Listener::new(shared.clone(), listens),
            capabilities: capabilities(listens),
            identity,
            shared,
        }
    }

    /// What a connection is told once.
    pub(crate) fn often(&self) -> Vec<Often> {
        let (text, uuid, long) = (Type::TEXT, Type::UUID, Type::INT8);
        let who = [text.clone(), uuid];
        let acquire = [
            &who[..],
            &[
                Type::INT4,
                long.clone(),
                text.clone(),
                text.clone(),
                long.clone(),
                long.clone(),
                text,
            ],
        ];
        vec![
            (self.sql.acquire.clone(), acquire.concat()),
            (self.sql.release.clone(), [&who[..], &[long]].concat()),
            (
                self.sql.renew.clone(),
                vec![Type::TEXT_ARRAY, Type::UUID_ARRAY, Type::BOOL],
            ),
        ]
    }

    /// Shows a missing permission now: it changes nothing, for no lock has such a name.
    pub(crate) async fn rehearse(&self) -> Result<(), Trouble> {
        let about = |trouble: Trouble| trouble.about("checking what we may do").unsent();
        let memory = Duration::from_micros(1);
        self.end_attempt("", uuid::Uuid::nil(), memory, self.shared.limit())
            .await
            .map_err(about)?;
        self.ask_about("").await.map_err(about)?;
        Ok(())
    }

    /// Ends all connections.
    pub(crate) async fn close(&self) {
        self.listener.close();
        self.shared.close().await;
    }
}

fn capabilities(listens: bool) -> Capabilities {
    let mut capabilities = Capabilities::new("postgres");
    capabilities.fencing = true;
    capabilities.fairness = Fairness::Fifo;
    capabilities.wake_up = if listens {
        WakeUp::Push { bound: BOUND }
    } else {
        WakeUp::Poll {
            longest: LONGEST_PAUSE,
        }
    };
    capabilities.liveness = Liveness::Lease;
    capabilities.reach = Reach::Network;
    capabilities.shared = true;
    capabilities.downgrade = true;
    capabilities.permits = true;
    capabilities.inspect = true;
    capabilities.break_lock = true;
    capabilities.turns = TURNS;
    capabilities.wanted = if listens {
        Hearing::Told { bound: BOUND }
    } else {
        Hearing::Asks
    };
    capabilities.durability = "a hold is a committed row: it survives a restart of the server, and a fail-over as far as the standby has received it";
    capabilities
}
