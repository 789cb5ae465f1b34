use std::error::Error as StdError;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::Name;

/// `Result` with dlock's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn StdError + Send + Sync + 'static>;

/// What went wrong, in terms a caller can act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's input is wrong: a URL, name, duration, limit or setting. Repeating it cannot help.
    Invalid,
    /// The store cannot do what was asked, and its [`Capabilities`](crate::Capabilities) say so.
    Unsupported,
    /// The store could not be reached, or the connection broke. Never used for contention ([C5](crate::contract#c5)).
    Unreachable,
    /// The store did not answer in time.
    TimedOut,
    /// The store refused us: wrong credentials, missing permission, certificate not trusted.
    Denied,
    /// The store answered, with an error of its own.
    Store,
    /// The grant came back after its own validity had passed; it was undone ([C7](crate::contract#c7)).
    TooLate,
    /// The hold was lost while the work was running.
    Lost,
    /// The request contradicts what is there: another limit for the same semaphore, an upgrade from read to write.
    Conflict,
    /// The lock was still held by others when the time limit passed. Only where a call promises a guard; calls that
    /// can answer `None` do that instead.
    Busy,
    /// The client was closed.
    Closed,
}

impl ErrorKind {
    /// Whether the same call may succeed later without anybody changing the input or the set-up.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Unreachable | Self::TimedOut | Self::Store | Self::TooLate | Self::Busy
        )
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid => "invalid input",
            Self::Unsupported => "not supported",
            Self::Unreachable => "store unreachable",
            Self::TimedOut => "store did not answer in time",
            Self::Denied => "store refused access",
            Self::Store => "store error",
            Self::TooLate => "grant came too late",
            Self::Lost => "lock lost",
            Self::Conflict => "conflict",
            Self::Busy => "busy",
            Self::Closed => "client closed",
        })
    }
}

/// Could the lock be held now by the attempt that failed?
///
/// Whatever the answer, there is nothing to clean up by hand: what is in doubt is undone in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeldNow {
    /// It is certain that nothing is held.
    No,
    /// It is certain that the lock is still held.
    Yes,
    /// The store may have done it; the answer was lost.
    Unknown,
}

/// The step that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Operation {
    Configure,
    Connect,
    Acquire,
    Renew,
    Release,
    Abandon,
    Downgrade,
    Inspect,
    List,
    Break,
    Close,
    Work,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configure => "configure",
            Self::Connect => "connect",
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Abandon => "abandon",
            Self::Downgrade => "downgrade",
            Self::Inspect => "inspect",
            Self::List => "list",
            Self::Break => "break",
            Self::Close => "close",
            Self::Work => "work",
        })
    }
}

/// The one error type: what failed, where, whether to try again, and whether the lock could be held now.
///
/// No client crate's error type is part of the API: it is the [`source`](StdError::source), which clones share.
///
/// ```
/// use dlock_core::{Error, ErrorKind, HeldNow};
///
/// let error = Error::new(ErrorKind::Unreachable, "connection refused: is the server running?").with_backend("redis");
/// assert!(error.is_retryable());
/// assert_eq!(error.held_now(), HeldNow::Unknown);
/// assert_eq!(error.to_string(), "redis: store unreachable: connection refused: is the server running?");
/// ```
#[derive(Clone, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<Details>);

#[derive(Clone, thiserror::Error)]
#[error("{}{kind}: {message}", place(*.backend, *.operation, .name.as_ref()))]
struct Details {
    kind: ErrorKind,
    message: String,
    backend: Option<&'static str>,
    operation: Option<Operation>,
    name: Option<Name>,
    #[source]
    source: Option<Cause>,
    retryable: bool,
    held: HeldNow,
}

/// Where it happened, as the beginning of the text.
fn place(backend: Option<&str>, operation: Option<Operation>, name: Option<&Name>) -> String {
    let mut text = String::new();
    if let Some(backend) = backend {
        text = format!("{backend}: ");
    }
    if let Some(operation) = operation {
        text += &match name {
            Some(name) => format!("{operation} {name:?}: "),
            None => format!("{operation}: "),
        };
    }
    text
}

/// The cause, shared by clones. Not an error itself, or the client's own error type would be one level further down than the one
/// that `source()` gives, and nobody could recognise it there.
#[derive(Debug, Clone)]
struct Cause(Arc<dyn StdError + Send + Sync + 'static>);

impl Deref for Cause {
    type Target = dyn StdError + Send + Sync + 'static;
    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl Error {
    /// An error of `kind`; `message` tells the reader what happened and what to do.
    ///
    /// Retryable follows from the kind. Kinds that mean "we do not know what the store did" start as
    /// [`HeldNow::Unknown`], the others as [`HeldNow::No`].
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let held = match kind {
            ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::Store => HeldNow::Unknown,
            _ => HeldNow::No,
        };
        Self(Box::new(Details {
            kind,
            message: message.into(),
            backend: None,
            operation: None,
            name: None,
            source: None,
            retryable: kind.is_retryable(),
            held,
        }))
    }

    /// Short for an [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Names the backend.
    #[must_use]
    pub fn with_backend(mut self, backend: &'static str) -> Self {
        self.0.backend = Some(backend);
        self
    }

    /// Names the step.
    #[must_use]
    pub fn with_operation(mut self, operation: Operation) -> Self {
        self.0.operation = Some(operation);
        self
    }

    /// Names the lock.
    #[must_use]
    pub fn with_name(mut self, name: &Name) -> Self {
        self.0.name = Some(name.clone());
        self
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.0.source = Some(Cause(source.into().into()));
        self
    }

    /// Says whether the lock could be held now.
    #[must_use]
    pub fn with_held(mut self, held: HeldNow) -> Self {
        self.0.held = held;
        self
    }

    /// The one rule of doubt for a request that could have changed something: once it was `sent`, the store may have done it,
    /// whatever kind of error comes after; a refusal during a reconnect says nothing about the request before it. Not
    /// `sent` means that it never left, or that the store itself answered that it did nothing.
    #[must_use]
    pub fn after_sending(self, sent: bool) -> Self {
        self.with_held(if sent { HeldNow::Unknown } else { HeldNow::No })
    }

    /// Another kind, and whether it is worth a retry follows from that. The doubt stays as it is.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self.0.retryable = kind.is_retryable();
        self
    }

    /// Another message.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.0.message = message.into();
        self
    }

    /// Overrides what follows from the kind.
    #[must_use]
    pub fn with_retryable(mut self, retryable: bool) -> Self {
        self.0.retryable = retryable;
        self
    }

    /// Fills in what is not known yet, so that the innermost place that knows a detail wins.
    #[must_use]
    pub(crate) fn context(
        mut self,
        backend: &'static str,
        operation: Operation,
        name: Option<&Name>,
    ) -> Self {
        self.0.backend.get_or_insert(backend);
        self.0.operation.get_or_insert(operation);
        if self.0.name.is_none() {
            self.0.name = name.cloned();
        }
        self
    }

    /// What went wrong.
    ///
    /// ```
    /// # use dlock_core::{ErrorKind, Locks};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let backend = dlock_memory::MemoryBackend::new();
    /// # let control = backend.control();
    /// # let locks = Locks::new(backend)?;
    /// # control.cut();
    /// # let page =
    /// match locks.mutex("stock:42")?.try_lock().await {
    ///     Ok(Some(guard)) => "200: sold",
    ///     Ok(None) => "409: somebody else is buying it",
    ///     Err(error) if error.kind() == ErrorKind::Unreachable => "503: the store of the locks is down",
    ///     Err(error) => return Err(error),
    /// }
    /// # ;
    /// # assert!(page.starts_with("503"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The backend that failed, if one was involved.
    pub fn backend(&self) -> Option<&'static str> {
        self.0.backend
    }

    /// The step that failed.
    pub fn operation(&self) -> Option<Operation> {
        self.0.operation
    }

    /// The lock that was asked for.
    pub fn name(&self) -> Option<&Name> {
        self.0.name.as_ref()
    }

    /// Could the lock be held now by the attempt that failed?
    ///
    /// ```
    /// # use dlock_core::{Error, ErrorKind, HeldNow};
    /// # let error = Error::new(ErrorKind::TimedOut, "no answer");
    /// if error.held_now() != HeldNow::No {
    ///     println!("others may find it locked, for as long as a lease: {error}");
    /// }
    /// # assert_eq!(error.held_now(), HeldNow::Unknown);
    /// ```
    pub fn held_now(&self) -> HeldNow {
        self.0.held
    }

    /// Whether the same call may succeed later by itself.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::{Guard, Mutex, Result};
    /// /// For a job that must run some time, and may be late.
    /// async fn lock_some_time(mutex: &Mutex) -> Result<Guard> {
    ///     loop {
    ///         match mutex.lock().await {
    ///             Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_secs(30)).await,
    ///             done => return done,
    ///         }
    ///     }
    /// }
    /// ```
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// The message alone, without backend, operation and name.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Debug for Details {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("message", &self.message)
            .field("backend", &self.backend)
            .field("operation", &self.operation)
            .field("name", &self.name)
            .field("retryable", &self.retryable)
            .field("held_now", &self.held)
            .field("source", &self.source.as_deref())
            .finish()
    }
}

#[cfg(test)]
pub(crate) mod tests;
