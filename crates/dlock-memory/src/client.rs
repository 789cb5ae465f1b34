//! One client of the store. The verbs of the backend are methods of it, each in the file of its name.

use std::sync::Arc;

use dlock_core::Result;

use crate::link::ClientLink;
use crate::store::Store;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) store: Arc<Store>,
    pub(crate) link: Arc<ClientLink>,
}

impl Client {
    pub(crate) fn new(store: &Arc<Store>) -> Self {
        Self {
            store: store.clone(),
            link: ClientLink::new(),
        }
    }

    /// One call: the request reaches the store, the store does the work, and the answer comes back.
    pub(crate) async fn call<T>(&self, work: impl FnOnce(&Store) -> T) -> Result<T> {
        let call = self.link.send(&self.store).await?;
        let answer = work(&self.store);
        self.link.reply(&self.store, call).await?;
        Ok(answer)
    }
}
