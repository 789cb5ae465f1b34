//! Fencing tokens.

use std::fmt;

/// A number that increases strictly with every hold of a name ([C11](crate::contract#c11)).
///
/// Hand it to the protected resource with every write; the resource keeps the highest it has seen and refuses lower ones.
/// Then a holder that was paused past its lease can do no harm.
///
/// Every store of this library gives numbers from 0 to 2^63 - 1, which SQL's signed `BIGINT` holds: [`as_i64`](FencingToken::as_i64).
/// With the feature `serde` it is a number of that range; a larger one is refused, both ways. In text formats such as JSON, one above 2^53 - 1 is
/// written as a string of its digits, because many readers of JSON keep numbers as doubles and would lose the last of them; both forms are read.
///
/// ```
/// use dlock_core::FencingToken;
///
/// /// What the resource does. It keeps the highest token beside its data, and changes both in one step.
/// fn admits(highest: &mut FencingToken, token: FencingToken) -> bool {
///     let admitted = token >= *highest;
///     *highest = token.max(*highest);
///     admitted
/// }
///
/// let mut highest = FencingToken::new(0);
/// assert!(admits(&mut highest, FencingToken::new(8)));
/// assert!(admits(&mut highest, FencingToken::new(8))); // the same holder again
/// assert!(!admits(&mut highest, FencingToken::new(7))); // an earlier one, too late
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(transparent)
)]
pub struct FencingToken(#[cfg_attr(feature = "serde", serde(with = "super::bigint"))] u64);

impl FencingToken {
    /// Wraps the store's number.
    ///
    /// ```
    /// # use dlock_core::FencingToken;
    /// let header = "1763430000000001"; // as a service gets it from its client
    /// let token = FencingToken::new(header.parse().unwrap());
    /// assert_eq!(token.to_string(), header);
    /// ```
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// let number: Option<u64> = guard.token().map(|token| token.get()); // for a header, or an unsigned column
    /// # Ok(())
    /// # }
    /// ```
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number for a signed `BIGINT` column. `None` when it does not fit, which no store of this library does: a number that was
    /// cut would let a paused holder pass for a later one.
    ///
    /// ```
    /// use dlock_core::FencingToken;
    ///
    /// let token = Some(FencingToken::new(42)); // as `Guard::token` gives it
    /// assert_eq!(token.and_then(FencingToken::as_i64), Some(42));
    /// assert_eq!(FencingToken::new(u64::MAX).as_i64(), None);
    /// ```
    pub fn as_i64(self) -> Option<i64> {
        i64::try_from(self.0).ok()
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
