//! The way to the ensemble: which session is the present one, and what follows on it.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, kit};
use tokio::sync::Mutex;

use crate::Config;
use crate::connect::{Session, is_shortened};

/// How long a closed session may take to be confirmed before it is left to its own end.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The way to the ensemble: one session at a time, and a new one when it has ended.
///
/// Not the kit's [`Connected`](dlock_core::kit::Connected), which forgets what failed: here the next one follows on the one before, which is taken up again
/// or must be seen to have ended first.
#[derive(Debug)]
pub(crate) struct CurrentSession {
    config: Config,
    /// What the first session was granted, which is what core goes by.
    ttl: Duration,
    current: RwLock<Option<Arc<Session>>>,
    /// Held while a new session is made, so that only one is.
    making: Mutex<()>,
}

impl CurrentSession {
    pub(crate) async fn open(config: Config) -> Result<Self> {
        let session = Session::open(&config).await?;
        if session.stat("/").await?.is_none() {
            return Err(Error::invalid(format!(
                "the chroot {:?} does not exist at the server: create it, or correct the URL",
                config.chroot_path()
            )));
        }
        Ok(Self {
            ttl: session.ttl(),
            config,
            current: RwLock::new(Some(Arc::new(session))),
            making: Mutex::default(),
        })
    }

    /// How long the server keeps a session without a sign of life, as it was agreed.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The session as it is, perhaps ended; `None` when this client was closed.
    pub(crate) fn current(&self) -> Option<Arc<Session>> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// A session that lives: the one there is, the same one taken up again, or a new one.
    pub(crate) async fn session(&self) -> Result<Arc<Session>> {
        let current = self.current().ok_or_else(closed)?;
        if current.is_alive() {
            return Ok(current);
        }
        let _making = self.making.lock().await;
        let old = self.current().ok_or_else(closed)?;
        if old.is_alive() {
            return Ok(old);
        }
        let session = self.successor(&old).await?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        // `close` was called while the session was made: nobody gets it, and dropping it ends it.
        *current.as_mut().ok_or_else(closed)? = session.clone();
        Ok(session)
    }

    /// A session that is connected, within the connect time-out.
    pub(crate) async fn connected(&self) -> Result<Arc<Session>> {
        let limit = self.config.connect_limit();
        let connected = async {
            let session = self.session().await?;
            session.up().await?;
            Ok(session)
        };
        let connected = tokio::time::timeout(limit, connected).await;
        connected.unwrap_or_else(|_| Err(kit::no_connection(limit)))
    }

    /// What follows on a session that does not live.
    ///
    /// One whose runtime has ended is taken up again, with all its holds. One that has ended is buried first: whatever the server may
    /// still know of it, its nodes and requests under way, is over before the new one begins. Without that, a server that was
    /// frozen could carry out a request of the old session after the new one has looked for its traces ([C13](dlock_core::contract#c13)).
    async fn successor(&self, old: &Session) -> Result<Arc<Session>> {
        if !old.is_ended() {
            match old.take_up(&self.config).await {
                Ok(Some(session)) => return Ok(Arc::new(session)),
                Ok(None) => {}
                Err(error) if is_shortened(&error) => {}
                Err(error) => return Err(error),
            }
        }
        old.bury(&self.config).await?;
        let session = Arc::new(Session::open(&self.config).await?);
        let ttl = session.ttl();
        if ttl < self.ttl {
            return Err(Error::new(
                ErrorKind::Store,
                format!(
                    "the server grants only {ttl:?} to a new session, and this client goes by {:?}: connect again",
                    self.ttl
                ),
            ));
        }
        tracing::info!(old = %old.id_text(), new = %session.id_text(), "a new ZooKeeper session");
        Ok(session)
    }

    /// Ends the session, and waits until the server knows.
    pub(crate) async fn close(&self) {
        let session = self
            .current
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // Calls under way keep it open; then it ends with them.
        if let Some(session) = session.and_then(Arc::into_inner) {
            let _ = session.close(LAST_WORDS).await;
        }
    }
}

fn closed() -> Error {
    Error::new(
        ErrorKind::Closed,
        "this client was closed: make a new one with connect",
    )
}
