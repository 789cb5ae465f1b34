//! What the operations share: the connections, keys and scripts of one client.

use std::sync::Arc;

use dlock_core::Capabilities;
use uuid::Uuid;

use crate::batcher::Batcher;
use crate::capabilities::capabilities;
use crate::config::{Config, Style};
#[cfg(feature = "client")]
use crate::connect::Connection;
use crate::connect::RedisLink;
use crate::error::Trouble;
use crate::key::Keys;
use crate::script::Scripts;
use crate::script_args::ScriptArgs;
use crate::wait::Inbox;

/// The verbs of the backend are methods of it, each in the file of its name.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) config: Arc<Config>,
    pub(crate) link: Arc<RedisLink>,
    /// Where grants arrive when `link` is the application's own connection: the inbox then needs one for itself.
    pub(crate) ears: Option<RedisLink>,
    /// For requests that can go together: neither plain locks nor a cluster, whose keys are at different nodes.
    pub(crate) batcher: Option<Arc<Batcher>>,
    /// For acquires that wait for replicas: `WAIT` blocks its connection.
    pub(crate) acquires: Option<RedisLink>,
    pub(crate) keys: Keys,
    pub(crate) scripts: Scripts,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) channel: String,
    /// Script arguments that never change.
    pub(crate) script_args: ScriptArgs,
    pub(crate) capabilities: Capabilities,
    pub(crate) identity: String,
}

impl Store {
    pub(crate) fn new(config: Config) -> Self {
        let config = Arc::new(config);
        let plain = config.style == Style::Plain;
        let keys = Keys::new(config.effective_prefix(), plain);
        let inbox = Arc::new(Inbox::default());
        let channel = keys.inbox(&Uuid::new_v4());
        let listens = (!plain).then(|| (inbox.clone(), channel.clone()));
        let link = Arc::new(RedisLink::new(config.clone(), listens));
        let together = !plain && !config.is_cluster() && config.replicas == 0;
        Self {
            batcher: together.then(|| Batcher::new(link.clone(), &config)),
            link,
            ears: None,
            acquires: (config.replicas > 0).then(|| RedisLink::new(config.clone(), None)),
            keys,
            scripts: if plain {
                Scripts::plain()
            } else {
                Scripts::queued()
            },
            inbox,
            channel,
            script_args: ScriptArgs::new(&config),
            capabilities: capabilities(&config),
            identity: config.identity_text(),
            config,
        }
    }

    /// The same over the application's own connection, with one more for grants where there is a queue.
    #[cfg(feature = "client")]
    pub(crate) fn over(config: Config, given: Connection) -> Self {
        let mut store = Self::new(config);
        let listens = (store.config.style != Style::Plain)
            .then(|| (store.inbox.clone(), store.channel.clone()));
        store.ears = listens.map(|inbox| RedisLink::new(store.config.clone(), Some(inbox)));
        store.link = Arc::new(RedisLink::over(store.config.clone(), given));
        if store.batcher.is_some() {
            store.batcher = Some(Batcher::new(store.link.clone(), &store.config));
        }
        store
    }

    /// Makes sure that grants can be heard.
    pub(crate) async fn hear(&self) -> Result<(), Trouble> {
        match &self.ears {
            Some(ears) => Box::pin(ears.connect()).await,
            None => Ok(()),
        }
    }
}
