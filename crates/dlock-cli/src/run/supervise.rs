//! Watches the command, the lock and the signals at once, until the whole group is gone.

use std::time::Duration;

use dlocks::{Guard, LossReason};
use rustix::process::{Signal, kill_current_process_group};
use tokio::time::Instant;

use crate::exit::{End, say};
use crate::run::group::{Group, Left, News};
use crate::run::on_lost::OnLost;
use crate::run::signals::{Event, Signals};
use crate::run::terminal::{Terminal, has_job_control};

/// How often to look for a group whose members are not our children.
const LOOK: Duration = Duration::from_millis(50);
/// A suspended machine moves the lock's end without moving our timers: look at least this often.
const LONGEST_NAP: Duration = Duration::from_secs(1);
/// SIGKILL works at once, but the kernel needs a moment to end a large process.
const MARGIN: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) on_lost: OnLost,
    /// Between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
    /// How long before the lock's end the command is told.
    pub(crate) before_end: Duration,
}

#[derive(Debug)]
pub(crate) struct Ended {
    /// How the command ended.
    pub(crate) end: End,
    /// Why the lock was lost, if it was.
    pub(crate) lost: Option<String>,
    /// The signals that we were sent ourselves, and passed on.
    pub(crate) passed_on: Vec<Signal>,
}

/// What we have done to end the command. It only moves down this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing.
    Running,
    /// The lock is about to end or has ended, and `--on-lost` left the command running.
    Told,
    /// SIGTERM was sent, unless there was no time for it; SIGKILL is due then, and again and again until nobody is left.
    Stopping { kill_at: Instant },
}

struct Watch<'a> {
    group: &'a Group,
    guard: &'a Guard,
    limits: &'a Limits,
    terminal: Option<&'a Terminal>,
    environment: &'a [(&'a str, String)],
    stage: Stage,
    /// How the command itself ended; what it started may go on.
    end: Option<End>,
    lost: Option<String>,
    passed_on: Vec<Signal>,
    /// It was said that we may not signal what is left.
    out_of_reach: bool,
}

pub(crate) async fn supervise(
    group: &Group,
    guard: &Guard,
    limits: &Limits,
    signals: &mut Signals,
    terminal: Option<&Terminal>,
    environment: &[(&str, String)],
) -> Ended {
    let mut watch = Watch {
        group,
        guard,
        limits,
        terminal,
        environment,
        stage: Stage::Running,
        end: None,
        lost: None,
        passed_on: Vec::new(),
        out_of_reach: false,
    };
    let loss = guard.loss_signal();
    loop {
        watch.take_news();
        watch.mind_the_lock();
        watch.mind_the_killing();
        if let Some(end) = watch.end {
            match group.left() {
                Left::Nobody => {
                    let Watch {
                        lost, passed_on, ..
                    } = watch;
                    return Ended {
                        end,
                        lost,
                        passed_on,
                    };
                }
                Left::OutOfReach => watch.say_out_of_reach(),
                Left::Somebody => {}
            }
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
        let kill = match self.stage {
            Stage::Stopping { kill_at } => Some(kill_at.saturating_duration_since(Instant::now())),
            Stage::Running | Stage::Told => None,
        };
        let look = (self.end.is_some() || kill.is_some()).then_some(LOOK);
        let end = self.guard.remaining().map(|left| {
            let left = left.saturating_sub(self.limits.before_end);
            left.clamp(Duration::from_millis(1), LONGEST_NAP)
        });
        let end = end.filter(|_| self.stage == Stage::Running && self.lost.is_none());
        [kill, look, end].into_iter().flatten().min()
    }

    fn take_news(&mut self) {
        while let Some(news) = self.group.news() {
            match news {
                News::Ended(end) => {
                    self.end = Some(end);
                    if self.group.left() != Left::Nobody {
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
        let kill_at = match self.stage {
            Stage::Stopping { kill_at } => kill_at.min(at),
            Stage::Running | Stage::Told => {
                if !grace.is_zero() {
                    self.send(Signal::TERM);
                    // A stopped process gets its signals when it goes on.
                    self.send(Signal::CONT);
                }
                at
            }
        };
        self.stage = Stage::Stopping { kill_at };
    }

    fn mind_the_killing(&mut self) {
        if let Stage::Stopping { kill_at } = self.stage
            && kill_at <= Instant::now()
        {
            self.send(Signal::KILL);
            // Again, in case somebody was being forked just then.
            let kill_at = Instant::now() + LOOK;
            self.stage = Stage::Stopping { kill_at };
        }
    }

    /// A signal of our own making.
    fn send(&mut self, signal: Signal) {
        if !self.group.send(signal) {
            self.say_out_of_reach();
        }
    }

    fn say_out_of_reach(&mut self) {
        if std::mem::replace(&mut self.out_of_reach, true) {
            return;
        }
        let group = self.group.id().as_raw_nonzero();
        let what = if self.lost.is_some() {
            "it goes on though the lock is lost"
        } else {
            "the lock is kept until it has ended"
        };
        say(format_args!(
            "what is left of the command (process group {group}) runs as another user and cannot be ended by dlock: {what}"
        ));
    }

    /// The lock is about to end, and nothing has renewed it.
    fn mind_the_lock(&mut self) {
        let Some(left) = self.guard.remaining() else {
            return;
        };
        if self.stage != Stage::Running || self.lost.is_some() || left > self.limits.before_end {
            return;
        }
        if self.limits.on_lost.stops() && self.end.is_none() {
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
        if self.stage == Stage::Told || self.end.is_some() {
            return;
        }
        let grace = grace.min(self.limits.grace);
        match &self.limits.on_lost {
            OnLost::Kill => self.stop(grace),
            OnLost::Exec(line) => {
                if self.stage == Stage::Running {
                    let group = self.group.id().as_raw_nonzero().get();
                    OnLost::start(line, self.environment, group);
                }
                self.stop(grace);
            }
            OnLost::Signal(signal) => {
                self.stage = Stage::Told;
                self.send(*signal);
            }
            OnLost::Ignore => self.stage = Stage::Told,
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        if signal == Signal::CONT {
            self.go_on();
            return;
        }
        self.passed_on.push(signal);
        if !self.group.send(signal) {
            say(format_args!(
                "signal {} cannot be passed on: the command runs as another user",
                signal.as_raw()
            ));
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
