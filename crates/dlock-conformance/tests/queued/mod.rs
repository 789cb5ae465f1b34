//! A store with a queue and a push, with one thing wrong at a time: what the documents alone suggest that an author may get wrong.

mod attempt;
mod backend;
mod client;
mod flaws;
mod holds;
mod line;
mod table;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dlock_conformance::{Ability, Faulty, Harness, Residue, Timings, async_trait};
use dlock_core::backend::Backend;
use dlock_core::{Name, Result};
use tokio::sync::Notify;

use client::Client;
pub(crate) use flaws::{FLAWS, Flaw};
use table::Table;

/// The server.
#[derive(Debug)]
pub(crate) struct Server {
    table: Mutex<Table>,
    /// Told when anything has changed.
    changes: Notify,
    /// Told when time has passed by an order of the harness.
    aged: Notify,
    clients: AtomicUsize,
    /// Connections that are open.
    open: AtomicU64,
    /// Those who wait to be told.
    listeners: AtomicU64,
}

impl Server {
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap()
    }
}

pub(crate) fn harness(flaw: Flaw, timings: Timings) -> Arc<dyn Harness> {
    Arc::new(Queued {
        flaw,
        timings,
        server: Arc::new(Server {
            table: Mutex::new(Table::new(flaw)),
            changes: Notify::new(),
            aged: Notify::new(),
            clients: AtomicUsize::new(0),
            open: AtomicU64::new(0),
            listeners: AtomicU64::new(0),
        }),
    })
}

struct Queued {
    flaw: Flaw,
    timings: Timings,
    server: Arc<Server>,
}

#[async_trait]
impl Harness for Queued {
    fn name(&self) -> &str {
        "queued"
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(Client::new(self.flaw, &self.server)))
    }

    fn timings(&self) -> Timings {
        self.timings
    }

    fn abilities(&self) -> &'static [Ability] {
        Ability::ALL
    }

    async fn faulty(&self) -> Result<Faulty> {
        let client = Client::new(self.flaw, &self.server);
        Ok(Faulty {
            fault: Arc::new(client.line.clone()),
            backend: Arc::new(client),
        })
    }

    async fn set_clock(&self, seconds_ahead: i64) -> Result<()> {
        self.server.table().ahead = seconds_ahead;
        Ok(())
    }

    async fn expire(&self, name: &Name) -> Result<()> {
        self.server.table().expire(name);
        self.server.aged.notify_waiters();
        Ok(())
    }

    async fn residue(&self) -> Result<Residue> {
        Ok(Residue::from([
            ("rows".to_owned(), self.server.table().count()),
            (
                "connections".to_owned(),
                self.server.open.load(Ordering::SeqCst),
            ),
            (
                "listeners".to_owned(),
                self.server.listeners.load(Ordering::SeqCst),
            ),
        ]))
    }
}
