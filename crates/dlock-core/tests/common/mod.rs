//! A memory store under tokio's clock, and clients of it.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub(crate) mod altered;
pub(crate) mod shards;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Clock, Hearing, Locks, Settings, TokioClock};
use dlock_memory::{Control, MemoryBackend};

pub(crate) struct World {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) backend: MemoryBackend,
    /// Of a client that no test uses: only its view of the store.
    pub(crate) control: Control,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let backend = MemoryBackend::with_clock(clock.clone());
        let control = backend.control();
        Self {
            clock,
            backend,
            control,
        }
    }

    pub(crate) fn client(&self) -> Locks {
        self.client_with(Settings::new()).0
    }

    pub(crate) fn client_with(&self, settings: Settings) -> (Locks, Control) {
        let backend = self.backend.another_client();
        let control = backend.control();
        let locks = Locks::builder(Arc::new(backend))
            .clock(self.clock.clone())
            .settings(settings)
            .build()
            .unwrap();
        (locks, control)
    }

    /// A client whose `far:` names can be put out of reach.
    pub(crate) fn shards(
        &self,
        settings: Settings,
        renewal: Duration,
    ) -> (Locks, Arc<shards::Shards>) {
        let backend = shards::Shards::new(self.backend.another_client(), renewal);
        let locks = Locks::builder(backend.clone())
            .clock(self.clock.clone())
            .settings(settings)
            .build()
            .unwrap();
        (locks, backend)
    }

    /// A client of a store that hears of others in another way.
    pub(crate) fn altered(
        &self,
        settings: Settings,
        wanted: Hearing,
    ) -> (Locks, Arc<altered::Altered>) {
        let backend = altered::Altered::new(self.backend.another_client(), wanted);
        let locks = Locks::builder(backend.clone())
            .clock(self.clock.clone())
            .settings(settings)
            .build()
            .unwrap();
        (locks, backend)
    }

    /// A client that knows the store under another name.
    pub(crate) fn known_as(&self, identity: &str) -> Locks {
        let store = self.backend.another_client();
        let backend = shards::Shards::known_as(identity.to_owned(), store, Duration::ZERO);
        Locks::builder(backend)
            .clock(self.clock.clone())
            .build()
            .unwrap()
    }

    /// Waits until nobody holds `name`, and fails if that takes more than a second of the clock.
    pub(crate) async fn until_free(&self, name: &str) {
        self.until_free_within(seconds(1), name).await;
    }

    /// As [`until_free`](World::until_free) after an outage: what is undone meanwhile is tried again every two seconds at least.
    pub(crate) async fn until_free_after_an_outage(&self, name: &str) {
        self.until_free_within(millis(2100), name).await;
    }

    async fn until_free_within(&self, limit: Duration, name: &str) {
        let probe = self.client();
        let limit = self.clock.now() + limit;
        while probe.inspect(name).await.unwrap().is_locked() {
            assert!(self.clock.now() < limit, "{name} is still held");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(crate) fn names(&self) -> usize {
        self.control.names()
    }
}

pub(crate) fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
