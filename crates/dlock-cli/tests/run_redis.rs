//! A store that can be broken into, stopped and lost, under a command that runs: a real Redis on a socket of its own.
#![cfg(feature = "redis")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use common::{Running, World, complaint, is_running, text, until};
use rustix::process::{Signal, kill_process};

struct Redis {
    world: World,
    server: Child,
    password: &'static str,
}

impl Redis {
    fn start() -> Self {
        Self::start_with("", &[])
    }

    fn start_with(password: &'static str, more: &[&str]) -> Self {
        let world = World::new();
        let socket = world.path("redis.sock");
        let mut command = Command::new("redis-server");
        command
            .args([
                "--port",
                "0",
                "--save",
                "",
                "--appendonly",
                "no",
                "--unixsocket",
            ])
            .arg(&socket)
            .args(["--dir", world.path("").to_str().unwrap()])
            .args(more)
            .stdout(Stdio::null());
        if !password.is_empty() {
            command.args(["--requirepass", password]);
        }
        let server = command
            .spawn()
            .expect("these tests need redis-server: install it");
        until("the server", || {
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
        Self {
            world,
            server,
            password,
        }
    }

    fn url(&self) -> String {
        let socket = self.world.path("redis.sock");
        let secret = match self.password {
            "" => String::new(),
            password => format!("?password={password}"),
        };
        format!("redis+unix://{}{secret}", socket.display())
    }

    fn dlock(&self, args: &[&str]) -> Command {
        let mut command = self.world.dlock(args);
        command.env("DLOCK_URL", self.url());
        command
    }

    fn run(&self, args: &[&str]) -> std::process::Output {
        common::finish(self.dlock(args))
    }

    fn start_run(&self, options: &[&str], script: &str) -> Running {
        let mut args = vec!["run"];
        args.extend(options);
        args.extend(["a", "--", "sh", "-c", script]);
        Running::start(self.dlock(&args))
    }

    fn signal(&self, signal: Signal) {
        let pid = common::pid(i32::try_from(self.server.id()).unwrap());
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
fn a_lock_that_is_broken_ends_the_command_with_80() {
    let redis = Redis::start();
    let mut running = redis.start_run(&["--ttl", "900ms"], "echo $$; exec sleep 1000");
    let command = running.pid_line();
    let output = redis.run(&["break", "a"]);
    assert_eq!(complaint(&output).0, 64, "nobody is there to answer");
    let output = redis.run(&["break", "--yes", "a"]);
    assert_eq!(text(&output.stdout), "a was freed\n");
    assert_eq!(running.code(), 80);
    let said = running.stderr();
    assert!(said.contains("lost") && said.lines().count() == 1, "{said}");
    assert!(!is_running(command));
}

#[test]
fn a_lock_that_is_broken_is_80_also_when_nothing_is_done_about_it() {
    let redis = Redis::start();
    let go = redis.world.path("go");
    let script = format!(
        "echo in; while [ ! -e {} ]; do sleep 0.02; done; exit 0",
        go.display()
    );
    let mut running = redis.start_run(&["--ttl", "900ms", "--on-lost", "ignore"], &script);
    running.expect("in");
    redis.run(&["break", "--yes", "a"]);
    // The next holder goes in while the command ignores its loss.
    let output = redis.run(&["run", "--wait", "30s", "a", "--", "true"]);
    assert_eq!(output.status.code(), Some(0));
    std::fs::write(&go, "").unwrap();
    assert_eq!(running.code(), 80);
}

#[test]
fn a_server_that_hangs_ends_the_command_before_the_lock_can_pass_on() {
    let redis = Redis::start();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.02; done";
    let mut running = redis.start_run(&["--ttl", "3s", "--grace", "1s"], script);
    let command = running.pid_line();
    let since = Instant::now();
    redis.signal(Signal::STOP);
    assert_eq!(running.code(), 80);
    assert!(!is_running(command));
    // The lease was counted anew at most a renewal before the server stopped.
    assert!(
        since.elapsed().as_secs_f32() < 3.0 + 5.0,
        "{:?}",
        since.elapsed()
    );
    redis.signal(Signal::CONT);
}

#[test]
fn a_server_that_was_killed_ends_the_command_with_80() {
    let redis = Redis::start();
    let mut running = redis.start_run(&["--ttl", "2s"], "echo $$; exec sleep 1000");
    let command = running.pid_line();
    redis.signal(Signal::KILL);
    assert_eq!(running.code(), 80);
    assert!(!is_running(command));
}

#[test]
fn an_outage_shorter_than_the_lease_is_not_noticed() {
    let redis = Redis::start();
    let go = redis.world.path("go");
    let script = format!(
        "echo in; while [ ! -e {} ]; do sleep 0.02; done; exit 7",
        go.display()
    );
    let mut running = redis.start_run(&["--ttl", "20s", "--grace", "1s"], &script);
    running.expect("in");
    redis.signal(Signal::STOP);
    let url = format!("{}?connect_timeout=200ms", redis.url());
    let other = redis.run(&["ls", "--backend", &url]);
    assert_eq!(complaint(&other).0, 69, "others notice it");
    redis.signal(Signal::CONT);
    std::fs::write(&go, "").unwrap();
    assert_eq!(running.code(), 7);
}

#[test]
fn a_dlock_that_slept_past_its_lease_kills_the_command_at_once() {
    let redis = Redis::start();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.02; done";
    let mut running = redis.start_run(&["--ttl", "1s"], script);
    let command = running.pid_line();
    running.send(Signal::STOP);
    let next = redis.start_run(&["--wait", "30s"], "echo mine; exec sleep 1000");
    next.expect("mine");
    running.send(Signal::CONT);
    assert_eq!(running.code(), 80);
    assert!(!is_running(command));
}

#[test]
fn when_dlock_is_killed_the_lease_frees_the_lock() {
    let redis = Redis::start();
    let running = redis.start_run(&["--ttl", "1s"], "echo $$; exec sleep 1000");
    let command = running.pid_line();
    running.send(Signal::KILL);
    until("the end of the command", || !is_running(command));
    let output = redis.run(&["run", "--wait", "30s", "a", "--", "true"]);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_signal_while_waiting_leaves_the_line_of_the_store() {
    let redis = Redis::start();
    let holder = redis.start_run(&[], "echo in; exec sleep 1000");
    holder.expect("in");
    let mut waiter = redis.start_run(&[], "echo never");
    let waiters = || {
        let shown = redis.run(&["inspect", "--json", "a"]).stdout;
        let info: serde_json::Value = serde_json::from_slice(&shown).unwrap();
        info["waiters"].as_array().unwrap().len()
    };
    until("waiting", || waiters() == 1);
    waiter.send(Signal::TERM);
    assert_eq!(waiter.signal(), 15);
    assert_eq!(waiters(), 0);
}

#[test]
fn a_store_that_is_not_there_is_69() {
    let world = World::new();
    for url in [
        format!("redis+unix://{}", world.path("no.sock").display()),
        "redis://127.0.0.1:1".to_owned(),
    ] {
        for command in [
            &["ls"][..],
            &["doctor"],
            &["run", "--no-wait", "a", "--", "true"],
        ] {
            let mut args = command.to_vec();
            args.splice(1..1, ["--backend", &url]);
            let (code, line) = complaint(&world.run(&args));
            assert_eq!(code, 69, "{args:?}: {line}");
        }
    }
}

#[test]
fn the_password_stays_between_us_and_the_server() {
    let redis = Redis::start_with("hunter2", &[]);
    let script = "env; ps -o args= -p $PPID; tr '\\0' '\\n' < /proc/self/cmdline";
    let mut command = redis.dlock(&[
        "run",
        "--backend-file",
        "url",
        "a",
        "--",
        "sh",
        "-c",
        script,
    ]);
    std::fs::write(redis.world.path("url"), redis.url()).unwrap();
    command
        .current_dir(redis.world.path(""))
        .env_remove("DLOCK_URL");
    let output = common::finish(command);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.contains("DLOCK_BACKEND=redis+unix:"), "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
    let wrong = redis.url().replace("hunter2", "letmein");
    let output = redis.run(&["ls", "--backend", &wrong]);
    let (code, line) = complaint(&output);
    assert_eq!(code, 69);
    assert!(!line.contains("letmein"), "{line}");
}

#[test]
fn the_sale_is_exact_with_the_stock_in_redis() {
    let redis = Redis::start();
    let args = [
        "demo",
        "--json",
        "--stock",
        "400",
        "--workers",
        "16",
        "--loops",
        "25",
        "--processes",
        "4",
    ];
    let with: serde_json::Value = serde_json::from_slice(&redis.run(&args).stdout).unwrap();
    assert_eq!(
        (&with["sold"], &with["remaining"]),
        (&400.into(), &0.into()),
        "{with}"
    );
    let mut args = args.to_vec();
    args.push("--no-lock");
    let without: serde_json::Value = serde_json::from_slice(&redis.run(&args).stdout).unwrap();
    assert!(without["oversold"].as_u64().unwrap() > 0, "{without}");
}

#[test]
fn doctor_warns_of_a_server_that_forgets() {
    let redis = Redis::start_with(
        "",
        &["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"],
    );
    let output = redis.run(&["doctor"]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("allkeys-lru") && shown.contains("append-only"),
        "{shown}"
    );
    let safe = Redis::start_with("", &["--appendonly", "yes", "--appendfsync", "always"]);
    let output = safe.run(&["doctor"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

/// Plain locks cannot be looked at, and can be broken all the same.
#[test]
fn a_lock_that_cannot_be_looked_at_can_be_broken() {
    let redis = Redis::start();
    let url = format!("{}?style=plain", redis.url());
    let plain = |args: &[&str]| {
        let mut command = redis.world.dlock(args);
        command.env("DLOCK_URL", &url);
        command
    };
    let mut holder = Running::start(plain(&[
        "run",
        "--ttl",
        "1s",
        "a",
        "--",
        "sh",
        "-c",
        "echo held; exec sleep 1000",
    ]));
    holder.expect("held");
    let looked = common::finish(plain(&["inspect", "a"]));
    assert_eq!(
        looked.status.code(),
        Some(64),
        "this test needs a lock that cannot be seen"
    );
    let output = common::finish(plain(&["break", "--yes", "a"]));
    assert_eq!(
        text(&output.stdout),
        "a was freed\n",
        "{}",
        text(&output.stderr)
    );
    assert_eq!(holder.code(), 80);
    let output = common::finish(plain(&["break", "--yes", "a"]));
    assert_eq!(text(&output.stdout), "a is free already\n");
    // Without an answer nothing is done.
    let (code, line) = complaint(&common::finish(plain(&["break", "a"])));
    assert_eq!(code, 64, "{line}");
    assert!(line.contains("--yes"), "{line}");
}

#[test]
fn ctrl_c_ends_top_also_while_it_waits_for_the_store() {
    let redis = Redis::start();
    let args = ["top", "--json", "--interval", "10ms"];
    let url = format!("{}?answer_timeout=25s", redis.url());
    let mut command = redis.world.dlock(&args);
    command.env("DLOCK_URL", &url);
    let mut top = Running::start(command);
    assert!(top.line().contains("locks"));
    redis.signal(Signal::STOP);
    // What comes now was asked for before; then a look waits for the server.
    let asked = top.wait_for_silence();
    top.send(Signal::INT);
    let code = top.code();
    redis.signal(Signal::CONT);
    assert_eq!(code, 0, "after {asked} more looks");
}
