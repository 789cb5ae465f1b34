//! Signals, process groups, and what happens when somebody is killed.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use std::time::Instant;

use common::{LIMIT, World, is_running, until};
use rustix::process::{Pid, Signal, kill_process};

/// Prints its own name for each signal it gets; sleeps in short steps, since a shell waits for its children first.
fn listener(signals: &str) -> String {
    let traps: String = signals
        .split(' ')
        .map(|signal| format!("trap 'echo got {signal}' {signal}; "))
        .collect();
    format!("{traps} echo ready; while :; do sleep 0.02; done")
}

#[test]
fn every_signal_is_passed_on() {
    let world = World::new();
    let all = [
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("ALRM", Signal::ALARM),
        ("TERM", Signal::TERM),
        ("CONT", Signal::CONT),
        ("WINCH", Signal::WINCH),
        ("URG", Signal::URG),
        ("IO", Signal::IO),
        ("XCPU", Signal::XCPU),
    ];
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let running = world.start(&[], "a", &listener(&names.join(" ")));
    running.expect("ready");
    for (name, signal) in all {
        running.send(signal);
        running.expect(&format!("got {name}"));
    }
}

/// The shell knows them by their numbers alone. 32 and 33 are the C library's.
#[test]
fn real_time_signals_are_passed_on_too() {
    let world = World::new();
    let numbers = ["34", "40", "64"];
    let running = world.start(&[], "a", &listener(&numbers.join(" ")));
    running.expect("ready");
    for number in numbers {
        let sent = std::process::Command::new("sh")
            .args(["-c", "kill -$0 $1", number])
            .arg(running.pid().as_raw_nonzero().to_string())
            .status();
        assert!(sent.unwrap().success());
        running.expect(&format!("got {number}"));
    }
}

#[test]
fn a_signal_while_waiting_ends_the_wait_and_leaves_the_line() {
    let world = World::new();
    let holder = world.start(&[], "a", "echo held; exec sleep 1000");
    holder.expect("held");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut waiter = world.start(&[], "a", "echo never");
        until("waiting", || world.waiters("a") == 1);
        waiter.send(signal);
        assert_eq!(waiter.signal(), signal.as_raw());
        assert_eq!(world.waiters("a"), 0);
    }
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let world = World::new();
    // As nohup does it, and a script with what it starts in the background.
    let mut command = common::fresh("sh");
    command
        .args([
            "-c",
            "trap '' HUP INT QUIT; exec \"$0\" run a -- sh -c 'echo ready; read line; echo went on'",
        ])
        .arg(common::binary())
        .env("DLOCK_URL", world.url())
        .stdin(std::process::Stdio::piped());
    let mut running = common::Running::start(command);
    running.expect("ready");
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
        running.send(signal);
    }
    drop(running.child.stdin.take());
    running.expect("went on");
    assert_eq!(running.code(), 0);
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_before_the_lock_ends() {
    let world = World::new();
    let options = ["--max-hold", "800ms", "--grace", "200ms"];
    let script = "trap '' TERM; echo $$; while :; do sleep 0.02; done";
    let mut running = world.start(&options, "a", script);
    let command = running.pid_line();
    let mut next = world.start(&["--wait", "30s"], "a", "echo mine");
    next.expect("mine");
    assert!(
        !is_running(command),
        "the lock passed on while the command ran"
    );
    assert_eq!(running.code(), 80);
    assert_eq!(next.code(), 0);
}

#[test]
fn what_the_command_leaves_behind_is_ended_before_the_lock_is_given_back() {
    let world = World::new();
    let options = ["--grace", "300ms"];
    // One that goes when it is told, one that does not.
    let script =
        "sleep 1000 & echo $!; (trap '' TERM; while :; do sleep 0.02; done) & echo $!; exit 5";
    let mut running = world.start(&options, "a", script);
    let left = [running.pid_line(), running.pid_line()];
    let next = world.start(&["--wait", "30s"], "a", "echo mine");
    next.expect("mine");
    for pid in left {
        assert!(!is_running(pid), "{pid:?} still runs without the lock");
    }
    assert_eq!(running.code(), 5);
}

#[test]
fn grandchildren_get_the_signals_too() {
    let world = World::new();
    // A trap is not inherited; and it is set before anybody can be ready.
    let script = "trap : TERM; sh -c 'trap \"echo grandchild; exit\" TERM; echo ready; while :; do sleep 0.02; done' & wait; wait; exit 4";
    let mut running = world.start(&[], "a", script);
    running.expect("ready");
    running.send(Signal::TERM);
    running.expect("grandchild");
    assert_eq!(running.code(), 4);
}

#[test]
fn when_dlock_is_killed_the_command_dies_and_the_lock_is_free() {
    let world = World::new();
    let mut running = world.start(&[], "a", "trap '' HUP TERM; echo $$; exec sleep 1000");
    let command = running.pid_line();
    running.send(Signal::KILL);
    assert!(running.wait().code().is_none());
    until("the end of the command", || !is_running(command));
    let output = world.run(&["run", "--wait", "30s", "a", "--", "true"]);
    assert_eq!(output.status.code(), Some(0));
}

/// The processes whose parent is this one.
fn children(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero().to_string();
    let numbers = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let name = entry.ok()?.file_name();
        name.to_str()?.parse::<i32>().ok()
    });
    numbers
        .filter(|number| {
            let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
            let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            rest.split_whitespace().nth(1) == Some(&parent)
        })
        .map(common::pid)
        .collect()
}

#[test]
fn when_dlock_is_killed_what_the_command_started_dies_too() {
    let world = World::new();
    let script =
        "(trap '' HUP TERM; echo ready; exec sleep 1000) & echo $!; trap '' HUP TERM; wait";
    let mut running = world.start(&[], "a", script);
    let lines = [running.line(), running.line()];
    let number = lines.iter().find_map(|line| line.parse().ok());
    let grandchild = common::pid(number.unwrap());
    let all = children(running.pid());
    assert_eq!(all.len(), 2, "the command, and who looks after its group");
    running.send(Signal::KILL);
    assert!(running.wait().code().is_none());
    until("the end of all", || {
        !is_running(grandchild) && !all.iter().any(|pid| is_running(*pid))
    });
}

#[test]
fn a_run_leaves_no_process() {
    let world = World::new();
    let mut running = world.start(&[], "a", "echo ready; exec sleep 1000");
    running.expect("ready");
    let all = children(running.pid());
    running.send(Signal::TERM);
    assert_eq!(running.signal(), 15);
    assert!(!all.into_iter().any(is_running));
}

#[test]
fn when_a_holder_is_killed_a_waiter_gets_the_lock_soon() {
    let world = World::new();
    let running = world.start(&[], "a", "echo held; exec sleep 1000");
    running.expect("held");
    let mut waiter = world.start(&[], "a", "echo mine");
    until("waiting", || world.waiters("a") == 1);
    let killed = Instant::now();
    running.send(Signal::KILL);
    waiter.expect("mine");
    assert!(killed.elapsed() < LIMIT / 10, "{:?}", killed.elapsed());
    assert_eq!(waiter.code(), 0);
}

#[test]
fn a_waiter_that_was_killed_does_not_stall_the_line() {
    let world = World::new();
    let mut holder = world.start(&[], "a", "echo held; exec sleep 1000");
    holder.expect("held");
    let dead = world.start(&[], "a", "echo never");
    until("one waits", || world.waiters("a") == 1);
    let mut next = world.start(&[], "a", "echo mine");
    until("two wait", || world.waiters("a") == 2);
    dead.send(Signal::KILL);
    holder.send(Signal::TERM);
    next.expect("mine");
    assert_eq!((holder.signal(), next.code()), (15, 0));
}

#[test]
fn a_waiter_that_is_stopped_is_passed_over_and_goes_on_later() {
    let world = World::new();
    let mut holder = world.start(&[], "a", "echo held; exec sleep 1000");
    holder.expect("held");
    let mut stopped = world.start(&[], "a", "echo after all");
    until("one waits", || world.waiters("a") == 1);
    stopped.send(Signal::STOP);
    let mut next = world.start(&[], "a", "echo mine");
    until("two wait", || world.waiters("a") == 2);
    holder.send(Signal::TERM);
    next.expect("mine");
    assert_eq!(next.code(), 0);
    stopped.send(Signal::CONT);
    stopped.expect("after all");
    assert_eq!((stopped.code(), holder.signal()), (0, 15));
}

#[test]
fn a_signal_goes_through_nested_runs() {
    let world = World::new();
    let script = format!(
        "exec '{}' run inner -- sh -c 'trap \"echo inside; exit 6\" TERM; echo ready; while :; do sleep 0.02; done'",
        common::binary()
    );
    let mut running = world.start(&[], "outer", &script);
    running.expect("ready");
    running.send(Signal::TERM);
    running.expect("inside");
    assert_eq!(running.code(), 6);
}

#[test]
fn killing_the_outer_of_two_runs_ends_everything() {
    let world = World::new();
    let script = format!(
        "exec '{}' run inner -- sh -c 'echo $$; exec sleep 1000'",
        common::binary()
    );
    let running = world.start(&[], "outer", &script);
    let command = running.pid_line();
    kill_process(running.pid(), Signal::KILL).unwrap();
    until("the end of the innermost command", || !is_running(command));
    let output = world.run(&["run", "--wait", "30s", "inner", "--", "true"]);
    assert_eq!(output.status.code(), Some(0));
}

/// A caller that waits for its own children in its own way.
#[test]
fn a_caller_that_blocks_the_signal_of_children_is_served_and_its_command_inherits_that() {
    let world = World::new();
    let mut command = std::process::Command::new("env");
    command
        .args(["--default-signal", "--block-signal=CHLD"])
        .arg(common::binary())
        .args(["run", "a", "--", "grep", "SigBlk", "/proc/self/status"])
        .env("DLOCK_URL", world.url());
    let mut running = common::Running::start(command);
    let line = running.line();
    let mask = line.split_whitespace().last().unwrap();
    let mask = u64::from_str_radix(mask, 16).unwrap();
    assert_eq!(mask, 1 << (Signal::CHILD.as_raw() - 1));
    assert_eq!(running.code(), 0);
}

/// Its parent has left the group and collects nobody.
#[test]
fn a_process_that_has_ended_and_is_never_collected_does_not_keep_the_lock() {
    let world = World::new();
    // The child ends when its parent is no shell any more, which might collect it.
    let child = "until grep -q sleep /proc/$$/comm; do sleep 0.01; done";
    let parent = format!("({child}) & echo $$; exec setsid sleep 1000");
    let script = format!("sh -c '{parent}' & read line; exit 5");
    let mut args = world.dlock(&["run", "a", "--", "sh", "-c", &script]);
    args.stdin(std::process::Stdio::piped());
    let mut running = common::Running::start(args);
    let parent = running.pid_line();
    let has_zombie = |pid: Pid| {
        children(pid)
            .first()
            .is_some_and(|child| !is_running(*child))
    };
    until("a dead child that nobody collects", || has_zombie(parent));
    drop(running.child.stdin.take());
    let code = running.code();
    let still_there = has_zombie(parent);
    kill_process(parent, Signal::KILL).unwrap();
    assert_eq!(code, 5);
    assert!(
        still_there,
        "somebody collected it: this test shows nothing"
    );
    assert_eq!(world.holders("a"), 0);
}

/// What is said has no room, and nobody dies of it.
#[test]
fn a_stderr_that_cannot_be_written_ends_nothing() {
    let world = World::new();
    for to in ["2>/dev/full", "2>&-"] {
        let mut shell = common::fresh("sh");
        shell
            .args([
                "-c",
                &format!("\"$0\" run --ttl 5s a -- sh -c 'exit 3' {to}"),
            ])
            .arg(common::binary())
            .env("DLOCK_URL", world.url());
        assert_eq!(common::finish(shell).status.code(), Some(3), "{to}");
    }
    let mut shell = common::fresh("sh");
    shell
        .args(["-c", "\"$0\" run a -- no-such-command 2>/dev/full"])
        .arg(common::binary())
        .env("DLOCK_URL", world.url());
    assert_eq!(common::finish(shell).status.code(), Some(127));
}

#[test]
fn without_proc_a_run_works_and_ignored_signals_stay_ignored() {
    let world = World::new();
    let mut command = common::fresh("unshare");
    command
        .args(["--map-root-user", "--mount", "sh", "-c"])
        .arg(
            "mount -t tmpfs none /proc; trap '' HUP; \
             exec \"$0\" run a -- sh -c 'echo ready; read line; ls /proc | wc -l; kill -TERM $$'",
        )
        .arg(common::binary())
        .env("DLOCK_URL", world.url())
        .stdin(std::process::Stdio::piped());
    let mut running = common::Running::start(command);
    running.expect("ready");
    running.send(Signal::HUP);
    drop(running.child.stdin.take());
    running.expect("0");
    assert_eq!(running.signal(), 15);
}
