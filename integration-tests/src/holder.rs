use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::error::Doing;
use crate::{Error, Result};

/// A process of its own that asks for a lock and keeps it: the program `hold-lock`.
///
/// It ends when the value is dropped, and when the test process dies.
#[derive(Debug)]
pub struct Holder {
    child: Child,
    commands: ChildStdin,
    events: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    /// Starts the process, which asks for the lock at once. `program` is `env!("CARGO_BIN_EXE_hold-lock")`, `mode` is
    /// `exclusive`, `shared` or a number of permits.
    ///
    /// # Errors
    /// When the program cannot be started or does not get as far as asking.
    pub async fn start(
        program: impl AsRef<Path>,
        url: &str,
        name: &str,
        mode: &str,
        lease: Option<Duration>,
    ) -> Result<Self> {
        Self::start_in(&[], program, url, name, mode, lease).await
    }

    /// The same with further variables in its environment.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_in(
        env: &[(&str, &Path)],
        program: impl AsRef<Path>,
        url: &str,
        name: &str,
        mode: &str,
        lease: Option<Duration>,
    ) -> Result<Self> {
        let mut command = Command::new(program.as_ref());
        command.envs(env.iter().copied());
        command.args([url, name, mode]);
        command.args(lease.map(|lease| format!("{}ms", lease.as_millis())));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .doing("starting hold-lock")?;
        let commands = child.stdin.take().expect("its input is piped");
        let events = child.stdout.take().expect("its output is piped");
        let mut holder = Self {
            child,
            commands,
            events: BufReader::new(events).lines(),
        };
        holder.expect("asking").await?;
        Ok(holder)
    }

    /// Waits until it holds the lock, and gives its token.
    ///
    /// # Errors
    /// When something else happens first.
    pub async fn held(&mut self) -> Result<u64> {
        let token = self.expect("held ").await?;
        token
            .parse()
            .map_err(|_| Error::answer("the token of hold-lock", token.clone()))
    }

    /// The next thing that happens, as the program writes it.
    ///
    /// # Errors
    /// When the process has ended.
    pub async fn event(&mut self) -> Result<String> {
        let line = self.events.next_line().await;
        line.doing("reading from hold-lock")?.ok_or_else(ended)
    }

    /// Whether it believes that it holds the lock.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn is_held(&mut self) -> Result<bool> {
        self.tell("check").await?;
        Ok(self.expect("is_held ").await? == "true")
    }

    /// Makes it give the lock back, and tells what it found.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn release(&mut self) -> Result<String> {
        self.tell("release").await?;
        self.expect("released ").await
    }

    /// Ends it with SIGKILL, and waits until it is gone.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub async fn kill(&mut self) -> Result<()> {
        self.child.kill().await.doing("killing hold-lock")
    }

    /// Stops it with SIGSTOP: it keeps its connections and does nothing.
    ///
    /// # Errors
    /// When it has ended.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it has ended.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok());
        let pid = pid.and_then(Pid::from_raw).ok_or_else(ended)?;
        kill_process(pid, signal).doing("sending a signal to hold-lock")
    }

    async fn tell(&mut self, command: &str) -> Result<()> {
        let line = format!("{command}\n");
        let told = self.commands.write_all(line.as_bytes()).await;
        told.doing("writing to hold-lock")
    }

    /// The rest of the next line, which must begin like this.
    async fn expect(&mut self, start: &str) -> Result<String> {
        let event = self.event().await?;
        match event.strip_prefix(start) {
            Some(rest) => Ok(rest.to_owned()),
            None => Err(Error::answer(format!("hold-lock, {start:?}"), event)),
        }
    }
}

fn ended() -> Error {
    Error::answer("hold-lock", "it has ended")
}
