//! Runs scenarios and judges them. See docs/faults.md.
//!
//! - `judge worker JOB` is one worker process of a scenario.
//! - `judge quick [--store S] [--fault F] [--seed N] [--write FILE]` runs every scenario once, or those of one store or fault.
//! - `judge soak --minutes N [--seed N] [--store S]` runs random ones.
//! - `--bytes all` with either: connections are reset at every byte, not at a share of them.
//! - `judge check FILE` judges a history.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "its output is what it is for"
)]

use std::process::ExitCode;

use integration_tests::judge::{soak, worker};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("judge: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<bool, Box<dyn std::error::Error>> {
    let command = words.first().map_or("", String::as_str);
    if command == "worker" {
        let job = serde_json::from_str(words.get(1).ok_or("a job is missing")?)?;
        // One thread, so that a worker that is told to block stands still as a whole.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(worker::work(job))?;
        // Its own threads that still read the input do not keep it.
        std::process::exit(0);
    }
    if command == "check" {
        let file = words.get(1).ok_or("judge check FILE")?;
        let history = dlock_judge::History::parse(&std::fs::read_to_string(file)?)?;
        let findings = dlock_judge::judge(&history);
        for finding in &findings {
            println!("{finding}");
        }
        println!(
            "{} lines, {} findings",
            history.lines().len(),
            findings.len()
        );
        return Ok(findings.is_empty());
    }
    let options = soak::Options::parse(words.get(1..).unwrap_or_default())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    match command {
        "quick" => runtime.block_on(soak::quick(&options)),
        "soak" => runtime.block_on(soak::soak(&options)),
        _ => Err("judge quick|soak|check|worker: see docs/faults.md".into()),
    }
}
