//! What `dlock run` does beside holding a lock: less to type, skipping, a least time, and telling others.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;

use common::{Running, World, complaint, text, until};
use rustix::process::Signal;

#[test]
fn the_dashes_before_the_command_can_be_left_out() {
    let world = World::new();
    for (args, shown) in [
        (vec!["run", "a", "echo", "one"], "one\n"),
        (
            vec!["run", "--no-wait", "a", "echo", "-n", "--no-wait"],
            "--no-wait\n",
        ),
        (vec!["run", "a", "--no-wait", "echo", "two"], "two\n"),
        (vec!["run", "a", "--", "echo", "--", "three"], "-- three\n"),
        (vec!["run", "a", "echo", "--", "four"], "-- four\n"),
        (vec!["run", "a", "echo", "--json"], "--json\n"),
    ] {
        let output = world.run(&args);
        assert_eq!(
            text(&output.stdout),
            shown,
            "{args:?}: {}",
            text(&output.stderr)
        );
    }
    let (code, line) = complaint(&world.run(&["run", "a"]));
    assert_eq!(code, 64, "{line}");
}

#[test]
fn a_line_runs_in_a_shell() {
    let world = World::new();
    let output = world.run(&["run", "a", "-c", "echo $DLOCK_NAME | tr a b; exit 4"]);
    assert_eq!(text(&output.stdout), "b\n");
    assert_eq!(output.status.code(), Some(4));
}

#[test]
fn skipping_is_fine_when_it_was_asked_for() {
    let world = World::new();
    let holder = world.start(&[], "a", "echo held; exec sleep 1000");
    holder.expect("held");
    for options in [&["--skip-ok"][..], &["--skip-ok", "--wait", "10ms"]] {
        let mut args = vec!["run"];
        args.extend(options);
        args.extend(["a", "echo", "ran"]);
        let output = world.run(&args);
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(text(&output.stdout) + &text(&output.stderr), "");
    }
    holder.send(Signal::TERM);
    let output = world.run(&[
        "run",
        "--skip-ok",
        "--wait",
        "30s",
        "a",
        "sh",
        "-c",
        "exit 6",
    ]);
    assert_eq!(
        output.status.code(),
        Some(6),
        "when it runs, its code counts"
    );
}

#[test]
fn a_lock_is_held_at_least_so_long_and_a_signal_ends_that() {
    let world = World::new();
    let mut running = world.start(&["--at-least", "1h"], "a", "echo $$; exit 5");
    let command = running.pid_line();
    until("the end of the command", || !common::is_running(command));
    let output = world.run(&["run", "--no-wait", "a", "true"]);
    assert_eq!(output.status.code(), Some(75), "it is held on");
    running.send(Signal::TERM);
    assert_eq!(running.signal(), 15);
    assert_eq!(world.holders("a"), 0);
    let start = std::time::Instant::now();
    let output = world.run(&["run", "--at-least", "300ms", "a", "sh", "-c", "exit 5"]);
    assert_eq!(output.status.code(), Some(5));
    assert!(start.elapsed() >= std::time::Duration::from_millis(300));
}

/// Who ends the run does not wait for the rest of the time.
#[test]
fn a_signal_that_ends_the_command_ends_the_least_time_too() {
    let world = World::new();
    let mut running = world.start(&["--at-least", "1h"], "a", "echo ready; exec sleep 1000");
    running.expect("ready");
    running.send(Signal::TERM);
    assert_eq!(running.signal(), 15);
}

#[test]
fn a_line_is_run_when_the_lock_is_lost_and_the_command_is_stopped() {
    let world = World::new();
    let file = world.path("told");
    let line = format!("exec:echo $DLOCK_NAME $DLOCK_GROUP > {}", file.display());
    let options = [
        "--max-hold",
        "500ms",
        "--grace",
        "200ms",
        "--on-lost",
        &line,
    ];
    let mut running = world.start(&options, "a", "echo $$; exec sleep 1000");
    let command = running.pid_line();
    assert_eq!(running.code(), 80);
    assert!(!common::is_running(command));
    let expected = format!("a {}\n", command.as_raw_nonzero());
    until("the line", || {
        std::fs::read_to_string(&file).is_ok_and(|told| told == expected)
    });
}

#[test]
fn a_file_gets_the_heartbeat() {
    let world = World::new();
    let file = world.path("beat");
    let path = file.to_str().unwrap().to_owned();
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    for (script, ending) in [("exit 0", "code=0\n"), ("exit 7", "code=7\n")] {
        let script = format!("until grep -q ^start {path}; do sleep 0.01; done; {script}");
        let _ = world.run(&["run", "--heartbeat", &path, "a", "-c", &script]);
        assert!(read().ends_with(ending), "{}", read());
    }
    assert!(read().starts_with("failure 20"), "{}", read());
}

/// The paths that are asked for, each answered with `status`.
fn watchman(status: &'static str) -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/ping/x", listener.local_addr().unwrap());
    let (tell, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                request.push(byte[0]);
            }
            let request = text(&request);
            let path = request.split_whitespace().nth(1).unwrap();
            let _ = tell.send(path.to_owned());
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (url, asked)
}

#[test]
fn a_web_address_gets_the_heartbeat() {
    let world = World::new();
    let (url, asked) = watchman("200 OK");
    for (script, end) in [("exit 0", "/ping/x"), ("exit 7", "/ping/x/fail")] {
        let output = world.run(&["run", "--heartbeat", &url, "a", "-c", script]);
        assert_eq!(text(&output.stderr), "");
        let next = || asked.recv_timeout(common::LIMIT).unwrap();
        assert_eq!(
            (next(), next()),
            ("/ping/x/start".to_owned(), end.to_owned())
        );
    }
}

#[test]
fn a_watchman_who_cannot_be_reached_changes_nothing_else() {
    let world = World::new();
    let (url, _asked) = watchman("500 no");
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    for url in [&url, &nobody, "/no/such/folder/file"] {
        let output = world.run(&["run", "--heartbeat", url, "a", "-c", "exit 3"]);
        assert_eq!(output.status.code(), Some(3), "{url}");
        let said = text(&output.stderr);
        assert!(said.contains("the heartbeat did not get through"), "{said}");
    }
}

#[test]
fn the_last_run_is_written_for_prometheus() {
    let world = World::new();
    let file = world.path("last.prom");
    let path = file.to_str().unwrap();
    let value = |metric: &str| -> f64 {
        let all = std::fs::read_to_string(&file).unwrap();
        let start = format!("dlock_run_last_{metric}{{name=\"a\"}} ");
        let line = all.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("{metric} in {all}"))
            .parse()
            .unwrap()
    };
    let _ = world.run(&["run", "--metrics", path, "a", "true"]);
    assert_eq!((value("exit_code"), value("success")), (0.0, 1.0));
    assert!(value("start_time_seconds") > 1e9);
    assert!(value("end_time_seconds") >= value("start_time_seconds"));
    let _ = world.run(&["run", "--metrics", path, "a", "-c", "kill -TERM $$"]);
    assert_eq!((value("exit_code"), value("success")), (143.0, 0.0));
    assert_eq!(value("lock_lost"), 0.0);
    let options = ["--max-hold", "200ms", "--metrics", path];
    let mut running = world.start(&options, "a", "exec sleep 1000");
    assert_eq!(running.code(), 80);
    assert_eq!((value("lock_lost"), value("exit_code")), (1.0, 80.0));
    // One that did not run does not count as the last run.
    let holder: Running = world.start(&[], "a", "echo held; exec sleep 1000");
    holder.expect("held");
    let _ = world.run(&["run", "--no-wait", "--metrics", path, "a", "true"]);
    assert_eq!(value("exit_code"), 80.0);
    let left = std::fs::read_dir(world.path("")).unwrap();
    let drafts = left.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().ends_with(".draft")
    });
    assert_eq!(drafts.count(), 0);
}
