//! Watches the command, the lock and the signals at once, until the whole group is gone.

use std::time::Duration;

use dlock::{Guard, LossReason};
use rustix::process::{Signal, kill_current_process_group};
use tokio::time::Instant;

use crate::run::group::{Group, News};
use crate::run::on_lost::OnLost;
use crate::run::signals::{Event, Signals};
use crate::run::terminal::{Terminal, has_job_control};

/// How often to look for a group whose members are not our children.
const LOOK: Duration = Duration::from_millis(50);
/// A suspended machine moves the lock's end without moving our timers: look at least this often.
const LONGEST_NAP: Duration = Duration::from_secs(1);
/// SIGKILL works at once, but the kernel needs a moment to end a large process.
const MARGIN: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) on_lost: OnLost,
    /// Between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
    /// How long before the lock's end the command is told.
    pub(crate) before_end: Duration,
}

#[derive(Debug)]
pub(crate) enum Ended {
    Normally { code: u8 },
    Lost { why: String },
}

struct Watch<'a> {
    group: &'a Group,
    guard: &'a Guard,
    limits: Limits,
    terminal: Option<&'a Terminal>,
    /// The command's exit code, once it has ended.
    code: Option<u8>,
    /// When SIGKILL is due.
    kill_at: Option<Instant>,
    /// `--on-lost` has been done.
    told: bool,
    lost: Option<String>,
}

pub(crate) async fn supervise(
    group: &Group,
    guard: &Guard,
    limits: Limits,
    signals: &mut Signals,
    terminal: Option<&Terminal>,
) -> Ended {
    let mut watch = Watch {
        group,
        guard,
        limits,
        terminal,
        code: None,
        kill_at: None,
        told: false,
        lost: None,
    };
    let loss = guard.loss_signal();
    loop {
        watch.take_news();
        watch.mind_the_lock();
        watch.mind_the_killing();
        if let Some(code) = watch.code
            && group.is_gone()
        {
            return match watch.lost {
                Some(why) => Ended::Lost { why },
                None => Ended::Normally { code },
            };
        }
        let nap = watch.nap();
        tokio::select! {
            event = signals.next() => match event {
                Event::Signal(signal) => watch.pass_on(signal),
                // Taken at the top of the loop.
                Event::Child => {}
            },
            reason = loss.reason(), if watch.lost.is_none() => watch.lose(reason),
            () = sleep(nap) => {}
        }
    }
}

async fn sleep(nap: Option<Duration>) {
    match nap {
        Some(nap) => tokio::time::sleep(nap).await,
        None => std::future::pending().await,
    }
}

impl Watch<'_> {
    /// How long nothing has to be done, if nothing happens.
    fn nap(&self) -> Option<Duration> {
        let kill = self
            .kill_at
            .map(|at| at.saturating_duration_since(Instant::now()));
        let look = (self.code.is_some() || self.kill_at.is_some()).then_some(LOOK);
        let end = self.guard.remaining().map(|left| {
            let left = left.saturating_sub(self.limits.before_end);
            left.clamp(Duration::from_millis(1), LONGEST_NAP)
        });
        let end = end.filter(|_| !self.told && self.lost.is_none());
        [kill, look, end].into_iter().flatten().min()
    }

    fn take_news(&mut self) {
        while let Some(news) = self.group.news() {
            match news {
                News::Ended(code) => {
                    self.code = Some(code);
                    if !self.group.is_gone() {
                        // What is left would go on without the lock.
                        self.stop(self.limits.grace);
                    }
                }
                News::Stopped(signal) => self.stopped(signal),
                News::Other => {}
            }
        }
    }

    /// SIGTERM now, SIGKILL after `grace`, but before the lock can pass to another.
    fn stop(&mut self, grace: Duration) {
        let left = self
            .guard
            .remaining()
            .map(|left| left.saturating_sub(MARGIN));
        let grace = match left {
            Some(left) if self.lost.is_none() => grace.min(left),
            _ => grace,
        };
        let at = Instant::now() + grace;
        if self.kill_at.is_none() && !grace.is_zero() {
            self.group.send(Signal::TERM);
            // A stopped process gets its signals when it goes on.
            self.group.send(Signal::CONT);
        }
        self.kill_at = Some(self.kill_at.map_or(at, |before| before.min(at)));
    }

    fn mind_the_killing(&mut self) {
        if self.kill_at.is_some_and(|at| at <= Instant::now()) {
            self.group.send(Signal::KILL);
            // Again, in case somebody was being forked just then.
            self.kill_at = Some(Instant::now() + LOOK);
        }
    }

    /// The lock is about to end, and nothing has renewed it.
    fn mind_the_lock(&mut self) {
        let Some(left) = self.guard.remaining() else {
            return;
        };
        if self.told || self.lost.is_some() || left > self.limits.before_end {
            return;
        }
        if self.limits.on_lost == OnLost::Kill && self.code.is_none() {
            self.lost = Some("its time was running out, so the command was stopped".to_owned());
        }
        self.tell(left);
    }

    fn lose(&mut self, reason: LossReason) {
        self.lost = Some(reason.to_string());
        let grace = match reason {
            // It is another's already. The damage is done; the command still gets its grace to end in order.
            LossReason::Gone => self.limits.grace,
            // Its time passed while we were stopped or the machine slept: every moment counts.
            _ => Duration::ZERO,
        };
        self.tell(grace);
    }

    fn tell(&mut self, grace: Duration) {
        if self.told || self.code.is_some() {
            return;
        }
        self.told = true;
        match self.limits.on_lost {
            OnLost::Kill => self.stop(grace.min(self.limits.grace)),
            OnLost::Signal(signal) => self.group.send(signal),
            OnLost::Ignore => {}
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        if signal == Signal::CONT {
            self.go_on();
        } else {
            self.group.send(signal);
        }
    }

    /// The shell has continued us, perhaps in the foreground now.
    fn go_on(&mut self) {
        if let Some(terminal) = self.terminal {
            terminal.give(self.group.id());
        }
        if self.guard.is_held() {
            self.group.send(Signal::CONT);
        }
        // Else the loop finds the loss first, and the command never runs without the lock.
    }

    /// The command was stopped at the terminal: so are we, for the shell to see.
    fn stopped(&mut self, signal: i32) {
        let Some(terminal) = self.terminal else {
            return;
        };
        if has_job_control() {
            terminal.take_back(self.group.id());
            // With everything else of our job: a pipe's other end, a script around us.
            let _ = kill_current_process_group(Signal::STOP);
        } else if signal == Signal::TSTP.as_raw() {
            // Nobody could continue us. Alone, the kernel would not have stopped the command at all.
            self.group.send(Signal::CONT);
        }
    }
}
