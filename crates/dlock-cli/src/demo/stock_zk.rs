//! The stock as a node in ZooKeeper.

use async_trait::async_trait;
use dlock_zk::Config;
use dlock_zk::client::zookeeper_client::{Acls, Client, CreateMode, Error};
use dlocks::backend::BackendUrl;

use crate::demo::stock::Stock;
use crate::exit::{Failure, UNAVAILABLE};

struct ZkStock {
    client: Client,
    path: String,
    access: Acls<'static>,
}

pub(crate) async fn open(url: &str, id: &str) -> Result<Box<dyn Stock>, Failure> {
    let access = match BackendUrl::parse(url)?.user() {
        Some(_) => Acls::creator_all(),
        None => Acls::anyone_all(),
    };
    Ok(Box::new(ZkStock {
        client: Config::from_url(url)?.client().await?,
        path: format!("/{id}"),
        access,
    }))
}

#[async_trait]
impl Stock for ZkStock {
    async fn fill(&self, items: u64) -> Result<(), Failure> {
        // Ephemeral: it goes with the sale that made it.
        let options = CreateMode::Ephemeral.with_acls(self.access);
        let text = items.to_string();
        let created = self.client.create(&self.path, text.as_bytes(), &options);
        created.await.map(drop).map_err(|error| failed(&error))
    }

    async fn read(&self) -> Result<u64, Failure> {
        // A server may lag behind the one that the last buyer wrote to. Both are sent at once.
        let (sync, read) = (
            self.client.sync(&self.path),
            self.client.get_data(&self.path),
        );
        sync.await.map_err(|error| failed(&error))?;
        let (bytes, _) = read.await.map_err(|error| failed(&error))?;
        let text = String::from_utf8_lossy(&bytes);
        text.parse()
            .map_err(|_| Failure::new(UNAVAILABLE, "zk: the stock is not a number"))
    }

    async fn write(&self, items: u64) -> Result<(), Failure> {
        let text = items.to_string();
        let written = self.client.set_data(&self.path, text.as_bytes(), None);
        written.await.map(drop).map_err(|error| failed(&error))
    }

    async fn remove(&self) -> Result<(), Failure> {
        let deleted = self.client.delete(&self.path, None);
        deleted.await.map_err(|error| failed(&error))
    }
}

fn failed(error: &Error) -> Failure {
    Failure::new(UNAVAILABLE, format!("zk: {error}"))
}
