//! One connection.

use std::time::{Duration, Instant};

use dlock_core::kit;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Params, Pool, Row, Statement, Value};

use super::opts;
use super::value::{Answer, AnswerRow, Arg, rows_of};
use crate::config::Config;
use crate::error::Trouble;

/// One connection. A call that fails in a way that leaves it in doubt, or that is dropped, closes it.
#[derive(Debug)]
pub(crate) struct Connection {
    conn: Option<Conn>,
    id: u32,
    /// The number in its call sign, if it carries a hold; 0 for others. See [`Connection::open_carrying`].
    call_sign: u64,
    used: Instant,
    prepared: Prepared,
}

/// The statements that the server knows on a connection. The client's own cache reads the whole text again for each use.
#[derive(Debug, Default)]
struct Prepared(Vec<(Box<str>, Statement)>);

impl Prepared {
    async fn get(&mut self, conn: &mut Conn, sql: &str) -> Result<Statement, mysql_async::Error> {
        if let Some((_, known)) = self.0.iter().find(|(text, _)| **text == *sql) {
            return Ok(known.clone());
        }
        let statement = conn.prep(sql).await?;
        self.0.push((sql.into(), statement.clone()));
        Ok(statement)
    }
}

impl Connection {
    /// Connects, within the connect time-out. `setup` is run first thing.
    pub(crate) async fn open(config: &Config, setup: &str) -> Result<Self, Trouble> {
        let limit = config.connect_timeout;
        let connect = async {
            let conn = match &config.pool {
                None => Conn::new(opts(config, setup).await?).await,
                Some(pool) => lend(pool, setup).await,
            };
            conn.map_err(|error| Trouble::from(error).while_connecting())
        };
        match tokio::time::timeout(limit, connect).await {
            Ok(Ok(conn)) => Ok(Self {
                id: conn.id(),
                call_sign: 0,
                conn: Some(conn),
                used: Instant::now(),
                prepared: Prepared::default(),
            }),
            Ok(Err(trouble)) => Err(trouble),
            Err(_) => Err(kit::no_connection(limit).into()),
        }
    }

    /// As [`open`](Self::open), for a connection that carries a hold. It takes a named lock of its own, which nobody waits for: by that any
    /// user can ask whether the connection lives, and by no number that another server, or the same one after a restart, gives to a stranger.
    pub(crate) async fn open_carrying(config: &Config, setup: &str) -> Result<Self, Trouble> {
        let number = fastrand::u64(1..);
        let called = super::call_sign_text(number);
        let setup = format!("{setup}; DO GET_LOCK('{called}', 0)");
        let mut connection = Self::open(config, &setup).await?;
        connection.call_sign = number;
        Ok(connection)
    }

    /// The number in its call sign, if it carries a hold.
    pub(crate) fn call_sign(&self) -> u64 {
        self.call_sign
    }

    /// The server's number of this connection.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn is_open(&self) -> bool {
        self.conn.is_some()
    }

    /// For how long nothing was asked on it.
    pub(crate) fn idle_for(&self) -> Duration {
        self.used.elapsed()
    }

    /// The connection under another owner; this one has none any more.
    pub(crate) fn hand_over(&mut self) -> Option<Self> {
        self.conn.take().map(|conn| Self {
            conn: Some(conn),
            id: self.id,
            call_sign: self.call_sign,
            used: self.used,
            prepared: std::mem::take(&mut self.prepared),
        })
    }

    /// A prepared statement with bound arguments.
    pub(crate) async fn exec(&mut self, sql: &str, args: &[Arg<'_>]) -> Result<Answer, Trouble> {
        let params = if args.is_empty() {
            Params::Empty
        } else {
            Params::Positional(args.iter().map(Value::from).collect())
        };
        let mut conn = self.take()?;
        let answer = async {
            let statement = self.prepared.get(&mut conn, sql).await?;
            let result = conn.exec_iter(statement, params).await?;
            let affected = result.affected_rows();
            let id = result.last_insert_id().unwrap_or(0);
            let rows = result.collect_and_drop::<Row>().await?;
            Ok::<_, mysql_async::Error>(Answer {
                affected,
                id,
                rows: rows_of(rows),
            })
        };
        let answer = answer.await.map_err(Trouble::from);
        self.put_back(conn, answer)
    }

    /// Makes a statement known to the server, which checks what we may do.
    pub(crate) async fn prepare(&mut self, sql: &str) -> Result<(), Trouble> {
        let mut conn = self.take()?;
        let answer = self.prepared.get(&mut conn, sql).await;
        self.put_back(conn, answer.map(|_| ()).map_err(Trouble::from))
    }

    /// Text without arguments, of one statement or several: the rows of the last one that has any, and what all of them changed. When one
    /// fails behind others, those were carried out: the whole is in doubt then.
    pub(crate) async fn text(&mut self, sql: &str) -> Result<Answer, Trouble> {
        let (answer, answered) = self.statements(sql).await;
        answer.map_err(|trouble| {
            if answered > 0 {
                return trouble.in_doubt();
            }
            trouble
        })
    }

    /// Text of several statements, each of whose rows is heard of as soon as it is there; and the last of these rows.
    pub(crate) async fn texts(
        &mut self,
        sql: &str,
        mut hears: impl FnMut(&AnswerRow) + Send,
    ) -> Result<Answer, Trouble> {
        let mut conn = self.take()?;
        let answer = async {
            let mut result = conn.query_iter(sql).await?;
            let mut answer = Answer::default();
            while !result.is_empty() || result.columns().is_some() {
                // Only the rows of the last statement are the answer: those of an earlier one are given to `hears`, and dropped.
                let heard = result.reduce(Vec::new(), |_, row: Row| {
                    let rows = rows_of(vec![row]);
                    rows.iter().for_each(&mut hears);
                    rows
                });
                answer.rows = heard.await?;
            }
            result.drop_result().await?;
            Ok::<_, mysql_async::Error>(answer)
        };
        let answer = answer.await.map_err(Trouble::from);
        self.put_back(conn, answer)
    }

    /// As [`text`](Self::text), whatever failed; and how many of the statements were answered.
    async fn statements(&mut self, sql: &str) -> (Result<Answer, Trouble>, usize) {
        let mut conn = match self.take() {
            Ok(conn) => conn,
            Err(trouble) => return (Err(trouble), 0),
        };
        let mut answered = 0;
        let answer = async {
            let mut result = conn.query_iter(sql).await?;
            let mut answer = Answer::default();
            while !result.is_empty() || result.columns().is_some() {
                if result.columns_ref().is_empty() {
                    answer.affected += result.affected_rows();
                }
                answered += 1;
                let rows: Vec<Row> = result.collect().await?;
                if !rows.is_empty() {
                    answer.rows = rows_of(rows);
                }
            }
            result.drop_result().await?;
            Ok::<_, mysql_async::Error>(answer)
        };
        let answer = answer.await.map_err(Trouble::from);
        (self.put_back(conn, answer), answered)
    }

    /// Several statements as one request, with arguments bound to variables in a request before. When one of them fails, the
    /// connection is closed, and with it goes whatever the others had begun.
    pub(crate) async fn batch(
        &mut self,
        bind: &str,
        args: &[Arg<'_>],
        sql: &str,
    ) -> Result<Answer, Trouble> {
        self.exec(bind, args).await?;
        let (answer, _) = self.statements(sql).await;
        if answer.is_err() {
            self.conn = None;
        }
        answer
    }

    /// Closes it without a word, so that whatever it holds at the server ends.
    pub(crate) fn shut(&mut self) {
        self.conn = None;
    }

    /// Proves that the connection lives.
    pub(crate) async fn ping(&mut self) -> Result<(), Trouble> {
        let mut conn = self.take()?;
        let answer = conn.ping().await.map_err(Trouble::from);
        self.put_back(conn, answer)
    }

    /// Ends it in order.
    pub(crate) async fn close(mut self) {
        if let Some(conn) = self.conn.take() {
            // The server may have closed it before.
            let _ = conn.disconnect().await;
        }
    }

    fn take(&mut self) -> Result<Conn, Trouble> {
        self.conn.take().ok_or_else(Trouble::gone)
    }

    fn put_back<T>(&mut self, conn: Conn, answer: Result<T, Trouble>) -> Result<T, Trouble> {
        let keep = match &answer {
            Ok(_) => true,
            Err(trouble) => !trouble.broken,
        };
        if keep {
            self.conn = Some(conn);
            self.used = Instant::now();
        }
        answer
    }
}

/// A connection of the application's, which gets it back as it was: the server forgets our settings when the pool resets it.
async fn lend(pool: &Pool, setup: &str) -> Result<Conn, mysql_async::Error> {
    let mut conn = pool.get_conn().await?;
    conn.reset_connection(true);
    conn.query_drop(setup).await?;
    Ok(conn)
}
