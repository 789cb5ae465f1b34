//! The command line: what `--help` teaches.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::bench::BenchArgs;
use crate::connect::Store;
use crate::demo::DemoArgs;
use crate::demo::worker::WorkerArgs;
use crate::run::heartbeat::Heartbeat;
use crate::run::on_lost::OnLost;
use crate::run::shim::ExecArgs;
use crate::top::TopArgs;

const EXAMPLES: &str = "\
Examples:
  See why locks matter, in a few seconds and without a server:
      dlock demo
  Never two backups of this user at once on this host:
      dlock run backup -- /usr/local/bin/backup --all
  The same for all hosts, and give up when another one is at it:
      dlock run --no-wait --backend redis://cache:6379 backup -- backup --all
  And survive the loss of a server:
      dlock run --backend etcd://etcd-1,etcd-2,etcd-3 backup -- backup --all
  At most three encoders at a time:
      dlock run --permits 3 encode -- ffmpeg -i in.mov out.mp4
  Who holds what?
      dlock ls
  Is my store fit for locks?
      dlock doctor --backend zk://zk-1,zk-2,zk-3
  What do locks cost there?
      dlock bench --backend redis://cache:6379

A URL with a password is safer in $DLOCK_URL or in a file (--backend-file).

Exit codes:
  64 usage   69 store unreachable   75 not acquired in time   80 lock lost
  126 command cannot be executed   127 command not found   128+N ended by signal N";

/// Distributed locks from the command line.
#[derive(Debug, Parser)]
#[command(name = "dlock", version, about = "Distributed locks from the command line", after_help = EXAMPLES, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) store: Store,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold a lock while a command runs
    Run(Box<RunArgs>),
    /// List the locks that are held
    Ls {
        /// Only names that start with this
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// Show who holds a lock and who waits for it
    Inspect {
        /// The lock
        name: String,
    },
    /// Free a lock by force, whoever holds it
    #[command(
        after_help = "The holder may be at work until it notices: only the fencing token protects the resource from it.\n\
        A file lock cannot be broken; end the process that holds it."
    )]
    Break {
        /// The lock
        name: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Watch holders and waiters live
    Top(TopArgs),
    /// Check whether the store is fit for locks
    #[command(after_help = "Exits with 1 when something makes locks unsafe there.")]
    Doctor,
    /// Sell more than there is, then see a lock prevent it
    Demo(DemoArgs),
    /// Measure what locks cost with this store
    Bench(Box<BenchArgs>),
    /// Print shell completions
    #[command(
        after_help = "Example:\n  dlock completions bash > ~/.local/share/bash-completion/completions/dlock"
    )]
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(
        after_help = "Example:\n  dlock man | man -l -\n  dlock man --folder ~/.local/share/man/man1"
    )]
    Man {
        /// Write the pages of all commands into a folder instead
        #[arg(long, value_name = "PATH")]
        folder: Option<PathBuf>,
    },
    #[command(name = "__exec", hide = true)]
    Exec(ExecArgs),
    #[command(name = "__keep", hide = true)]
    Keep,
    #[command(name = "__end", hide = true)]
    End { signal: i32 },
    #[command(name = "__demo-worker", hide = true)]
    DemoWorker(WorkerArgs),
    #[command(name = "__bench-worker", hide = true)]
    BenchWorker,
}

const RUN_HELP: &str = "\
The command runs without a shell in between, in a process group of its own, with the terminal as its own; signals sent to dlock \
are passed on to the group. The lock is given back when the whole group is gone: what the command leaves behind when it ends is \
sent SIGTERM, and SIGKILL after the grace time. If dlock itself is killed, so is the group; a process that has left it (setsid) or \
runs as another user (sudo) is not. A command that a signal ended ends dlock by the same signal.

The command finds DLOCK_NAME, DLOCK_TOKEN (the fencing token), DLOCK_OWNER and DLOCK_BACKEND in its environment.

If the lock is about to be lost, the command is stopped in time (see --on-lost), and the exit code is 80, never 0.

Examples:
  dlock run backup -- backup --all              wait as long as it takes
  dlock run --no-wait backup -- backup --all    exit with 75 if somebody is at it
  dlock run --wait 30s --max-hold 1h report -- make report
  dlock run --skip-ok --at-least 1m nightly -c './report | mail -s report ops'
  dlock run --shared catalog ./read-catalog     together with other readers";

#[derive(Debug, Args)]
#[command(after_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// The lock: any text of 1 to 255 bytes
    pub(crate) name: String,

    /// The command and its arguments; after -- if it starts with a dash
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "line",
        value_name = "COMMAND"
    )]
    pub(crate) command: Vec<OsString>,

    /// Run this line in a shell (sh -c) instead of a command
    #[arg(
        short = 'c',
        long = "line",
        value_name = "LINE",
        conflicts_with = "command"
    )]
    pub(crate) line: Option<OsString>,

    /// Wait at most this long, then exit with 75 [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: exit with 75 if the lock is held
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Exit with 0 and without a word if the lock is held; does not wait, unless --wait says how long
    #[arg(long, conflicts_with = "conflict_exit_code")]
    pub(crate) skip_ok: bool,

    /// Hold the lock at least this long, also when the command is done earlier: against clocks that differ
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) at_least: Option<Duration>,

    /// How long the store keeps the lock when dlock falls silent; it is renewed while dlock lives [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) ttl: Option<Duration>,

    /// Stop the command and give up the lock after this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) max_hold: Option<Duration>,

    /// Hold together with others that use --shared, but with nobody else
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,

    /// Be one of at most N holders; everybody must give the same N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,

    /// What to do when the lock is about to be lost: kill, signal:NAME, ignore, or exec:LINE, which runs a shell line and then does as kill
    #[arg(long, value_name = "ACTION", default_value = "kill")]
    pub(crate) on_lost: OnLost,

    /// Time between SIGTERM and SIGKILL, and before the loss of the lock [default: 5s, less for a short --ttl]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) grace: Option<Duration>,

    /// Exit with N instead of 75 when the lock was not acquired in time
    #[arg(long, value_name = "N")]
    pub(crate) conflict_exit_code: Option<u8>,

    /// Tell a watchman of start, success and failure: http://host/path is asked for with /start, nothing or /fail behind it; a file gets a line
    #[arg(long, value_name = "URL|FILE")]
    pub(crate) heartbeat: Option<Heartbeat>,

    /// Write the last run into a file for Prometheus' node exporter
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics: Option<PathBuf>,
}

impl RunArgs {
    /// What to execute.
    pub(crate) fn words(&self) -> Vec<OsString> {
        match &self.line {
            Some(line) => vec!["sh".into(), "-c".into(), line.clone()],
            None => self.command.clone(),
        }
    }

    /// Whether nobody waits for the lock.
    pub(crate) fn tries(&self) -> bool {
        self.no_wait || (self.skip_ok && self.wait.is_none())
    }
}

pub(crate) fn time(text: &str) -> Result<Duration, String> {
    dlocks::backend::parse_duration(text).map_err(|error| error.message().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
