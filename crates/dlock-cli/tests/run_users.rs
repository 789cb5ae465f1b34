//! Several users: commands that become another one, as `sudo` does it, and a folder that a group shares. Needs to be root, or to
//! become it by sudo without being asked, as the set-up of the servers does.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use std::path::Path;
use std::process::Command;

use common::{Running, World, is_running, text, until};
use rustix::process::{Pid, Signal, geteuid};

/// Nobody, and a group of that name.
const OTHER: &str = "65534";

fn as_root(program: &str) -> Command {
    if geteuid().is_root() {
        return common::fresh(program);
    }
    let mut command = common::fresh("sudo");
    command.args(["-n", "-E", program]);
    command
}

fn root_does(program: &str, args: &[&str]) {
    let output = as_root(program).args(args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// A world that another user can enter, with the programs they need.
struct Town {
    world: World,
}

impl Town {
    fn new() -> Self {
        let town = Self {
            world: World::new(),
        };
        let dlock = town.path("dlock");
        // The build's folder may be closed to others.
        std::fs::copy(common::binary(), &dlock).unwrap();
        root_does("chmod", &["755", &town.path(""), &dlock]);
        // It becomes root for whoever calls it, in all three ways, as sudo does.
        let setpriv = which("setpriv");
        root_does(
            "install",
            &["-m", "4755", "-o", "root", &setpriv, &town.path("become")],
        );
        town
    }

    fn path(&self, name: &str) -> String {
        self.world.path(name).to_str().unwrap().to_owned()
    }

    /// `dlock`, as a user who is not root.
    fn dlock(&self, url: &str, args: &[&str]) -> Running {
        let mut command = as_root("setpriv");
        command
            .args(["--reuid", OTHER, "--regid", OTHER, "--clear-groups", "env"])
            .arg(format!("DLOCK_URL={url}"))
            .arg(self.path("dlock"))
            .args(args);
        Running::start(command)
    }

    /// A folder of that user's own.
    fn url(&self) -> String {
        let folder = self.path("theirs");
        root_does(
            "install",
            &["-d", "-m", "700", "-o", OTHER, "-g", OTHER, &folder],
        );
        format!("file:{folder}")
    }

    /// A shell line that root runs, as a command of the other user's.
    fn by_root(&self, line: &str) -> String {
        let become_root = self.path("become");
        format!("exec {become_root} --reuid 0 --regid 0 --clear-groups sh -c '{line}'")
    }
}

fn which(program: &str) -> String {
    let output = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .unwrap();
    text(&output.stdout).trim().to_owned()
}

fn kill(pid: Pid) {
    root_does("kill", &["-KILL", &pid.as_raw_nonzero().to_string()]);
    until("its end", || !is_running(pid));
}

/// What is left runs as root, and the lock waits for it instead of taking it for gone (C1).
#[test]
fn what_runs_as_another_user_keeps_the_lock_until_it_has_ended() {
    let town = Town::new();
    let url = town.url();
    // The command itself ends; what it has started does not, and cannot be signalled.
    let script = format!("({}) & read line", town.by_root("echo $$; exec sleep 1000"));
    let options = ["run", "--grace", "10ms", "a", "--", "sh", "-c", &script];
    let mut running = {
        let mut command = as_root("setpriv");
        command
            .args(["--reuid", OTHER, "--regid", OTHER, "--clear-groups", "env"])
            .arg(format!("DLOCK_URL={url}"))
            .arg(town.path("dlock"))
            .args(options)
            .stdin(std::process::Stdio::piped());
        Running::start(command)
    };
    let root = running.pid_line();
    drop(running.child.stdin.take());
    let said = running.stderr_line();
    assert!(said.contains("runs as another user"), "{said}");
    assert!(said.contains("the lock is kept until"), "{said}");
    assert!(is_running(root));
    let mut second = town.dlock(&url, &["run", "--no-wait", "a", "--", "true"]);
    assert_eq!(second.code(), 75, "a second holder");
    kill(root);
    // How the command itself ended: read found the end of its input.
    assert_eq!(running.code(), 1);
    let mut next = town.dlock(&url, &["run", "--no-wait", "a", "--", "true"]);
    assert_eq!(next.code(), 0);
}

#[test]
fn a_signal_that_cannot_be_passed_on_is_told_and_the_lock_is_kept() {
    let town = Town::new();
    let url = town.url();
    let script = town.by_root("echo $$; exec sleep 1000");
    let mut running = town.dlock(&url, &["run", "a", "--", "sh", "-c", &script]);
    let root = running.pid_line();
    root_does(
        "kill",
        &["-TERM", &running.pid().as_raw_nonzero().to_string()],
    );
    let said = running.stderr_line();
    assert!(said.contains("signal 15 cannot be passed on"), "{said}");
    let mut second = town.dlock(&url, &["run", "--no-wait", "a", "--", "true"]);
    assert_eq!(second.code(), 75, "a second holder");
    kill(root);
    assert_eq!(running.signal(), Signal::KILL.as_raw());
}

/// Nobody can do anything about it; but it is said.
#[test]
fn a_killed_dlock_tells_what_it_could_not_end() {
    let town = Town::new();
    let script = town.by_root("echo $$; exec sleep 1000");
    let running = town.dlock(&town.url(), &["run", "a", "--", "sh", "-c", &script]);
    let root = running.pid_line();
    root_does(
        "kill",
        &["-KILL", &running.pid().as_raw_nonzero().to_string()],
    );
    let said = running.stderr_line();
    assert!(said.contains("run as another user"), "{said}");
    assert!(said.contains("without the lock"), "{said}");
    assert!(is_running(root));
    kill(root);
}

#[test]
fn members_of_a_group_share_a_folder_and_exclude_each_other() {
    let town = Town::new();
    let folder = town.path("shared");
    root_does("install", &["-d", "-m", "2770", "-g", OTHER, &folder]);
    let url = format!("file:{folder}?access=group");
    // The strictest umask that people have.
    let mut command = as_root("sh");
    command
        .args([
            "-c",
            "umask 077; exec \"$0\" run a -- sh -c 'echo in; read line'",
        ])
        .arg(common::binary())
        .env("DLOCK_URL", &url)
        .stdin(std::process::Stdio::piped());
    let mut first = Running::start(command);
    first.expect("in");
    let mut second = town.dlock(&url, &["run", "--no-wait", "a", "--", "true"]);
    assert_eq!(second.code(), 75, "{}", second.stderr());
    let mut third = town.dlock(&url, &["run", "a", "--", "echo", "mine"]);
    until("waiting", || waiters(&url) == 1);
    drop(first.child.stdin.take());
    third.expect("mine");
    assert_eq!((first.code(), third.code()), (1, 0));
    // And the other way round: what the other user made is open to us.
    let mut holder = town.dlock(
        &url,
        &["run", "b", "--", "sh", "-c", "echo in; exec sleep 1000"],
    );
    holder.expect("in");
    let mut command = as_root(common::binary());
    command
        .args(["run", "--no-wait", "b", "--", "true"])
        .env("DLOCK_URL", &url);
    assert_eq!(common::finish(command).status.code(), Some(75));
    root_does(
        "kill",
        &["-TERM", &holder.pid().as_raw_nonzero().to_string()],
    );
    assert_eq!(holder.signal(), 15);
    // Without the setting it is refused: the group could change the files.
    let mut refused = town.dlock(&format!("file:{folder}"), &["ls"]);
    assert_eq!(refused.code(), 69);
    assert!(refused.stderr().contains("access=group"));
    assert!(Path::new(&folder).join("locks").exists());
}

/// Cron, a service and a login shell of one user differ in their environment, and lock each other out all the same.
#[test]
fn without_a_url_a_user_has_one_folder_whatever_the_environment() {
    let town = Town::new();
    // A user whom no list of accounts names, so that its folder is nobody else's.
    let user = (1_500_000_000 + std::process::id()).to_string();
    let folder = format!("/tmp/dlock-{user}");
    assert!(!Path::new(&folder).exists());
    let start = |environment: &[&str], args: &[&str]| {
        let mut command = as_root("setpriv");
        command
            .args([
                "--reuid",
                &user,
                "--regid",
                OTHER,
                "--clear-groups",
                "env",
                "-i",
            ])
            .arg("PATH=/usr/bin:/bin")
            .args(environment)
            .arg(town.path("dlock"))
            .args(args);
        Running::start(command)
    };
    let login = [
        "HOME=/tmp",
        "USER=me",
        "XDG_STATE_HOME=/tmp/state",
        "XDG_RUNTIME_DIR=/tmp/run",
    ];
    let mut holder = start(
        &login,
        &["run", "a", "--", "sh", "-c", "echo in; exec sleep 1000"],
    );
    holder.expect("in");
    for environment in [
        &[][..],
        &["HOME=/"],
        &["HOME=/nowhere", "STATE_DIRECTORY=/tmp/x"],
    ] {
        let mut second = start(environment, &["run", "--no-wait", "a", "--", "true"]);
        assert_eq!(second.code(), 75, "{environment:?}: {}", second.stderr());
    }
    root_does(
        "kill",
        &["-TERM", &holder.pid().as_raw_nonzero().to_string()],
    );
    assert_eq!(holder.signal(), 15);
    let mut next = start(&[], &["run", "--no-wait", "a", "--", "true"]);
    assert_eq!(next.code(), 0);
    root_does("rm", &["-rf", &folder]);
}

fn waiters(url: &str) -> usize {
    let mut command = as_root(common::binary());
    command
        .args(["inspect", "--json", "a"])
        .env("DLOCK_URL", url);
    let shown: serde_json::Value = serde_json::from_slice(&common::finish(command).stdout).unwrap();
    shown["waiters"].as_array().unwrap().len()
}
