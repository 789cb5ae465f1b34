//! Tasks that ask the store without standing in the local line: in strict order, or as a reader that waited in vain for another
//! one's answer. They are counted, so that no hold rests at the client while one of its own tasks waits for it at the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::{Company, Hold, Queue};
use crate::Name;
use crate::sync::locked;

#[derive(Debug, Default)]
pub(super) struct PastTheLines {
    tasks: Mutex<HashMap<Name, Tasks>>,
    /// Told when one comes that waits.
    came: Notify,
}

#[derive(Debug, Default)]
struct Tasks {
    all: usize,
    /// Those that wait, by whether they want the lock alone. The others only try.
    wait_alone: usize,
    wait_together: usize,
}

impl Tasks {
    fn waiting(&mut self, company: Company) -> &mut usize {
        match company {
            Company::Alone => &mut self.wait_alone,
            Company::Together => &mut self.wait_together,
        }
    }
}

impl PastTheLines {
    /// Whether any task asks for the name in this way.
    pub(super) fn has_any(&self, name: &Name) -> bool {
        locked(&self.tasks).contains_key(name)
    }

    /// Whether one of them waits for a hold. Those who can hold it together do not wait for each other.
    pub(super) fn waits(&self, name: &Name, held: Company) -> bool {
        let tasks = locked(&self.tasks);
        tasks.get(name).is_some_and(|tasks| match held {
            Company::Alone => tasks.wait_alone + tasks.wait_together > 0,
            Company::Together => tasks.wait_alone > 0,
        })
    }
}

impl<H: Hold> Queue<H> {
    /// A task asks the store past the line from now on, until what is returned is dropped; `waits` unless it only tries.
    pub(crate) fn past_the_line(
        self: &Arc<Self>,
        name: &Name,
        company: Company,
        waits: bool,
    ) -> PastTheLine<H> {
        {
            let mut names = locked(&self.past.tasks);
            let tasks = names.entry(name.clone()).or_default();
            tasks.all += 1;
            *tasks.waiting(company) += usize::from(waits);
        }
        if waits {
            self.past.came.notify_waiters();
        }
        PastTheLine {
            queue: self.clone(),
            name: name.clone(),
            company,
            waits,
        }
    }

    /// Resolves when a task comes that waits at the store past the line of some name, from the moment of this call on.
    pub(crate) fn one_comes_past_the_line(&self) -> Notified<'_> {
        self.past.came.notified()
    }
}

/// A task that asks the store past the line: a hold does not rest while it does.
#[derive(Debug)]
pub(crate) struct PastTheLine<H: Hold> {
    queue: Arc<Queue<H>>,
    name: Name,
    company: Company,
    waits: bool,
}

impl<H: Hold> Drop for PastTheLine<H> {
    fn drop(&mut self) {
        let mut names = locked(&self.queue.past.tasks);
        if let Some(tasks) = names.get_mut(&self.name) {
            tasks.all -= 1;
            *tasks.waiting(self.company) -= usize::from(self.waits);
            if tasks.all == 0 {
                names.remove(&self.name);
            }
        }
    }
}
