//! What befell one trip to a store.

/// Makes the type that a backend tells troubles by: an [`Error`](crate::Error) for the caller, and beside it the facts that the backend's own next step
/// depends on, such as whether the connection can still be used.
///
/// It holds the one rule of doubt, which is easily got wrong by hand: **what was sent is in doubt, whatever comes after.** A refusal, a wrong password
/// or a closed client that shows at a reconnect says nothing about the request before it, which the store may have carried out. So a new trouble is in doubt
/// ([`HeldNow::Unknown`](crate::HeldNow::Unknown)) whatever its kind, until the place that knows says `unsent`; and `in_doubt` brings the doubt back where
/// an earlier try of the same call was sent.
///
/// The facts start with their defaults. Of the error the type has:
///
/// | | |
/// |---|---|
/// | `new(kind, message)` | a trouble in doubt |
/// | `unsent()` | it is certain that the store did nothing |
/// | `in_doubt()` | this or an earlier try of the same call may have been carried out |
/// | `about(what)` | puts `what: ` before the message |
/// | `for_good()` | trying again is in vain |
/// | `retold(kind, message)` | another kind and message; doubt, cause and facts stay |
/// | `because_of(cause)` | keeps the client's own error |
/// | `kind()`, `message()`, `is_sent()` | what it says |
/// | `into::<Error>()` | for the caller; and the other way round, with the doubt that the error has |
///
/// ```
/// use dlock_core::{Error, ErrorKind, HeldNow};
///
/// dlock_core::kit::trouble! {
///     /// What befell one call.
///     struct Trouble {
///         /// Whether the connection can no longer be used.
///         broken: bool,
///     }
/// }
///
/// let lost = Trouble { broken: true, ..Trouble::new(ErrorKind::Unreachable, "connection reset") };
/// let refused = Trouble::new(ErrorKind::Denied, "wrong password").unsent(); // by the reconnect
/// assert!(lost.broken && lost.is_sent());
/// assert_eq!(Error::from(refused.clone()).held_now(), HeldNow::No);
/// // The request was sent before the connection was lost: the refusal does not take that back.
/// assert_eq!(Error::from(refused.in_doubt()).held_now(), HeldNow::Unknown);
/// ```
#[macro_export]
macro_rules! trouble {
    (
        $(#[$about:meta])*
        $visible:vis struct $Trouble:ident {
            $($(#[$fact_about:meta])* $fact_visible:vis $fact:ident: $Fact:ty,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone)]
        $visible struct $Trouble {
            error: $crate::Error,
            $($(#[$fact_about])* $fact_visible $fact: $Fact,)*
        }

        #[allow(dead_code, reason = "a backend uses what it needs")]
        impl $Trouble {
            $visible fn new(
                kind: $crate::ErrorKind,
                message: impl ::std::convert::Into<::std::string::String>,
            ) -> Self {
                Self {
                    error: $crate::Error::new(kind, message).after_sending(true),
                    $($fact: ::std::default::Default::default(),)*
                }
            }

            fn with(mut self, change: impl ::std::ops::FnOnce($crate::Error) -> $crate::Error) -> Self {
                self.error = change(self.error);
                self
            }

            /// It is certain that the store did nothing.
            #[must_use]
            $visible fn unsent(self) -> Self {
                self.with(|error| error.after_sending(false))
            }

            /// This or an earlier try of the same call may have been carried out.
            #[must_use]
            $visible fn in_doubt(self) -> Self {
                self.with(|error| error.after_sending(true))
            }

            /// Says where, or what for.
            #[must_use]
            $visible fn about(self, what: &str) -> Self {
                let message = ::std::format!("{what}: {}", self.message());
                self.with(|error| error.with_message(message))
            }

            /// No sense in trying again without a change.
            #[must_use]
            $visible fn for_good(self) -> Self {
                self.with(|error| error.with_retryable(false))
            }

            /// The same under another name: doubt, cause and facts stay.
            #[must_use]
            $visible fn retold(
                self,
                kind: $crate::ErrorKind,
                message: impl ::std::convert::Into<::std::string::String>,
            ) -> Self {
                self.with(|error| error.with_kind(kind).with_message(message))
            }

            /// Keeps the client's own error.
            #[must_use]
            $visible fn because_of(
                self,
                cause: impl ::std::error::Error + Send + Sync + 'static,
            ) -> Self {
                self.with(|error| error.with_source(cause))
            }

            $visible fn kind(&self) -> $crate::ErrorKind {
                self.error.kind()
            }

            $visible fn message(&self) -> &str {
                self.error.message()
            }

            /// Whether the store may have done what was asked.
            $visible fn is_sent(&self) -> bool {
                self.error.held_now() != $crate::HeldNow::No
            }
        }

        impl ::std::convert::From<$Trouble> for $crate::Error {
            fn from(trouble: $Trouble) -> Self {
                trouble.error
            }
        }

        /// With the doubt that the error has.
        impl ::std::convert::From<$crate::Error> for $Trouble {
            fn from(error: $crate::Error) -> Self {
                Self {
                    error,
                    $($fact: ::std::default::Default::default(),)*
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use crate::error::tests::KINDS;
    use crate::{Error, HeldNow};

    trouble! {
        struct Trouble {
            broken: bool,
        }
    }

    /// The whole rule, for every kind of error: the order of events decides about doubt, and nothing else does.
    #[test]
    fn what_was_sent_is_in_doubt_whatever_comes_after() {
        for (kind, retryable) in KINDS {
            let new = || Trouble::new(kind, "said");
            for (trouble, sent, why) in [
                (new(), true, "nobody said that nothing was sent"),
                (new().unsent(), false, "it never left"),
                (new().in_doubt(), true, "sent twice"),
                (new().unsent().in_doubt(), true, "an earlier try was sent"),
                (new().in_doubt().unsent(), false, "the last word counts"),
                (new().unsent().about("x").for_good(), false, "words alone"),
                (new().about("x").for_good(), true, "words alone"),
            ] {
                assert_eq!(trouble.is_sent(), sent, "{kind:?}: {why}");
                let held = Error::from(trouble).held_now();
                let expected = if sent { HeldNow::Unknown } else { HeldNow::No };
                assert_eq!(held, expected, "{kind:?}: {why}");
            }
            assert_eq!(Error::from(new()).is_retryable(), retryable, "{kind:?}");
        }
    }

    #[test]
    fn retold_keeps_doubt_cause_and_facts() {
        use crate::ErrorKind::{Invalid, Unreachable};
        let cause = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let first = Trouble {
            broken: true,
            ..Trouble::new(Unreachable, "a")
        };
        for (trouble, held) in [
            (first.clone(), HeldNow::Unknown),
            (first.unsent(), HeldNow::No),
        ] {
            let trouble = trouble.because_of(std::io::Error::from(cause.kind()));
            let trouble = trouble.retold(Invalid, "b").about("x");
            assert!(trouble.broken);
            let error = Error::from(trouble);
            assert_eq!((error.kind(), error.message()), (Invalid, "x: b"));
            assert!(!error.is_retryable(), "as the new kind has it");
            assert_eq!(error.held_now(), held);
            assert!(
                error
                    .source()
                    .is_some_and(|cause| cause.is::<std::io::Error>())
            );
        }
    }
}
