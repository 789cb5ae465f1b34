//! `ls`, `inspect`, `break`, `top`, `doctor`, `completions`, `man`, and help.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Running, World, complaint, text};

fn hold(world: &World, name: &str) -> Running {
    let running = world.start(&[], name, "echo in; exec sleep 1000");
    running.expect("in");
    running
}

#[test]
fn ls_shows_what_is_held_and_by_whom() {
    let world = World::new();
    let nothing = world.run(&["ls"]);
    assert_eq!(nothing.status.code(), Some(0));
    assert_eq!(text(&nothing.stdout), "");
    let first = hold(&world, "stock:1");
    let _second = hold(&world, "other");
    let shown = text(&world.run(&["ls", "stock"]).stdout);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 2, "{shown}");
    assert!(
        lines[0].contains("NAME") && lines[0].contains("TOKEN"),
        "{shown}"
    );
    let pid = first.pid().as_raw_nonzero().to_string();
    assert!(
        lines[1].contains("stock:1") && lines[1].contains(&pid),
        "{shown}"
    );
    let all = world.json(&["ls", "--json"]);
    assert_eq!(all.as_array().unwrap().len(), 2);
    assert_eq!(all[1]["holders"][0]["mode"], "exclusive");
    assert!(all[1]["holders"][0]["token"].as_u64().unwrap() > 0);
}

#[test]
fn inspect_shows_holders_and_waiters() {
    let world = World::new();
    assert_eq!(text(&world.run(&["inspect", "a"]).stdout), "a is free\n");
    let holder = hold(&world, "a");
    let _waiter = world.start(&["--shared"], "a", "true");
    common::until("waiting", || world.waiters("a") == 1);
    let shown = text(&world.run(&["inspect", "a"]).stdout);
    for expected in ["a is held", "mode   exclusive", "waiter", "(shared)"] {
        assert!(shown.contains(expected), "{shown}");
    }
    let info = world.json(&["inspect", "--json", "a"]);
    assert_eq!(info["locked"], true);
    let label = info["holders"][0]["label"].as_str().unwrap().to_owned();
    assert!(
        label.ends_with(&holder.pid().as_raw_nonzero().to_string()),
        "{label}"
    );
}

#[test]
fn a_file_lock_cannot_be_broken_and_says_what_to_do() {
    let world = World::new();
    let output = world.run(&["break", "--yes", "a"]);
    assert_eq!(text(&output.stdout), "a is free already\n");
    let holder = hold(&world, "a");
    let (code, line) = complaint(&world.run(&["break", "--yes", "a"]));
    assert_eq!(code, 64);
    let pid = holder.pid().as_raw_nonzero().to_string();
    assert!(
        line.contains("end its holder") && line.contains(&pid),
        "{line}"
    );
    assert_eq!(world.holders("a"), 1);
}

#[test]
fn top_looks_as_often_as_it_is_told() {
    let world = World::new();
    let _holder = hold(&world, "a");
    let output = world.run(&["top", "--json", "-n", "2", "--interval", "10ms"]);
    let shown = text(&output.stdout);
    assert_eq!(shown.lines().count(), 2, "{shown}");
    for line in shown.lines() {
        let look: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(look["locks"][0]["name"], "a");
    }
    let shown = text(&world.run(&["top", "-n", "1"]).stdout);
    assert!(shown.contains("1 locks, 1 holders, 0 waiters"), "{shown}");
    assert!(
        !shown.contains('\x1b'),
        "no screen control without a terminal"
    );
}

#[test]
fn doctor_tells_what_the_store_can_do_and_what_is_unsafe() {
    let world = World::new();
    let output = world.run(&["doctor"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for expected in [
        "acquire and release take",
        "fencing tokens",
        "processes of one host",
        "is local",
    ] {
        assert!(shown.contains(expected), "{expected} in {shown}");
    }
    let report = world.json(&["doctor", "--json"]);
    assert_eq!(report["capabilities"]["fencing"], true);
    assert!(report["trip_us"].as_u64().unwrap() > 0);
    let unsafe_store = world.run(&["doctor", "--backend", "memory:"]);
    assert_eq!(unsafe_store.status.code(), Some(1));
    assert!(text(&unsafe_store.stdout).contains("unsafe"));
}

#[test]
fn a_reader_that_goes_away_is_not_an_error() {
    let world = World::new();
    let _holder = hold(&world, "a");
    let mut shell = common::fresh("sh");
    shell
        .args(["-c", "\"$0\" top --interval 10ms | head -n 1"])
        .arg(common::binary())
        .env("DLOCK_URL", world.url());
    let output = common::finish(shell);
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout).lines().count(), 1);
}

#[test]
fn completions_and_manual_come_from_the_command_itself() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = text(&world.run(&["completions", shell]).stdout);
        assert!(text.contains("conflict-exit-code"), "{shell}");
        assert!(!text.contains("__exec"), "{shell} shows inner commands");
    }
    let page = text(&world.run(&["man"]).stdout);
    assert!(
        page.contains(".TH dlock 1") && !page.contains("__exec"),
        "{page}"
    );
    let folder = world.path("man");
    let output = world.run(&["man", "--folder", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    assert!(folder.join("dlock-run.1").exists());
    assert_eq!(complaint(&world.run(&["completions", "cobol"])).0, 64);
}

#[test]
fn help_teaches_by_example_and_version_is_known() {
    let world = World::new();
    let help = world.run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let shown = text(&help.stdout);
    assert!(
        shown.contains("Examples:") && shown.contains("dlock run backup --"),
        "{shown}"
    );
    assert!(!shown.contains("__exec"), "{shown}");
    for command in [
        "run",
        "ls",
        "inspect",
        "break",
        "top",
        "doctor",
        "demo",
        "completions",
        "man",
    ] {
        let output = world.run(&[command, "--help"]);
        assert_eq!(output.status.code(), Some(0), "{command}");
    }
    let version = text(&world.run(&["--version"]).stdout);
    assert_eq!(version, format!("dlock {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(world.run(&[]).status.code(), Some(64));
}

#[test]
fn a_password_is_never_shown() {
    let world = World::new();
    for url in [
        "ftp://me:hunter2@host/x",
        "file://me:hunter2@host/x",
        "memory:x?token=hunter2",
    ] {
        for command in [vec!["ls"], vec!["doctor"], vec!["run", "a", "--", "true"]] {
            let mut args = command.clone();
            args.insert(1, "--backend");
            args.insert(2, url);
            let output = world.run(&args);
            let shown = text(&output.stdout) + &text(&output.stderr);
            assert!(!shown.contains("hunter2"), "{args:?}: {shown}");
            assert_eq!(output.status.code(), Some(64), "{shown}");
        }
    }
}
