//! The thread in which everything asynchronous of one client happens.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::mpsc::sync_channel;
use std::task::{Context, Waker};
use std::thread;

use dlock_core::{Error, ErrorKind, HeldNow, Locks, Result};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The way to the thread of a client. Whoever holds a clone keeps the thread alive; when the last one is gone, the thread gives back
/// what is left, closes the client and ends.
#[derive(Clone)]
pub(super) struct Room {
    jobs: UnboundedSender<Job>,
}

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Room {
    /// Starts a thread with a runtime, and makes the client in it, since connections belong to the runtime that made them.
    pub(super) fn open(
        connect: impl Future<Output = Result<Locks>> + Send + 'static,
    ) -> Result<(Self, Locks)> {
        refuse_to_block_a_runtime()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(no_thread)?;
        let (jobs, inbox) = unbounded_channel();
        let (tell, told) = sync_channel(1);
        let work = move || {
            runtime.block_on(async {
                let made = connect.await;
                let client = made.as_ref().ok().cloned();
                // Nobody listens only if the caller's thread is gone with all that it had.
                let _ = tell.send(made);
                if let Some(client) = client {
                    serve(inbox).await;
                    // An error says that the store did not confirm in time: what is left ends with its lease, as for any program that ends.
                    let _ = client.close().await;
                }
            });
            // Without waiting for a system call that hangs in the runtime's pool.
            runtime.shutdown_background();
        };
        thread::Builder::new()
            .name("dlock-blocking".to_owned())
            .spawn(work)
            .map_err(no_thread)?;
        let locks = told.recv().map_err(|_| thread_gone())??;
        Ok((Self { jobs }, locks))
    }

    /// Has `work` done in the thread, and blocks the caller's thread until it is.
    pub(super) fn call<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        refuse_to_block_a_runtime()?;
        let (tell, told) = sync_channel(1);
        let job: Job = Box::pin(async move {
            let _ = tell.send(work.await);
        });
        self.jobs.send(job).map_err(|_| thread_gone())?;
        told.recv().map_err(|_| thread_gone())?
    }
}

async fn serve(mut inbox: UnboundedReceiver<Job>) {
    while let Some(job) = inbox.recv().await {
        tokio::spawn(job);
    }
}

/// A thread that drives tasks must not be blocked: the task that holds the lock may be one of them.
fn refuse_to_block_a_runtime() -> Result<()> {
    if Handle::try_current().is_ok() && drives_tasks() {
        return Err(Error::invalid(
            "dlocks::blocking was called in an async task, whose thread it would block: use the async API there, or move the call \
             into tokio::task::spawn_blocking",
        ));
    }
    Ok(())
}

/// Whether this thread runs a task of a runtime right now. A handle to a runtime does not tell: the threads of `spawn_blocking` have one
/// too, and may be blocked. But only tasks have a budget of steps, after which tokio makes them pause. What is spent of it here costs the
/// task nothing but a pause, and it is about to get an error.
fn drives_tasks() -> bool {
    /// More than tokio gives a task (128).
    const STEPS: usize = 1024;
    let mut context = Context::from_waker(Waker::noop());
    (0..STEPS).any(|_| {
        pin!(tokio::task::coop::consume_budget())
            .poll(&mut context)
            .is_pending()
    })
}

fn no_thread(error: std::io::Error) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("the thread of this client could not be started: {error}; look at the limits for threads and files"),
    )
    .with_source(error)
}

fn thread_gone() -> Error {
    Error::new(
        ErrorKind::Closed,
        "the thread of this client has ended: connect again",
    )
    .with_held(HeldNow::Unknown)
}
