//! What backends are made of, once: for those of this workspace, and for yours.
//!
//! A backend is its store's own idea and little else. The rest is here:
//!
//! | | |
//! |---|---|
//! | [`UrlForm`], [`Login`], [`Tls`], [`within`] | settings from a URL: schemes, keys, login, TLS and ranges, by the same names and errors in every store |
//! | [`network_settings!`] | `user`, `password`, `password_file`, `credentials` and `tls` of a `Config` |
//! | [`trouble!`] | what befell one trip, and the one rule of doubt: could the store have done it? |
//! | [`with_advice`], [`no_answer`], [`no_connection`], [`closed`], [`abandoned`] | the same words for the same troubles |
//! | [`Connected`] | one connection for all, made by one caller and replaced when it fails |
//! | [`admits`], [`check_limit`], [`other_limit`] | who may hold beside whom, for a store that leaves the decision to its clients |
//! | [`remember_abandoned`], [`refuse_abandoned`] | the memory of abandoned attempts, for a store that cannot be told to refuse late requests |
//! | [`poll`] | the wait loop for a store that cannot wake its waiters |
//!
//! # A backend around another
//!
//! Most methods of [`Backend`](crate::backend::Backend) have a default, so that a simple store need not write them. A wrapper (one that counts, that
//! adds a prefix, that chooses between two stores) must forward **every** method all the same: one that it leaves out answers with the default, and not as
//! the store inside does. The compiler does not notice; Clippy does. Put this above the `impl`:
//!
//! ```
//! use std::sync::Arc;
//! use dlock_core::backend::{Outcome, Backend, Lease, Renewal, Request};
//! use dlock_core::{Capabilities, Capability, Error, LockInfo, Name, Released, Result};
//!
//! #[derive(Debug)]
//! struct Wrapped(Arc<dyn Backend>);
//!
//! #[async_trait::async_trait]
//! #[deny(clippy::missing_trait_methods, reason = "a default would answer in place of the store inside")]
//! impl Backend for Wrapped {
//!     fn capabilities(&self) -> &Capabilities { self.0.capabilities() }
//!     fn identity(&self) -> &str { self.0.identity() }
//!     async fn try_acquire(&self, request: &Request) -> Result<Outcome> { self.0.try_acquire(request).await }
//!     async fn acquire(&self, request: &Request) -> Result<Outcome> { self.0.acquire(request).await }
//!     async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> { self.0.renew(leases).await }
//!     async fn release(&self, lease: &Lease) -> Result<Released> { self.0.release(lease).await }
//!     async fn abandon(&self, request: &Request) -> Result<()> { self.0.abandon(request).await }
//!     async fn downgrade(&self, lease: &Lease) -> Result<()> { self.0.downgrade(lease).await }
//!     async fn inspect(&self, name: &Name) -> Result<LockInfo> { self.0.inspect(name).await }
//!     async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> { self.0.list(prefix).await }
//!     fn bounds_trips_of_list(&self) -> bool { self.0.bounds_trips_of_list() }
//!     async fn break_lock(&self, name: &Name) -> Result<bool> { self.0.break_lock(name).await }
//!     async fn others_wait(&self, name: &Name) -> bool { self.0.others_wait(name).await }
//!     async fn changed(&self, name: &Name, seen: Option<&str>) { self.0.changed(name, seen).await }
//!     async fn wanted(&self, lease: &Lease) { self.0.wanted(lease).await }
//!     fn sends_in_order(&self) -> bool { self.0.sends_in_order() }
//!     async fn close(&self) -> Result<()> { self.0.close().await }
//!     fn lacks(&self, capability: Capability) -> Error { self.0.lacks(capability) }
//! }
//! ```

mod abandoned;
mod admits;
mod connected;
mod login;
pub(crate) mod polling;
mod settings;
mod texts;
mod tls;
mod trouble;
mod url_form;

#[doc(inline)]
pub use crate::{network_settings, trouble};
pub use abandoned::{refuse_abandoned, remember_abandoned};
pub use admits::{admits, check_limit, other_limit};
pub use connected::Connected;
pub use login::{Login, Password};
pub use polling::poll;
pub use texts::{
    NOBODY_LISTENS, abandoned, closed, no_answer, no_connection, too_late, with_advice,
};
pub use tls::{Pem, Tls, TlsOffer, Trust};
pub use url_form::{TIMEOUTS, UrlForm, UrlKey, UrlScheme, within};
