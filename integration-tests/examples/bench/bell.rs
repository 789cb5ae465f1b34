//! The least that a hand-off can be: one request, and the event that it makes at the other process.
//!
//! Two processes alternate. What one of them does when it gives the lock back is a single request, and the other has the lock as soon as it sees what came of
//! that. Nothing excludes a third one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_bench::{Client, Hold, Result};
use tokio::sync::{Mutex, mpsc};

/// After such a silence the other process has ended its round. Of two that begin together the one with the shorter patience is first.
const SILENCE: std::ops::Range<u64> = 40..250;

/// What rings at the other process, and tells when that has rung here.
#[async_trait]
pub(crate) trait Bell: Send + Sync + 'static {
    /// Hears from now on what others ring for this name.
    async fn listen(&self, name: &str) -> Result<mpsc::UnboundedReceiver<()>>;

    /// One request.
    async fn ring(&self, name: &str) -> Result<()>;
}

/// A client that has its turn when the bell rings.
pub(crate) struct ByBell<B> {
    bell: Arc<B>,
    heard: Mutex<Option<mpsc::UnboundedReceiver<()>>>,
}

impl<B: Bell> ByBell<B> {
    pub(crate) fn new(bell: B) -> Self {
        Self {
            bell: Arc::new(bell),
            heard: Mutex::new(None),
        }
    }
}

#[async_trait]
impl<B: Bell> Client for ByBell<B> {
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>> {
        let mut heard = self.heard.lock().await;
        let heard = match &mut *heard {
            Some(heard) => heard,
            empty => empty.insert(self.bell.listen(name).await?),
        };
        // What rang while this process had its turn is of one who did not wait for it.
        while heard.try_recv().is_ok() {}
        let patience = Duration::from_millis(fastrand::u64(SILENCE));
        let _ = tokio::time::timeout(patience, heard.recv()).await;
        Ok(Box::new(Turn {
            bell: self.bell.clone(),
            name: name.to_owned(),
        }))
    }
}

struct Turn<B> {
    bell: Arc<B>,
    name: String,
}

#[async_trait]
impl<B: Bell> Hold for Turn<B> {
    async fn release(self: Box<Self>) -> Result<()> {
        self.bell.ring(&self.name).await
    }
}
