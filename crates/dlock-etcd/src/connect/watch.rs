//! Watches.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Error as EtcdError, ResponseHeader, WatchClient, WatchFilterType, WatchOptions, WatchStream,
};
use futures::future::{Either, select};
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep_until, timeout};

use super::Cluster;
use super::asking::{Asking, Entering};
use super::member::MemberChannel;
use super::news::{News, Seen};
use super::prompt::{Promptness, time_to_answer};
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
    /// Of a waiter in line for a lock, which knows what happened up to this revision: its watch is replaced if the server may have entered
    /// it late. `None` for others, to whom 100 ms are nothing.
    pub(crate) waits: Option<i64>,
}

/// A watch that is in place.
#[derive(Debug)]
pub(crate) struct KeyWatch {
    stream: WatchStream,
    key: Vec<u8>,
    options: WatchOptions,
    news: News,
    prompt: Promptness,
    asking: Arc<Asking>,
    /// The member that serves it.
    pub(crate) member: usize,
    /// Everything after this revision is told.
    pub(crate) since: i64,
    /// Whether the end of our own key is told before whatever happened later.
    pub(crate) in_order: bool,
}

/// What the first answers on a stream told.
struct Opened {
    stream: WatchStream,
    prompt: Promptness,
    since: i64,
    in_order: bool,
}

impl Cluster {
    /// Watches keys from now on. The watch is in place when this returns.
    ///
    /// "From now on" and not from the revision that the caller has read: a watch that starts at a revision which has passed is
    /// served by the server's 100 ms loop. The caller compares [`KeyWatch::since`] with what it has read.
    pub(crate) async fn watch(&self, what: Watching<'_>) -> Result<KeyWatch, Trouble> {
        let mut options = options(what.puts);
        if !what.range.end.is_empty() {
            options = options.with_range(what.range.end.clone());
        }
        // Two watches are two trips, one after the other.
        let limit = what.own.map(|_| self.answer_timeout * 2);
        let patience = self.answer_timeout;
        let told = self
            .call(
                limit,
                MemberChannel::watches,
                |(watches, server, asking)| {
                    let (key, options) = (what.range.start.clone(), options.clone());
                    let own = what.own.map(<[u8]>::to_vec);
                    async move {
                        let known = asking.clone();
                        let entering = pin!(async move {
                            match what.waits {
                                Some(_) => known.entering(server, patience).await,
                                None => Entering::NotKnown,
                            }
                        });
                        let opened = match own {
                            None => open(watches, key, options, what.waits, entering).await,
                            Some(own) => {
                                open_both(watches, key, options, own, entering, &asking).await
                            }
                        };
                        opened.map(|opened| (opened, asking))
                    }
                },
            )
            .await?;
        let (opened, asking) = told.value;
        let mut watch = KeyWatch {
            stream: opened.stream,
            key: what.range.start.clone(),
            options,
            news: News::after(what.waits.unwrap_or_default(), what.own.unwrap_or_default()),
            prompt: opened.prompt,
            asking,
            member: told.member,
            since: opened.since,
            in_order: opened.in_order,
        };
        watch.replace_if_late().await?;
        Ok(watch)
    }
}

/// Opens a watch of one range. `entering` tells how the server enters it.
async fn open(
    watches: WatchClient,
    key: Vec<u8>,
    options: WatchOptions,
    waits: Option<i64>,
    entering: Pin<&mut impl Future<Output = Entering>>,
) -> Result<Opened, EtcdError> {
    let (first, entering) = first_beside(first(watches, key, options), entering).await?;
    let (mut stream, first, trip) = first;
    // The client sends nothing more before the first answer is there, so a question in the same breath takes another watch. On a store that nobody
    // writes to there is time to ask.
    let is_due = entering == Entering::LateNowAndThen;
    let prompt = match waits.filter(|_| is_due) {
        None => Promptness::not_asked(),
        Some(seen) if first.revision > seen => {
            Promptness::late(first.watcher, first.revision, trip)
        }
        Some(_) => {
            stream.request_progress().await?;
            Promptness::asked(first.watcher, first.revision, trip)
        }
    };
    Ok(Opened {
        stream,
        prompt,
        since: first.since,
        in_order: false,
    })
}

/// Opens a watch of our own key, and one of a range behind it on the same stream.
async fn open_both(
    watches: WatchClient,
    key: Vec<u8>,
    options: WatchOptions,
    own: Vec<u8>,
    entering: Pin<&mut impl Future<Output = Entering>>,
    asking: &Asking,
) -> Result<Opened, EtcdError> {
    let first = first(watches, own, self::options(false));
    let ((mut stream, first, trip), entering) = first_beside(first, entering).await?;
    let is_due = entering == Entering::LateNowAndThen;
    stream.watch(key, Some(options)).await?;
    if is_due {
        stream.request_progress().await?;
    }
    let second = in_place(&mut stream).await?;
    let mut prompt = if is_due {
        Promptness::asked(second.watcher, second.revision, trip)
    } else {
        Promptness::not_asked()
    };
    if let Some(progress) = second.progress {
        prompt.progress(progress, asking);
    }
    Ok(Opened {
        stream,
        prompt,
        since: second.since.max(first.since),
        // The watch of our own key is not late: such a server never is, and on another nothing was written between the two.
        in_order: entering == Entering::AtOnce || first.revision == second.revision,
    })
}

/// A stream, its first watch, and how long that took.
type First = (WatchStream, InPlace, Duration);

/// What is asked at the same time. A server that has entered the watch is not waited for much longer: the watch does without its version.
async fn first_beside(
    first: impl Future<Output = Result<First, EtcdError>>,
    entering: Pin<&mut impl Future<Output = Entering>>,
) -> Result<(First, Entering), EtcdError> {
    match select(pin!(first), entering).await {
        Either::Left((first, entering)) => {
            let first = first?;
            let told = timeout(time_to_answer(first.2), entering).await;
            Ok((first, told.unwrap_or(Entering::NotKnown)))
        }
        Either::Right((entering, first)) => Ok((first.await?, entering)),
    }
}

/// Opens a stream with its first watch.
async fn first(
    mut watches: WatchClient,
    key: Vec<u8>,
    options: WatchOptions,
) -> Result<First, EtcdError> {
    let start = Instant::now();
    let mut stream = watches.watch(key, Some(options)).await?;
    let first = in_place(&mut stream).await?;
    Ok((stream, first, start.elapsed()))
}

fn options(puts: bool) -> WatchOptions {
    if puts {
        return WatchOptions::new();
    }
    WatchOptions::new().with_filters([WatchFilterType::NoPut])
}

/// A watcher that the server has entered.
struct InPlace {
    watcher: i64,
    /// The server's revision as it entered it.
    revision: i64,
    /// The next watch on the stream tells everything after this. Events that came before its answer are not told again: they count as what
    /// happened before.
    since: i64,
    /// A progress that came before.
    progress: Option<i64>,
}

async fn in_place(stream: &mut WatchStream) -> Result<InPlace, EtcdError> {
    let (mut since, mut progress) = (0, None);
    loop {
        let told = stream.message().await?;
        let Some(told) = told.filter(|told| !told.canceled()) else {
            return Err(EtcdError::WatchError("the server refused it".to_owned()));
        };
        let revision = told.header().map_or(0, ResponseHeader::revision);
        if told.created() {
            return Ok(InPlace {
                watcher: told.watch_id(),
                revision,
                since: revision.max(since),
                progress,
            });
        }
        if told.events().is_empty() {
            progress = Some(revision);
        }
        let events = told.events().iter().filter_map(|event| event.kv());
        since = events.map(|kv| kv.mod_revision()).fold(since, i64::max);
    }
}

impl KeyWatch {
    /// Resolves with an event. A watch that ended, for whatever reason, is an error: open another.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has lost no event.
    pub(crate) async fn event(&mut self) -> Result<Seen, Trouble> {
        loop {
            self.replace_if_late().await?;
            let message = match self.prompt.patience() {
                None => self.stream.message().await,
                Some(patience) => tokio::select! {
                    biased;
                    message = self.stream.message() => message,
                    () = sleep_until(patience) => {
                        self.prompt.was_silent();
                        if self.prompt.asked_in_vain() {
                            self.asking.was_silent();
                        }
                        continue;
                    }
                },
            };
            let Some(message) = message? else {
                return Err(EtcdError::WatchError("the stream ended".to_owned()).into());
            };
            if message.canceled() {
                if !message.created() && self.prompt.is_replaced(message.watch_id()) {
                    continue;
                }
                let why = message.cancel_reason().to_owned();
                return Err(EtcdError::WatchError(format!("the server ended it: {why}")).into());
            }
            let revision = message.header().map_or(0, ResponseHeader::revision);
            if message.created() {
                self.prompt.created(message.watch_id(), revision);
                if self.news.is_unseen(revision) {
                    return Ok(Seen::anew(revision));
                }
                continue;
            }
            if message.events().is_empty() {
                self.prompt.progress(revision, &self.asking);
            }
            let events = message.events().iter().filter_map(|event| event.kv());
            let events = events.map(|kv| (kv.key(), kv.mod_revision()));
            if let Some(seen) = self.news.first(events) {
                return Ok(seen);
            }
        }
    }

    /// Puts another watch in the place of one that may be late, and asks for its progress in the same breath. The old one is there until the new one is.
    async fn replace_if_late(&mut self) -> Result<(), Trouble> {
        if self.asking.is_silent() {
            return Ok(());
        }
        let Some(late) = self.prompt.take_late() else {
            return Ok(());
        };
        // None of these waits: the queue to the server has room for many more. Without a pause for other tasks either, at which this could be dropped
        // with the late watch counted as replaced and no other sent.
        let key = self.key.clone();
        let sends = async {
            self.stream.watch(key, Some(self.options.clone())).await?;
            self.stream.cancel(late).await?;
            self.stream.request_progress().await
        };
        Ok(unconstrained(sends).await?)
    }

    /// From now on only what happened after this revision is news.
    pub(crate) fn knows(&mut self, seen: i64) {
        self.news.knows(seen);
    }

    /// A look has told what happened up to this revision.
    pub(crate) fn looked_at(&mut self, revision: i64) {
        self.news.looked_at(revision);
    }
}
