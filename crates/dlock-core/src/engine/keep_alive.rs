//! What the ledger knows of the client it belongs to: that it must live while something is left to do.

use std::fmt;
use std::sync::Arc;

/// A client whose rooms finish what is begun.
pub(crate) trait Finish: Send + Sync {
    /// Whether a room lives that can finish what is begun now.
    fn can_finish(&self) -> bool;
}

/// The client, to those who may have to keep it alive.
pub(crate) trait Keep {
    fn can_finish(&self) -> bool;

    /// Keeps it alive from now on.
    fn keep(&self) -> KeptAlive;
}

impl<C: Finish + 'static> Keep for Arc<C> {
    fn can_finish(&self) -> bool {
        C::can_finish(self)
    }

    fn keep(&self) -> KeptAlive {
        KeptAlive(self.clone())
    }
}

/// Keeps the client alive. Dropping it may be the client's end, so it is dropped outside of the ledger's lock.
#[derive(Clone)]
pub(crate) struct KeptAlive(Arc<dyn Finish>);

impl Keep for KeptAlive {
    fn can_finish(&self) -> bool {
        self.0.can_finish()
    }

    fn keep(&self) -> KeptAlive {
        self.clone()
    }
}

impl fmt::Debug for KeptAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeptAlive").finish_non_exhaustive()
    }
}
