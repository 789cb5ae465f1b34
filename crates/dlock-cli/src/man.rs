//! `dlock completions` and `dlock man`, both made from the command line's own description.

use std::io::Write;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::Cli;
use crate::exit::{ExitResult, Failure, UNAVAILABLE};

pub(crate) fn completions(shell: clap_complete::Shell) -> ExitResult {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut shown(Cli::command()), "dlock", &mut text);
    write_out(&text)
}

pub(crate) fn pages(folder: Option<&Path>) -> ExitResult {
    let command = shown(Cli::command());
    let Some(folder) = folder else {
        let mut text = Vec::new();
        Man::new(command).render(&mut text).map_err(failed)?;
        return write_out(&text);
    };
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .map_err(|error| {
            Failure::new(
                UNAVAILABLE,
                format!("cannot write the pages into {}: {error}", folder.display()),
            )
        })?;
    Ok(0)
}

/// Without the commands that only dlock itself uses.
fn shown(command: Command) -> Command {
    let kept: Vec<Command> = command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set())
        .cloned()
        .collect();
    let mut bare = Command::new("dlock")
        .version(env!("CARGO_PKG_VERSION"))
        .max_term_width(100)
        .subcommand_required(true);
    if let Some(about) = command.get_about() {
        bare = bare.about(about.clone());
    }
    if let Some(help) = command.get_after_help() {
        bare = bare.after_help(help.clone());
    }
    bare.args(command.get_arguments().cloned())
        .subcommands(kept)
}

fn write_out(text: &[u8]) -> ExitResult {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(failed(error)),
        _ => Ok(0),
    }
}

fn failed(error: std::io::Error) -> Failure {
    Failure::new(UNAVAILABLE, format!("cannot print: {error}"))
}
