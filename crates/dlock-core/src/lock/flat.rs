use crate::Error;

/// Makes one result of what a lock says and what the work under it says.
///
/// `run` and its sisters give `Result<T>` for work that gives `T`. Work that may fail gives a `Result` itself, and then there are two of
/// them. Where the work's error can be made from dlock's, they are one with [`flat`](Flat::flat):
///
/// ```
/// use dlock_core::{Flat, Locks};
///
/// # #[derive(Debug)]
/// enum ShopError { SoldOut, Lock(dlock_core::Error) }
/// impl From<dlock_core::Error> for ShopError {
///     fn from(error: dlock_core::Error) -> Self { Self::Lock(error) }
/// }
/// async fn sell_one() -> Result<u32, ShopError> { Ok(1) }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), ShopError> {
/// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
/// let stock = locks.mutex("stock:42")?;
/// let sold: u32 = stock.run(async |_| sell_one().await).await.flat()?;
/// let maybe: Option<u32> = stock.try_run(async |_| sell_one().await).await.flat()?;
/// # assert_eq!((sold, maybe), (1, Some(1)));
/// # Ok(())
/// # }
/// ```
pub trait Flat<T, E> {
    /// One result: the work's value, the work's error, or the lock's error as one of the work's.
    ///
    /// # Errors
    ///
    /// Whichever of the two there was.
    fn flat(self) -> Result<T, E>;
}

impl<T, E: From<Error>> Flat<T, E> for Result<Result<T, E>, Error> {
    fn flat(self) -> Result<T, E> {
        self?
    }
}

impl<T, E: From<Error>> Flat<Option<T>, E> for Result<Option<Result<T, E>>, Error> {
    fn flat(self) -> Result<Option<T>, E> {
        self?.transpose()
    }
}
