//! Every exit code of `dlock run`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use std::os::unix::process::ExitStatusExt;

use common::{Running, World, complaint, text};

#[test]
fn the_commands_own_code_is_passed_on() {
    let world = World::new();
    for code in [0, 1, 7, 255] {
        let output = world.run(&["run", "a", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn a_command_that_a_signal_ended_ends_dlock_by_the_same_signal() {
    let world = World::new();
    for (name, signal) in [
        ("INT", 2),
        ("TERM", 15),
        ("KILL", 9),
        ("SEGV", 11),
        ("USR1", 10),
    ] {
        let output = world.run(&["run", "a", "--", "sh", "-c", &format!("kill -{name} $$")]);
        assert_eq!(output.status.signal(), Some(signal), "{name}");
        assert!(!output.status.core_dumped(), "a core of our own");
        assert_eq!(text(&output.stderr), "");
    }
    // A shell shows that as it always does.
    let mut shell = common::fresh("sh");
    shell
        .args(["-c", "\"$0\" run a -- sh -c 'kill -TERM $$'; echo $?"])
        .arg(common::binary())
        .env("DLOCK_URL", world.url());
    assert_eq!(text(&common::finish(shell).stdout), "143\n");
    // A signal without a name of its own cannot be imitated.
    let output = world.run(&["run", "a", "--", "sh", "-c", "kill -40 $$"]);
    assert_eq!(output.status.code(), Some(168));
}

#[test]
fn a_command_that_is_not_there_or_not_executable_is_told_as_shells_do() {
    let world = World::new();
    let (code, line) = complaint(&world.run(&["run", "a", "--", "no-such-command"]));
    assert_eq!(code, 127, "{line}");
    assert!(line.contains("no-such-command"), "{line}");
    let file = world.path("plain");
    std::fs::write(&file, "text").unwrap();
    let (code, line) = complaint(&world.run(&["run", "a", "--", file.to_str().unwrap()]));
    assert_eq!(code, 126, "{line}");
    assert_eq!(world.holders("a"), 0);
}

#[test]
fn wrong_usage_is_64_and_one_line() {
    let world = World::new();
    let long = "x".repeat(256);
    for (args, expected) in [
        (vec!["run", "a"], "required"),
        (vec!["run", "a", "--b"], "unexpected argument"),
        (
            vec!["run", "a", "-c", "true", "true"],
            "cannot be used with",
        ),
        (
            vec!["run", "--skip-ok", "--conflict-exit-code", "3", "a", "true"],
            "cannot be used with",
        ),
        (
            vec!["run", "--at-least", "2s", "--max-hold", "1s", "a", "true"],
            "--at-least",
        ),
        (
            vec!["run", "--heartbeat", "https://h/x", "a", "true"],
            "plain http",
        ),
        (vec!["run", "--nonsense", "a", "--", "true"], "--nonsense"),
        (
            vec!["run", "--wait", "soon", "a", "--", "true"],
            "500ms, 30s or 2m",
        ),
        (
            vec!["run", "--wait", "1s", "--no-wait", "a", "--", "true"],
            "cannot be used with",
        ),
        (
            vec!["run", "--shared", "--permits", "2", "a", "--", "true"],
            "cannot be used with",
        ),
        (
            vec!["run", "--permits", "0", "a", "--", "true"],
            "--permits",
        ),
        (
            vec!["run", "--on-lost", "cry", "a", "--", "true"],
            "signal:NAME",
        ),
        (vec!["run", "", "--", "true"], "name is empty"),
        (vec!["run", "a\nb", "--", "true"], "control character"),
        (vec!["run", &long, "--", "true"], "256 bytes"),
        (
            vec!["run", "--max-hold", "0s", "a", "--", "true"],
            "maximum hold",
        ),
        (
            vec!["run", "--backend", "nonsense", "a", "--", "true"],
            "no scheme",
        ),
        (
            vec!["run", "--backend", "ftp://x", "a", "--", "true"],
            "file",
        ),
        (
            vec!["run", "--backend", "file://h/x", "a", "--", "true"],
            "host",
        ),
        (
            vec!["run", "--backend", "file:/x?y=1", "a", "--", "true"],
            "\"y\"",
        ),
        (
            vec![
                "run",
                "--backend",
                "memory:",
                "--ttl",
                "1s",
                "--grace",
                "1s",
                "a",
                "--",
                "true",
            ],
            "--grace",
        ),
        (
            vec![
                "run",
                "--backend",
                "memory:",
                "--ttl",
                "1ms",
                "a",
                "--",
                "true",
            ],
            "lease",
        ),
        (
            vec!["run", "--backend-file", "/no/such/file", "a", "--", "true"],
            "/no/such/file",
        ),
        (vec!["run", "--json", "a", "--", "true"], "--json"),
        (vec!["frobnicate"], "frobnicate"),
        (vec!["--frobnicate"], "--frobnicate"),
    ] {
        let (code, line) = complaint(&world.run(&args));
        assert_eq!(code, 64, "{args:?}: {line}");
        assert!(line.contains(expected), "{args:?}: {line}");
    }
}

#[test]
fn a_store_that_cannot_be_used_is_69() {
    let world = World::new();
    std::fs::create_dir(world.path("real")).unwrap();
    std::os::unix::fs::symlink(world.path("real"), world.path("link")).unwrap();
    for (folder, expected) in [
        (world.path("link"), "symbolic link"),
        ("/proc/no/such".into(), "/proc/no/such"),
    ] {
        let url = format!("file:{}", folder.display());
        let output = world.run(&["run", "--backend", &url, "a", "--", "true"]);
        let (code, line) = complaint(&output);
        assert_eq!(code, 69, "{line}");
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn a_lock_that_is_held_is_75_or_what_was_asked_for() {
    let world = World::new();
    let mut holder = world.start(&[], "a", "echo held; read line || exec sleep 1000");
    holder.expect("held");
    for (options, expected) in [
        (vec!["--no-wait"], 75),
        (vec!["--wait", "50ms"], 75),
        (vec!["--no-wait", "--conflict-exit-code", "3"], 3),
        (vec!["--no-wait", "--conflict-exit-code", "0"], 0),
        (vec!["--no-wait", "--shared"], 75),
        (vec!["--no-wait", "--permits", "3"], 75),
    ] {
        let mut args = vec!["run"];
        args.extend(&options);
        args.extend(["a", "--", "echo", "never"]);
        let output = world.run(&args);
        assert_eq!(text(&output.stdout), "", "{options:?}");
        let (code, line) = complaint(&output);
        assert_eq!(code, expected, "{options:?}");
        assert!(line.contains("held by others"), "{line}");
    }
    assert_eq!(world.waiters("a"), 0, "nobody is left in the line");
    holder.send(rustix::process::Signal::TERM);
    assert_eq!(holder.signal(), 15);
}

#[test]
fn a_waiter_gets_the_lock_when_the_holder_is_done() {
    let world = World::new();
    // A pipe to say when: the holder blocks in opening it.
    let go = world.path("go");
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        &go,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
    )
    .unwrap();
    let script = format!("echo held; read line < {}; echo done", go.display());
    let mut holder = world.start(&[], "a", &script);
    holder.expect("held");
    let mut waiter = world.start(&["--wait", "30s"], "a", "echo mine");
    common::until("waiting", || world.waiters("a") == 1);
    std::fs::write(&go, "go\n").unwrap();
    holder.expect("done");
    waiter.expect("mine");
    assert_eq!(holder.code(), 0);
    assert_eq!(waiter.code(), 0);
}

#[test]
fn a_lock_that_reached_its_maximum_is_80_never_0() {
    let world = World::new();
    let options = ["--max-hold", "400ms"];
    let mut running = world.start(
        &options,
        "a",
        "trap 'exit 0' TERM; echo $$; while :; do sleep 0.02; done",
    );
    let command = running.pid_line();
    assert_eq!(running.code(), 80);
    assert!(running.stderr().contains("lost"));
    assert!(!common::is_running(command));
    assert_eq!(world.holders("a"), 0);
}

#[test]
fn with_on_lost_ignore_the_command_goes_on_and_the_code_is_80() {
    let world = World::new();
    let options = ["--max-hold", "100ms", "--on-lost", "ignore"];
    let mut running = world.start(&options, "a", "sleep 0.5; echo to the end");
    running.expect("to the end");
    assert_eq!(running.code(), 80);
}

#[test]
fn with_on_lost_signal_the_command_is_told_before_the_end() {
    let world = World::new();
    let options = [
        "--max-hold",
        "4s",
        "--grace",
        "3s",
        "--on-lost",
        "signal:USR1",
    ];
    let script = "trap 'echo told; exit 0' USR1; while :; do sleep 0.02; done";
    let mut running = world.start(&options, "a", script);
    running.expect("told");
    // It ended in time by itself, so the lock was good to the end.
    assert_eq!(running.code(), 0);
}

#[test]
fn readers_share_and_a_writer_waits_for_them() {
    let world = World::new();
    let script = "echo in; exec sleep 1000";
    let first = world.start(&["--shared"], "a", script);
    let second = world.start(&["--shared"], "a", script);
    first.expect("in");
    second.expect("in");
    assert_eq!(world.holders("a"), 2);
    let output = world.run(&["run", "--no-wait", "a", "--", "true"]);
    assert_eq!(complaint(&output).0, 75);
}

#[test]
fn permits_let_as_many_in_as_they_say_and_everybody_must_agree() {
    let world = World::new();
    let script = "echo in; exec sleep 1000";
    let holders: Vec<Running> = (0..2)
        .map(|_| world.start(&["--permits", "2"], "a", script))
        .collect();
    for holder in &holders {
        holder.expect("in");
    }
    let output = world.run(&["run", "--no-wait", "--permits", "2", "a", "--", "true"]);
    assert_eq!(complaint(&output).0, 75);
    let (code, line) =
        complaint(&world.run(&["run", "--no-wait", "--permits", "3", "a", "--", "true"]));
    assert_eq!(code, 64);
    assert!(line.contains("in use with 2 permits"), "{line}");
}

#[test]
fn names_are_taken_as_they_are() {
    let world = World::new();
    for name in [
        "with space",
        " lead",
        "trail ",
        "Ümläut/../..",
        "$(id)",
        "🔒",
    ] {
        let output = world.run(&["run", name, "--", "sh", "-c", "echo \"$DLOCK_NAME|\""]);
        assert_eq!(text(&output.stdout), format!("{name}|\n"));
    }
    let running = world.start(&[], "with space", "echo in; exec sleep 1000");
    running.expect("in");
    let listed = world.json(&["ls", "--json", "with "]);
    assert_eq!(listed[0]["name"], "with space");
}

#[test]
fn the_command_finds_the_lock_in_its_environment() {
    let world = World::new();
    let script = "echo $DLOCK_NAME; echo $DLOCK_TOKEN; echo $DLOCK_OWNER; echo $DLOCK_BACKEND";
    let mut first = world.start(&[], "a", script);
    let mut second = world.start(&["--wait", "30s"], "a", script);
    first.expect("a");
    second.expect("a");
    let tokens: Vec<u64> = [&first, &second]
        .map(|run| run.line().parse().unwrap())
        .to_vec();
    assert_ne!(tokens[0], tokens[1]);
    assert_eq!(first.line().len(), 32);
    first.expect(&world.url());
    assert_eq!((first.code(), second.code()), (0, 0));
}

#[test]
fn a_url_in_a_file_works_like_one_on_the_command_line() {
    let world = World::new();
    let file = world.path("url");
    std::fs::write(&file, format!("# locks\n{}\n", world.url())).unwrap();
    let mut command = world.dlock(&["run", "--backend-file"]);
    command
        .arg(&file)
        .args(["a", "--", "sh", "-c", "echo $DLOCK_BACKEND"])
        .env_remove("DLOCK_URL");
    let output = common::finish(command);
    assert_eq!(text(&output.stdout), format!("{}\n", world.url()));
}

#[test]
fn stdin_reaches_the_command() {
    let world = World::new();
    let input = world.path("input");
    std::fs::write(&input, "through\n").unwrap();
    let mut command = world.dlock(&["run", "a", "--", "cat"]);
    command.stdin(std::fs::File::open(&input).unwrap());
    assert_eq!(text(&common::finish(command).stdout), "through\n");
}

#[test]
fn one_lock_inside_another() {
    let world = World::new();
    let dlock = common::binary();
    let output = world.run(&[
        "run",
        "outer",
        "--",
        dlock,
        "run",
        "inner",
        "--",
        "sh",
        "-c",
        "\"$0\" ls --json; exit 9",
        dlock,
    ]);
    assert_eq!(output.status.code(), Some(9));
    let held: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = held
        .as_array()
        .unwrap()
        .iter()
        .map(|l| l["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["inner", "outer"]);
    // The same lock twice would wait for itself.
    let output = world.run(&[
        "run",
        "a",
        "--",
        dlock,
        "run",
        "--no-wait",
        "a",
        "--",
        "true",
    ]);
    assert_eq!(output.status.code(), Some(75));
}
