//! Futures seen from outside: how often they are polled, and what happens when they are dropped in between.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// How a future ended that was polled a given number of times.
#[derive(Debug)]
pub(crate) enum Ended<T> {
    /// It completed.
    Done(T),
    /// It was dropped after its polls.
    Dropped,
    /// It was dropped because nothing had woken it for a while: it waits for others.
    Idle,
}

/// Polls `future` when it is woken, `times` times at most, and drops it then.
pub(crate) async fn polled<F: Future>(future: F, times: usize, idle: Duration) -> Ended<F::Output> {
    let mut future = Box::pin(future);
    let mut left = times;
    let run = poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(Ended::Dropped);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Ended::Done(value)),
            Poll::Pending if left == 0 => Poll::Ready(Ended::Dropped),
            Poll::Pending => Poll::Pending,
        }
    });
    tokio::time::timeout(idle, run).await.unwrap_or(Ended::Idle)
}

/// Counts the polls of a future.
pub(crate) struct Counted<F> {
    future: Pin<Box<F>>,
    polls: Arc<AtomicUsize>,
}

impl<F: Future> Counted<F> {
    pub(crate) fn new(future: F) -> (Self, Arc<AtomicUsize>) {
        let polls = Arc::<AtomicUsize>::default();
        let counted = Self {
            future: Box::pin(future),
            polls: polls.clone(),
        };
        (counted, polls)
    }
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.future.as_mut().poll(context)
    }
}
