//! Watches.

use etcd_client::{Client, Error as EtcdError, WatchFilterType, WatchOptions, WatchStream};

use super::Cluster;
use super::news::{News, Seen};
use crate::error::Trouble;
use crate::txn::Range;

/// What to watch.
#[derive(Debug)]
pub(crate) struct Watching<'a> {
    pub(crate) range: &'a Range,
    /// Whether new values count too, or only the end of keys.
    pub(crate) puts: bool,
    /// A key of ours whose end counts too.
    pub(crate) own: Option<&'a [u8]>,
    /// What happened up to this revision is known.
    pub(crate) seen: i64,
}

/// A watch that is in place.
#[derive(Debug)]
pub(crate) struct KeyWatch {
    stream: WatchStream,
    news: News,
    /// The member that serves it.
    pub(crate) member: usize,
    /// Everything after this revision is told.
    pub(crate) since: i64,
}

impl Cluster {
    /// Watches keys from now on. The watch is in place when this returns.
    ///
    /// "From now on" and not from the revision that the caller has read: a watch that starts at a revision which has passed is
    /// served by the server's 100 ms loop. The caller compares [`KeyWatch::since`] with what it has read.
    pub(crate) async fn watch(&self, what: Watching<'_>) -> Result<KeyWatch, Trouble> {
        // Two watches are two trips, one after the other.
        let limit = what.own.map(|_| self.answer_timeout * 2);
        let told = self
            .call(limit, Client::watch_client, |mut watches| {
                let mut options = options(what.puts);
                if !what.range.end.is_empty() {
                    options = options.with_range(what.range.end.clone());
                }
                let (key, own) = (what.range.start.clone(), what.own.map(<[u8]>::to_vec));
                async move {
                    let mut stream = watches.watch(key, Some(options)).await?;
                    let Some(own) = own else {
                        let since = in_place(&mut stream).await?;
                        return Ok((stream, since));
                    };
                    // On the same stream, which tells events in the order of their revisions.
                    stream.watch(own, Some(self::options(false))).await?;
                    let since = in_place(&mut stream).await?;
                    let since = since.max(in_place(&mut stream).await?);
                    Ok((stream, since))
                }
            })
            .await?;
        let (stream, since) = told.value;
        Ok(KeyWatch {
            stream,
            news: News::after(what.seen, what.own.unwrap_or_default()),
            member: told.member,
            since,
        })
    }
}

fn options(puts: bool) -> WatchOptions {
    if puts {
        return WatchOptions::new();
    }
    WatchOptions::new().with_filters([WatchFilterType::NoPut])
}

/// The revision after which the next watch on the stream tells everything. Events that come before it are not told again: they count
/// as what happened before.
async fn in_place(stream: &mut WatchStream) -> Result<i64, EtcdError> {
    let mut since = 0;
    loop {
        let told = stream.message().await?;
        let Some(told) = told.filter(|told| !told.canceled()) else {
            return Err(EtcdError::WatchError("the server refused it".to_owned()));
        };
        if told.created() {
            let revision = told.header().map_or(0, |header| header.revision());
            return Ok(since.max(revision));
        }
        let events = told.events().iter().filter_map(|event| event.kv());
        since = events.map(|kv| kv.mod_revision()).fold(since, i64::max);
    }
}

impl KeyWatch {
    /// Resolves with an event. A watch that ended, for whatever reason, is an error: open another.
    pub(crate) async fn event(&mut self) -> Result<Seen, Trouble> {
        loop {
            let Some(message) = self.stream.message().await? else {
                return Err(EtcdError::WatchError("the stream ended".to_owned()).into());
            };
            if message.canceled() {
                let why = message.cancel_reason().to_owned();
                return Err(EtcdError::WatchError(format!("the server ended it: {why}")).into());
            }
            let events = message.events().iter().filter_map(|event| event.kv());
            let events = events.map(|kv| (kv.key(), kv.mod_revision()));
            if let Some(seen) = self.news.first(events) {
                return Ok(seen);
            }
        }
    }

    /// From now on only what happened after this revision is news.
    pub(crate) fn knows(&mut self, seen: i64) {
        self.news.knows(seen);
    }
}
