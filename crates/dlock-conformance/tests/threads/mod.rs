//! Many cases at once.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs jobs on several threads at once: most of them wait most of the time.
pub(crate) fn at_once<J: Sync, T: Send>(jobs: &[J], work: impl Fn(&J) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let mut done: Vec<(usize, T)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..24)
            .map(|_| {
                scope.spawn(|| {
                    let mut mine = Vec::new();
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(job) = jobs.get(index) else {
                            return mine;
                        };
                        mine.push((index, work(job)));
                    }
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.flatten().collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}
