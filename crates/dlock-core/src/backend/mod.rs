//! What the author of a backend needs: the [`Backend`] trait, what core asks of it and what it answers, and the pieces that
//! backends are made of.

mod backoff;
#[cfg(feature = "serde")]
mod bigint;
mod capabilities;
mod into;
mod lease;
mod request;
mod store;
mod token;
mod url;

pub use crate::runtime::need_runtime;
pub use backoff::Backoff;
pub(crate) use backoff::random_between;
pub use capabilities::{Capabilities, Capability, Fairness, Hearing, Liveness, Reach, WakeUp};
pub use into::IntoBackend;
#[doc(hidden)]
pub use into::{Any, Own, Shared};
pub use lease::Lease;
pub use request::{AttemptId, Busy, LossReason, Mode, Outcome, Released, Renewal, Request};
pub use store::Backend;
pub use token::FencingToken;
pub use url::{BackendUrl, Host, parse_duration};
