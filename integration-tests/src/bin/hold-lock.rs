//! Takes a lock and keeps it, as another process would: it can be told to give it back, stopped, or killed.
//!
//! `hold-lock URL NAME MODE [LEASE]`, where MODE is `exclusive`, `shared` or the number of permits. It writes one line for
//! each thing that happens: `asking`, `held TOKEN`, `lost REASON`, `is_held true|false`, `released WHAT`, `failed ERROR`. It reads
//! commands: `check`, `release`. It ends when its standard input does, so none outlives the test that started it.
#![allow(clippy::print_stdout, reason = "its standard output is what it is for")]

use std::process::ExitCode;

use dlocks::backend::parse_duration;
use dlocks::{Error, Guard, Locks, Settings};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

#[tokio::main]
async fn main() -> ExitCode {
    match hold().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed {error}");
            ExitCode::FAILURE
        }
    }
}

async fn hold() -> Result<(), Error> {
    let mut words = std::env::args().skip(1);
    let mut word = |what| {
        let usage = format!("{what} is missing: hold-lock URL NAME MODE [LEASE]");
        words.next().ok_or_else(|| Error::invalid(usage))
    };
    let (url, name, mode) = (word("URL")?, word("NAME")?, word("MODE")?);
    let mut settings = Settings::new();
    if let Ok(lease) = word("LEASE") {
        settings = settings.lease(parse_duration(&lease)?);
    }
    let locks = dlocks::builder(url).settings(settings).connect().await?;
    let mut commands = BufReader::new(stdin()).lines();
    println!("asking");
    let guard = tokio::select! {
        guard = take(&locks, &name, &mode) => guard?,
        // Its parent is gone, or does not want it any more.
        _ = commands.next_line() => return Ok(()),
    };
    println!("held {}", guard.token().map_or(0, u64::from));
    let signal = guard.loss_signal();
    let watch = tokio::spawn(async move {
        if let Some(reason) = signal.wait().await {
            println!("lost {reason:?}");
        }
    });
    while let Ok(Some(command)) = commands.next_line().await {
        match command.as_str() {
            "check" => println!("is_held {}", guard.is_held()),
            "release" => {
                println!("released {:?}", guard.release().await?);
                let _ = watch.await;
                return locks.close().await;
            }
            other => return Err(Error::invalid(format!("unknown command {other:?}"))),
        }
    }
    Ok(())
}

async fn take(locks: &Locks, name: &str, mode: &str) -> Result<Guard, Error> {
    match mode {
        "exclusive" => locks.mutex(name)?.lock().await,
        "shared" => locks.rw_lock(name)?.read().await,
        permits => {
            let limit = permits
                .parse()
                .map_err(|_| Error::invalid(format!("unknown mode {permits:?}")))?;
            locks.semaphore(name, limit)?.acquire().await
        }
    }
}
