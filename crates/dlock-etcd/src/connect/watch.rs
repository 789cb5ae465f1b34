//! Watches.

use etcd_client::{
    Client, Error as EtcdError, WatchFilterType, WatchOptions, WatchResponse, WatchStream,
};

use super::Link;
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
pub(crate) struct Watch {
    stream: WatchStream,
    own: Vec<u8>,
    seen: i64,
    /// The node that serves it.
    pub(crate) node: usize,
    /// Everything after this revision is told.
    pub(crate) since: i64,
}

/// What a watch tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Whether it was our own key that ended, or something in the range.
    pub(crate) own: bool,
    pub(crate) revision: i64,
}

impl Link {
    /// Watches keys from now on. The watch is in place when this returns.
    ///
    /// "From now on" and not from the revision that the caller has read: a watch that starts at a revision which has passed is
    /// served by the server's 100 ms loop. The caller compares [`Watch::since`] with what it has read.
    pub(crate) async fn watch(&self, what: Watching<'_>) -> Result<Watch, Trouble> {
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
        Ok(Watch {
            stream,
            own: what.own.unwrap_or_default().to_vec(),
            seen: what.seen,
            node: told.node,
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

impl Watch {
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
            if let Some(seen) = self.read(&message) {
                return Ok(seen);
            }
        }
    }

    /// From now on only what happened after this revision is news.
    pub(crate) fn knows(&mut self, seen: i64) {
        self.seen = seen;
    }

    fn read(&self, message: &WatchResponse) -> Option<Seen> {
        let events = message.events().iter().filter_map(|event| event.kv());
        let events = events.map(|kv| (kv.key(), kv.mod_revision()));
        first_news(self.seen, &self.own, events)
    }
}

/// The first event that was not known before. A server that lags behind also tells of what was: of the end of an earlier entry with the
/// same key, for example, and whoever took that for the end of the holder would be a second one.
fn first_news<'a>(
    seen: i64,
    own: &[u8],
    events: impl IntoIterator<Item = (&'a [u8], i64)>,
) -> Option<Seen> {
    let mut events = events.into_iter();
    let (key, revision) = events.find(|(_, revision)| *revision > seen)?;
    Some(Seen {
        own: key == own,
        revision,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_earlier_entry_with_the_same_key_is_no_news() {
        let event = |key: &'static str, revision| (key.as_bytes(), revision);
        assert_eq!(first_news(7, b"own", [event("a", 6), event("a", 7)]), None);
        let seen = first_news(7, b"own", [event("own", 6), event("a", 8), event("own", 9)]);
        let expected = Seen {
            own: false,
            revision: 8,
        };
        assert_eq!(seen, Some(expected));
        let seen = first_news(7, b"own", [event("own", 8), event("a", 9)]);
        assert!(seen.is_some_and(|seen| seen.own));
    }
}
