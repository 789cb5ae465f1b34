//! The whole conformance suite against the memory backend. It has every ability, so nothing is skipped.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use dlock_conformance::{Ability, Fault, Faulty, Harness, Residue, async_trait};
use dlock_core::backend::Backend;
use dlock_core::{Name, Result};
use dlock_memory::{Control, MemoryBackend};

struct Memory {
    store: MemoryBackend,
}

#[async_trait]
impl Harness for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(self.store.another_client()))
    }

    fn abilities(&self) -> &'static [Ability] {
        Ability::ALL
    }

    async fn faulty(&self) -> Result<Faulty> {
        let backend = self.store.another_client();
        let fault = Arc::new(Line(backend.control()));
        Ok(Faulty {
            backend: Arc::new(backend),
            fault,
        })
    }

    /// The store has no time of day: it counts elapsed time alone.
    async fn set_clock(&self, _: i64) -> Result<()> {
        Ok(())
    }

    async fn expire(&self, name: &Name) -> Result<()> {
        self.store.control().expire(name);
        Ok(())
    }

    async fn residue(&self) -> Result<Residue> {
        let names = self.store.control().names();
        Ok(Residue::from([("names".to_owned(), names as u64)]))
    }
}

struct Line(Control);

#[async_trait]
impl Fault for Line {
    async fn cut(&self) {
        self.0.cut();
    }

    async fn hang(&self) {
        self.0.hang();
    }

    async fn half_open(&self) {
        self.0.half_open();
    }

    async fn deny(&self) {
        self.0.deny();
    }

    async fn heal(&self) {
        self.0.heal();
    }

    async fn lose_reply(&self) {
        self.0.lose_reply(1);
    }

    async fn delay_replies(&self, delay: Duration) {
        self.0.delay_replies(delay);
    }
}

fn main() -> ExitCode {
    dlock_conformance::main(Memory {
        store: MemoryBackend::new(),
    })
}
