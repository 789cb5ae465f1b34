//! A whole backend for PostgreSQL in one file: docs/write-a-backend.md explains it step by step.

// [settings]
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{
    Backend, BackendUrl, Busy, Lease, Outcome, Renewal, Request, need_runtime,
};
use dlock_core::{Capabilities, Error, ErrorKind, HeldNow, LossReason, Released, Result, WakeUp};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls, Row};
use uuid::Uuid;

/// Where the store is: `pgsmall://user:password@host:port/database?answer_timeout=2s`.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    identity: String,               // without the password
    server: tokio_postgres::Config, // whose Debug leaves it out too
    answer_timeout: Duration,
}

impl Config {
    pub(crate) fn from_url(url: &str) -> Result<Self> {
        let mut url = BackendUrl::parse(url)?;
        let ("pgsmall", [host]) = (url.scheme(), url.hosts()) else {
            let text = "the URL must be like pgsmall://user@host:5432/database";
            return Err(Error::invalid(text));
        };
        let mut server = tokio_postgres::Config::new();
        server.host(&host.name).port(host.port.unwrap_or(5432));
        server.dbname(url.path().trim_start_matches('/'));
        server.user(url.user().unwrap_or("postgres"));
        server.password(url.password().unwrap_or_default());
        server.application_name("pgsmall");
        let answer_timeout = url.take_duration("answer_timeout")?;
        url.finish(&["answer_timeout"])?; // a parameter that nobody took is a mistake of the user
        Ok(Self {
            identity: url.to_string(),
            server,
            answer_timeout: answer_timeout.unwrap_or(Duration::from_secs(2)),
        })
    }

    pub(crate) async fn connect(self) -> Result<SmallBackend> {
        need_runtime("pgsmall")?;
        let mut capabilities = Capabilities::new("pgsmall");
        capabilities.fencing = true;
        capabilities.durability = "that of the server's committed rows";
        capabilities.wake_up = WakeUp::Poll {
            longest: Duration::from_millis(50),
        };
        let backend = SmallBackend {
            config: self,
            capabilities,
            client: Mutex::default(),
        };
        backend
            .client()
            .await?
            .batch_execute(SCHEMA)
            .await
            .map_err(with_context)?;
        Ok(backend)
    }
}

// [schema]
/// A row for each lock, which stays: it keeps the last token. A row for each attempt that was given up, for five minutes.
const SCHEMA: &str = r#"
BEGIN;
SELECT pg_advisory_xact_lock(7091); -- "IF NOT EXISTS" alone is not enough when two come at once
CREATE TABLE IF NOT EXISTS small_locks (
    name text COLLATE "C" PRIMARY KEY, owner uuid, token bigint NOT NULL, ends timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS small_abandoned (owner uuid PRIMARY KEY, until timestamptz NOT NULL);
CREATE OR REPLACE FUNCTION small_acquire(n text, o uuid, ms bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE given bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(n, 7091)); -- what follows is one step for everybody who uses this name
    IF EXISTS (SELECT FROM small_abandoned WHERE owner = o) THEN RETURN -1; END IF;
    INSERT INTO small_locks AS row VALUES (n, o, 1, clock_timestamp() + ms * interval '1 ms')
    ON CONFLICT (name) DO UPDATE SET owner = o, ends = EXCLUDED.ends,
        token = row.token + CASE WHEN row.owner = o THEN 0 ELSE 1 END
    WHERE row.owner = o OR row.owner IS NULL OR row.ends <= clock_timestamp()
    RETURNING token INTO given;
    RETURN coalesce(given, 0);
END $$;
CREATE OR REPLACE FUNCTION small_abandon(n text, o uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(n, 7091));
    INSERT INTO small_abandoned VALUES (o, clock_timestamp() + interval '5 minutes') ON CONFLICT DO NOTHING;
    DELETE FROM small_abandoned WHERE until <= clock_timestamp();
    UPDATE small_locks SET owner = NULL WHERE name = n AND owner = o;
END $$;
COMMIT;
"#;

const RENEW: &str = "UPDATE small_locks l SET ends = clock_timestamp() + r.ms * interval '1 ms' \
    FROM unnest($1::text[], $2::uuid[], $3::bigint[]) r(name, owner, ms) \
    WHERE l.name = r.name AND l.owner = r.owner AND l.ends > clock_timestamp() RETURNING l.owner";
const RELEASE: &str = "UPDATE small_locks SET owner = NULL \
    WHERE name = $1 AND owner = $2 AND ends > clock_timestamp() RETURNING name";
// [connection]
#[derive(Debug)]
pub(crate) struct SmallBackend {
    config: Config,
    capabilities: Capabilities,
    client: Mutex<Option<Arc<Client>>>,
}

/// A value is bound, never spliced into the statement (C3); with its type the server needs one trip instead of two.
type Argument<'a> = (&'a (dyn ToSql + Sync), Type);

/// A request under way. If its future is dropped before the answer came (the caller gave up, or core's time limit has passed), its
/// connection may be one that hangs: the next request makes a new one. Those under way on the old one still get their answers.
struct UnderWay<'a> {
    backend: &'a SmallBackend,
    client: Arc<Client>,
    answered: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let ours = |kept: &mut Arc<Client>| Arc::ptr_eq(kept, &self.client);
            self.backend.kept().take_if(ours);
        }
    }
}

impl SmallBackend {
    fn kept(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn client(&self) -> Result<Arc<Client>> {
        if let Some(client) = self.kept().as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        let limit = self.config.answer_timeout;
        let connect = tokio::time::timeout(limit, self.config.server.connect(NoTls));
        // Nothing was sent, so nothing of the attempt can be there.
        let (client, connection) = match connect.await {
            Ok(connected) => {
                connected.map_err(|error| with_context(error).with_held(HeldNow::No))?
            }
            Err(_) => return Err(no_answer(limit).with_held(HeldNow::No)),
        };
        tokio::spawn(connection); // it ends when the last handle of the client is dropped
        Ok(self.kept().insert(Arc::new(client)).clone())
    }

    async fn ask(&self, sql: &str, arguments: &[Argument<'_>]) -> Result<Vec<Row>> {
        let client = self.client().await?;
        let mut under_way = UnderWay {
            backend: self,
            client: client.clone(),
            answered: false,
        };
        let limit = self.config.answer_timeout;
        let answer = tokio::time::timeout(limit, client.query_typed(sql, arguments));
        match answer.await {
            Ok(rows) => {
                under_way.answered = true;
                rows.map_err(with_context)
            }
            Err(_) => Err(no_answer(limit)),
        }
    }
}

// [errors]
fn no_answer(limit: Duration) -> Error {
    let text = format!("no answer within {limit:?}: is the server alive and reachable?");
    Error::new(ErrorKind::TimedOut, text)
}

/// A refusal is `Denied`, a broken connection `Unreachable`, anything else that the server says `Store`: never busy (C5).
fn with_context(error: tokio_postgres::Error) -> Error {
    let kind = match error.code().map(|code| code.code()) {
        None => ErrorKind::Unreachable, // not the server's word: the connection broke
        Some("42501" | "25006" | "28000" | "28P01" | "3D000") => ErrorKind::Denied,
        Some(code) if code.starts_with("57P") => ErrorKind::Unreachable, // it is going down
        Some(_) => ErrorKind::Store,
    };
    let text = match error.as_db_error() {
        Some(said) => said.message().to_owned(),
        None => "the connection broke: is the server running?".to_owned(),
    };
    let error = Error::new(kind, text).with_source(error);
    error.with_backend("pgsmall")
}

// [attempts]
fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 1_000_000)
}

#[async_trait]
impl Backend for SmallBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.config.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        let (name, owner) = (request.name().as_str(), *request.attempt().as_uuid());
        let lease = millis(request.lease());
        let from = request.now(); // before it is sent (C7)
        let arguments: [Argument<'_>; 3] = [
            (&name, Type::TEXT),
            (&owner, Type::UUID),
            (&lease, Type::INT8),
        ];
        let rows = self
            .ask("SELECT small_acquire($1, $2, $3)", &arguments)
            .await?;
        let given = rows.first().map(|row| row.try_get(0)).transpose();
        let given: i64 = given.map_err(with_context)?.unwrap_or(0);
        Ok(match u64::try_from(given) {
            Ok(0) => Outcome::Busy(Busy::default()),
            Ok(token) => Outcome::Held(Lease::new(request, from).with_token(token)),
            Err(_) => {
                let text = "this attempt was abandoned: make a new one";
                return Err(Error::new(ErrorKind::Store, text).with_held(HeldNow::No));
            }
        })
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        let (name, owner) = (request.name().as_str(), *request.attempt().as_uuid());
        let arguments: [Argument<'_>; 2] = [(&name, Type::TEXT), (&owner, Type::UUID)];
        let answer = self.ask("SELECT small_abandon($1, $2)", &arguments);
        answer.await.map(drop)
    }

    // [holds]
    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let (mut names, mut owners, mut times) = (Vec::new(), Vec::new(), Vec::new());
        for lease in leases {
            names.push(lease.name().as_str());
            owners.push(*lease.attempt().as_uuid());
            times.push(millis(lease.duration()));
        }
        let arguments: [Argument<'_>; 3] = [
            (&names, Type::TEXT_ARRAY),
            (&owners, Type::UUID_ARRAY),
            (&times, Type::INT8_ARRAY),
        ];
        match self.ask(RENEW, &arguments).await {
            Ok(rows) => {
                let ids = rows.iter().filter_map(|row| row.try_get(0).ok());
                let renewed: Vec<Uuid> = ids.collect();
                let answer = |owner| match renewed.contains(owner) {
                    true => Renewal::Extended,
                    false => Renewal::Lost(LossReason::Gone),
                };
                owners.iter().map(answer).collect()
            }
            // Without the store's word nothing is lost (C10).
            Err(error) => vec![error; leases.len()]
                .into_iter()
                .map(Renewal::Failed)
                .collect(),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        let (name, owner) = (lease.name().as_str(), *lease.attempt().as_uuid());
        let arguments: [Argument<'_>; 2] = [(&name, Type::TEXT), (&owner, Type::UUID)];
        let freed = self.ask(RELEASE, &arguments).await?;
        Ok(match freed.is_empty() {
            false => Released::Freed,
            true => Released::AlreadyLost,
        })
    }

    async fn close(&self) -> Result<()> {
        self.kept().take();
        Ok(())
    }
}
// [end]
