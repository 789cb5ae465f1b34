//! One connection.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use dlock_core::ErrorKind;
use futures::TryStreamExt;
use futures::future::join_all;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, Row, Socket, Statement};

#[cfg(feature = "tls")]
use super::tls;
use crate::config::{Config, DEFAULT_PORT, ServerAddress};
use crate::error::Trouble;

/// An argument of a statement, with its type: so the server need not be asked for it.
pub(crate) type Arg<'a> = (&'a (dyn ToSql + Sync), Type);

/// A statement that comes often, and the types of its arguments.
pub(crate) type Often = (String, Vec<Type>);

/// Where the payloads of notifications go.
pub(crate) type Sink = UnboundedSender<String>;

/// What our functions would otherwise do for each call, see `begin` in schema.sql.
const BEGIN: &str =
    "SELECT set_config('lock_timeout', '10s', false) WHERE current_setting('lock_timeout') = '0'";

/// The connection itself, which is driven by whoever waits for an answer.
pub(crate) type Driver = Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>> + Send>>;

/// One connection.
///
/// It has no task of its own: a call drives it, and between two calls it rests. So it needs no runtime to live, and is closed in the moment
/// in which it is dropped.
pub(crate) struct Wire {
    client: Client,
    /// `None` when the connection has ended.
    driver: Option<Driver>,
    used: Instant,
    /// What the server knows by name, with its text. Behind the client, and so dropped after it: one that goes first sends a farewell.
    prepared: Vec<(String, Statement)>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

impl Wire {
    /// Connects to one server and logs in.
    pub(crate) async fn open(
        config: &Config,
        server: &ServerAddress,
        sink: Option<Sink>,
    ) -> Result<Self, Trouble> {
        let open = async {
            let (client, driver) = dial(config, server, sink).await?;
            Ok(Self {
                client,
                driver: Some(driver),
                used: Instant::now(),
                prepared: Vec::new(),
            })
        };
        within(config.connect_timeout, server, open).await
    }

    /// One statement, in a transaction of its own.
    pub(crate) async fn ask(&mut self, sql: &str, args: &[Arg<'_>]) -> Result<Vec<Row>, Trouble> {
        let Self { client, driver, .. } = self;
        let rows = drive(driver, client.query_typed(sql, args)).await;
        self.used = Instant::now();
        rows
    }

    /// Tells the server what will come often, so that it reads and plans that once for this connection. Not for poolers, see
    /// [`is_foreign`](Trouble::is_foreign). What it cannot be told is sent whole each time.
    pub(crate) async fn learn(&mut self, often: &[Often]) -> Result<(), Trouble> {
        let Self {
            client,
            driver,
            prepared,
            ..
        } = self;
        let all = async {
            let told = often
                .iter()
                .map(|(sql, types)| client.prepare_typed(sql, types));
            tokio::join!(client.batch_execute(BEGIN), join_all(told))
        };
        let (begun, told) = drive(driver, async { Ok(all.await) }).await?;
        begun?;
        for ((sql, _), statement) in often.iter().zip(told) {
            if let Ok(statement) = statement {
                prepared.push((sql.clone(), statement));
            }
        }
        Ok(())
    }

    /// As [`ask`](Wire::ask), by the name that the server was told.
    pub(crate) async fn ask_often(
        &mut self,
        sql: &str,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, Trouble> {
        let Self {
            client,
            driver,
            prepared,
            ..
        } = self;
        let Some((_, statement)) = prepared.iter().find(|(text, _)| text == sql) else {
            return self.ask(sql, args).await;
        };
        let values = args.iter().map(|(value, _)| *value as &dyn ToSql);
        let request = async {
            let rows = client.query_raw(statement, values).await?;
            rows.try_collect().await
        };
        let rows = drive(driver, request).await;
        self.used = Instant::now();
        rows
    }

    /// The same where a transaction of a user is of another kind. All three requests are sent at once, and stay together when this is dropped.
    pub(crate) async fn ask_isolated(
        &mut self,
        sql: &str,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, Trouble> {
        let Self { client, driver, .. } = self;
        let all = async {
            tokio::join!(
                client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED"),
                client.query_typed(sql, args),
                client.batch_execute("COMMIT"),
            )
        };
        let (begun, rows, committed) = drive(driver, async { Ok(all.await) }).await?;
        self.used = Instant::now();
        begun?;
        let rows = rows?;
        committed?;
        Ok(rows)
    }

    /// Text without arguments, perhaps several statements, which are one transaction.
    pub(crate) async fn text(&mut self, sql: &str) -> Result<(), Trouble> {
        let Self { client, driver, .. } = self;
        let done = drive(driver, client.batch_execute(sql)).await;
        self.used = Instant::now();
        done
    }

    /// Waits for something that the sink got.
    pub(crate) async fn hear(
        &mut self,
        heard: &mut UnboundedReceiver<String>,
    ) -> Result<String, Trouble> {
        let message = drive(&mut self.driver, async { Ok(heard.recv().await) }).await?;
        message.ok_or_else(gone)
    }

    /// The number of the server's process.
    pub(crate) async fn process(&mut self) -> Result<i32, Trouble> {
        let rows = self.ask("SELECT pg_backend_pid()", &[]).await?;
        let number = rows.first().and_then(|row| row.try_get(0).ok());
        number.ok_or_else(|| Trouble::unexpected_reply("no number of its process"))
    }

    pub(crate) fn idle_for(&self) -> Duration {
        self.used.elapsed()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.driver.is_some() && !self.client.is_closed()
    }

    /// The client, and what somebody has to run for it.
    #[cfg(feature = "client")]
    pub(crate) fn into_parts(self) -> (Client, Option<Driver>) {
        (self.client, self.driver)
    }

    /// Says goodbye.
    pub(crate) async fn close(self) {
        let Self {
            client,
            driver,
            prepared,
            ..
        } = self;
        drop(client);
        drop(prepared);
        if let Some(driver) = driver {
            let _ = driver.await;
        }
    }
}

/// Runs a request, and the connection with it.
async fn drive<T>(
    driver: &mut Option<Driver>,
    request: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Trouble> {
    let mut request = pin!(request);
    let mut ended = None;
    poll_fn(|cx| {
        // First it puts its bytes into the connection's queue; then those are sent and others are read; then it may have its answer.
        if let Poll::Ready(answer) = request.as_mut().poll(cx) {
            return Poll::Ready(answer.map_err(Trouble::from));
        }
        // It may have ended with the answer before this one.
        match driver.as_mut().map(|driver| driver.as_mut().poll(cx)) {
            Some(Poll::Pending) => {}
            Some(Poll::Ready(end)) => {
                *driver = None;
                ended = Some(end);
            }
            None => ended = Some(Ok(())),
        }
        if let Poll::Ready(answer) = request.as_mut().poll(cx) {
            // The connection knows more about its end than the request.
            return Poll::Ready(match (answer, ended.take()) {
                (Err(error), Some(Err(end))) if error.is_closed() => Err(end.into()),
                (answer, _) => answer.map_err(Trouble::from),
            });
        }
        match ended.take() {
            Some(Ok(())) => Poll::Ready(Err(gone())),
            Some(Err(end)) => Poll::Ready(Err(end.into())),
            None => Poll::Pending,
        }
    })
    .await
}

fn gone() -> Trouble {
    let mut gone = Trouble::new(ErrorKind::Unreachable, "the connection has ended");
    gone.broken = true;
    gone
}

/// Drives a connection; what the server says aside is not for our users.
async fn talk<S>(
    mut connection: Connection<Socket, S>,
    sink: Option<Sink>,
) -> Result<(), tokio_postgres::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            None => return Ok(()),
            Some(Ok(AsyncMessage::Notification(heard))) => {
                if let Some(sink) = &sink {
                    let _ = sink.send(heard.payload().to_owned());
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
        }
    }
}

async fn dial(
    config: &Config,
    server: &ServerAddress,
    sink: Option<Sink>,
) -> Result<(Client, Driver), Trouble> {
    let mut to = tokio_postgres::Config::new();
    match server {
        ServerAddress::Tcp(host) => {
            to.host(host.name.clone());
            to.port(host.port.unwrap_or(DEFAULT_PORT));
        }
        ServerAddress::Unix(folder, port) => {
            to.host_path(folder);
            to.port(*port);
        }
    }
    let login = config.login.now().await;
    let (user, password) = login.map_err(|error| Trouble::from(error).unsent())?;
    if let Some(user) = user {
        to.user(user);
    }
    if let Some(database) = &config.database {
        to.dbname(database.clone());
    }
    if let Some(password) = password {
        to.password(password);
    }
    if let Some(options) = &config.options {
        to.options(options);
    }
    to.application_name(&config.application_name);
    to.keepalives_idle(Duration::from_secs(30));
    #[cfg(feature = "tls")]
    if let Some(tls) = &config.tls {
        to.ssl_mode(tokio_postgres::config::SslMode::Require);
        let (client, connection) = to
            .connect(tls::connector(tls)?)
            .await
            .map_err(|error| Trouble::from(error).unsent())?;
        return Ok((client, Box::pin(talk(connection, sink))));
    }
    to.ssl_mode(tokio_postgres::config::SslMode::Disable);
    let (client, connection) = to
        .connect(tokio_postgres::NoTls)
        .await
        .map_err(|error| Trouble::from(error).unsent())?;
    Ok((client, Box::pin(talk(connection, sink))))
}

async fn within<T>(
    limit: Duration,
    server: &ServerAddress,
    work: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.map_err(|trouble| trouble.about(&server.to_string())),
        Err(_) => Err(Trouble::new(
            ErrorKind::TimedOut,
            format!("{server} let nobody in within {limit:?}: is it overloaded or hung, and is it a PostgreSQL?"),
        )
        .unsent()),
    }
}
