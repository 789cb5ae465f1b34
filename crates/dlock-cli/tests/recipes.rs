//! The commands of docs/recipes.md, run as they stand there, with folders and programs of the test's own.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use std::os::unix::fs::PermissionsExt;

use common::{World, text};

const RECIPES: &str = include_str!("../../../docs/recipes.md");

/// The fenced blocks: their language and their text.
fn blocks() -> Vec<(&'static str, &'static str)> {
    let parts = RECIPES.split("```").collect::<Vec<_>>();
    assert_eq!(parts.len() % 2, 1, "a fence is open");
    let blocks = parts.chunks_exact(2).map(|pair| pair[1]);
    blocks
        .map(|block| block.split_once('\n').unwrap())
        .collect()
}

/// What is run by each recipe, as a shell would be given it.
fn commands() -> Vec<String> {
    let mut found = Vec::new();
    for (language, block) in blocks() {
        let lines = block.lines().map(str::trim);
        match language {
            "sh" => found.push(format!("set -e\n{block}")),
            "crontab" => found.extend(
                lines
                    .filter(|line| !line.starts_with("PATH=") && !line.is_empty())
                    // Five fields of time come first.
                    .map(|line| line.splitn(6, ' ').nth(5).unwrap().to_owned()),
            ),
            "ini" => found.extend(
                lines
                    .filter_map(|line| line.strip_prefix("ExecStart="))
                    .map(str::to_owned),
            ),
            "yaml" => found.extend(lines.filter_map(|line| line.strip_prefix("command: ")).map(
                |words| {
                    let words: Vec<String> = serde_json::from_str(words).unwrap();
                    words.iter().map(|word| format!("'{word}' ")).collect()
                },
            )),
            other => panic!("a block in {other}: how is it run?"),
        }
    }
    found
}

#[test]
fn every_recipe_runs_its_job_under_its_lock() {
    let world = World::new();
    let bin = world.path("bin");
    std::fs::create_dir(&bin).unwrap();
    std::fs::create_dir(world.path("var")).unwrap();
    std::os::unix::fs::symlink(common::binary(), bin.join("dlock")).unwrap();
    let log = world.path("log");
    for program in ["import", "backup", "report", "deploy"] {
        let path = bin.join(program);
        let script = format!(
            "#!/bin/sh\necho \"${{0##*/}} in $DLOCK_NAME: $*\" >> {}\n",
            log.display()
        );
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    std::fs::write(world.path("url"), world.url()).unwrap();
    let path = |name: &str| world.path(name).to_str().unwrap().to_owned();
    let mut ran = Vec::new();
    for command in commands() {
        let command = command
            .replace("/usr/local/bin/", &format!("{}/", bin.display()))
            .replace("/etc/dlock.url", &path("url"))
            .replace("/var/lib/node_exporter", &path("var"))
            .replace("/var/lib/dlock", &path("var"))
            // Nobody waits a minute here; the option itself has tests of its own.
            .replace("--at-least 1m", "--at-least 1ms")
            .replace("'--at-least' '1m'", "'--at-least' '1ms'");
        let _ = std::fs::remove_file(&log);
        let mut shell = common::fresh("sh");
        shell
            .args(["-c", &command])
            .env(
                "PATH",
                format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()),
            )
            .env("DLOCK_URL", world.url());
        let output = common::finish(shell);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{command}\n{said}");
        let did =
            std::fs::read_to_string(&log).unwrap_or_else(|_| panic!("{command}: nothing ran"));
        ran.extend(did.lines().map(str::to_owned));
    }
    for expected in [
        "import in import: --all",
        "backup in nightly: --all",
        "report in nightly: ",
        "deploy in deploy:production: production",
        "report in test-machines: --on-a-test-machine",
        "report in cache-warmer: --warm",
    ] {
        assert!(
            ran.iter().any(|line| line == expected),
            "{expected} in {ran:?}"
        );
    }
    let metrics = std::fs::read_to_string(world.path("var").join("nightly.prom")).unwrap();
    assert!(
        metrics.contains("dlock_run_last_success{name=\"nightly\"} 1"),
        "{metrics}"
    );
    let nightly = ran
        .iter()
        .filter(|line| line.starts_with("backup in nightly"));
    assert_eq!(nightly.count(), 5, "{ran:?}");
}
