//! The `dlock` command.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command prints its results and its errors"
)]

mod bench;
mod break_lock;
mod cli;
mod connect;
mod demo;
mod doctor;
mod exit;
mod inspect;
mod ls;
mod man;
mod run;
mod show;
mod top;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::exit::{End, Failure};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::of_parsing(&error),
    };
    match start(cli) {
        Ok(End::Code(code)) => ExitCode::from(code),
        Ok(End::Signal(number)) => ExitCode::from(exit::by_the_signal(number)),
        Err(failure) => {
            exit::say(&failure.message);
            ExitCode::from(failure.code)
        }
    }
}

fn start(cli: Cli) -> Result<End, Failure> {
    let store = &cli.store;
    let prints_no_json = matches!(
        cli.command,
        Command::Run(_) | Command::Completions { .. } | Command::Man { .. }
    );
    if store.json && prints_no_json {
        return Err(Failure::usage(
            "--json has no meaning here: this command prints no result of its own",
        ));
    }
    let code = match cli.command {
        Command::Run(args) => {
            let children_blocked = run::hear_of_children();
            return in_runtime(run::run(store, *args, children_blocked));
        }
        // Before any runtime: what follows replaces this process.
        Command::Exec(args) => Ok(run::shim::become_command(&args)),
        Command::Keep => Ok(run::keeper::keep()),
        Command::Completions { shell } => man::completions(shell),
        Command::Man { folder } => man::pages(folder.as_deref()),
        Command::End { signal } => Ok(exit::end_by(signal)),
        Command::Ls { prefix } => in_runtime(ls::run(store, &prefix)),
        Command::Inspect { name } => in_runtime(inspect::run(store, &name)),
        Command::Break { name, yes } => in_runtime(break_lock::run(store, &name, yes)),
        Command::Top(args) => in_runtime(top::run(store, &args)),
        Command::Doctor => in_runtime(doctor::run(store)),
        Command::Demo(args) => in_runtime(demo::run(store, &args)),
        Command::DemoWorker(args) => in_runtime(demo::worker::run(&args)),
        Command::Bench(args) => in_threads(bench::run(store, &args)),
        Command::BenchWorker => in_threads(bench::work()),
    };
    code.map(End::Code)
}

/// As most programs that use locks: with a thread for each processor.
fn in_threads<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(exit::UNAVAILABLE, format!("cannot start: {error}")))?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_background();
    outcome
}

/// On the main thread: the parent-death signal of a child fires when the *thread* that started it ends.
fn in_runtime<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(exit::UNAVAILABLE, format!("cannot start: {error}")))?;
    let outcome = runtime.block_on(work);
    // A thread that looks at a lock file may still be at it; nothing waits for it.
    runtime.shutdown_background();
    outcome
}
