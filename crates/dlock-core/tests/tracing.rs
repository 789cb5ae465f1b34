//! What a program's log says about its locks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use common::{World, seconds};
use dlock_core::Settings;
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    /// Collects what this thread logs from now on.
    fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_writer(log.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// The one line that says this.
    fn line(&self, what: &str) -> String {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let mut lines = text.lines().filter(|line| line.contains(what));
        let line = lines.next();
        assert!(line.is_some(), "{what:?} is missing in\n{text}");
        assert_eq!(lines.next(), None, "{what:?} is there twice in\n{text}");
        line.unwrap().to_owned()
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_a_warning_with_the_lock_its_token_and_the_reason() {
    let (log, _on) = Log::start();
    let world = World::new();
    let locks = world.client();
    let guard = locks.mutex("stock:42").unwrap().lock().await.unwrap();
    let token = guard.token().unwrap();
    assert!(world.client().break_lock("stock:42").await.unwrap());
    let line = log.line("lock broken by force");
    assert!(
        line.contains(" WARN ") && line.contains("name=stock:42"),
        "{line}"
    );
    let _ = guard.lost().await;
    let line = log.line("lock lost");
    for part in [
        " WARN ".to_owned(),
        "name=stock:42".to_owned(),
        format!("token={token}"),
        "backend=\"memory\"".to_owned(),
        "reason=the store no longer has the hold".to_owned(),
    ] {
        assert!(line.contains(&part), "{part} is missing in {line}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_logged_in_the_span_of_its_acquire() {
    let (log, _on) = Log::start();
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new().retry_unreachable_for(seconds(60)));
    control.cut();
    let waits = {
        let locks = locks.clone();
        async move { locks.rw_lock("shard:7").unwrap().read().await }
    };
    let mut waits = std::pin::pin!(waits);
    // Once is enough: the first pause is over long before.
    assert!(tokio::time::timeout(seconds(0), &mut waits).await.is_err());
    control.heal();
    drop(waits.await.unwrap());
    let line = log.line("the store is in trouble, trying again");
    let span = "dlock_acquire{name=shard:7 mode=shared backend=\"memory\"}";
    assert!(line.contains(span), "{line}");
    assert!(line.contains("DEBUG"), "{line}");
}

/// Without an owner a task that takes a lock twice waits for itself, for ever: the log says so.
#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_itself_is_told() {
    use tracing::Instrument;
    let (log, _on) = Log::start();
    let world = World::new();
    let (locks, _) = world.client_with(Settings::new().warn_after(seconds(5)));
    let mutex = locks.mutex("stock:42").unwrap();
    let nested = async {
        let _outer = mutex.lock().await.unwrap();
        mutex.lock_within(seconds(20)).await.unwrap()
    };
    let inner = nested.instrument(tracing::info_span!("close_the_books"));
    assert!(inner.await.is_none());
    let line = log.line("this very client holds the lock it waits for");
    for part in [" WARN ", "name=stock:42", "waited=5s", "close_the_books"] {
        assert!(line.contains(part), "{part} is missing in {line}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_tells_who_holds() {
    let (log, _on) = Log::start();
    let world = World::new();
    let (locks, _) = world.client_with(Settings::new().warn_after(seconds(5)));
    let other = world.client_with(Settings::new().label("nightly@web-3")).0;
    let _held = other.mutex("x").unwrap().lock().await.unwrap();
    let mutex = locks.mutex("x").unwrap();
    assert!(mutex.lock_within(seconds(20)).await.unwrap().is_none());
    let line = log.line("still waiting for a lock");
    assert!(line.contains("holders=nightly@web-3"), "{line}");
}
