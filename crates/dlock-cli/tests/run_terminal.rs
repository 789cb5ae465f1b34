//! A person at a terminal: through a pseudo terminal, with a real shell and its job control.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use common::{LIMIT, World};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// A terminal with somebody who types and reads.
struct Screen {
    keyboard: File,
    shown: Arc<Mutex<String>>,
    child: Child,
}

impl Screen {
    /// Starts a program as the leader of a session that has the terminal.
    fn start(world: &World, program: &[&str]) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = || File::options().read(true).write(true).open(&path).unwrap();
        let child = common::fresh("setsid")
            .args(["--ctty", "--wait"])
            .args(program)
            .env("DLOCK_URL", world.url())
            .env("PS1", "PROMPT ")
            .env("TERM", "dumb")
            .stdin(slave())
            .stdout(slave())
            .stderr(Stdio::from(slave()))
            .spawn()
            .unwrap();
        let master = File::from(master);
        let mut eyes = master.try_clone().unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let seen = shown.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(n) = eyes.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
                seen.lock().unwrap().push_str(&text);
            }
        });
        Self {
            keyboard: master,
            shown,
            child,
        }
    }

    fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the text is shown, and forgets the screen up to there.
    fn see(&self, text: &str) {
        let start = Instant::now();
        loop {
            let mut shown = self.shown.lock().unwrap();
            if let Some(at) = shown.find(text) {
                shown.drain(..at + text.len());
                return;
            }
            assert!(
                start.elapsed() < LIMIT,
                "{text:?} is not on the screen: {shown:?}"
            );
            drop(shown);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn code(&mut self) -> i32 {
        let status = self.end();
        status.code().unwrap_or_else(|| panic!("{status}"))
    }

    /// The signal that ended it.
    fn signal(&mut self) -> i32 {
        let status = self.end();
        status.signal().unwrap_or_else(|| panic!("{status}"))
    }

    fn end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                start.elapsed() < LIMIT,
                "it does not end: {:?}",
                self.shown.lock().unwrap()
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const DLOCK: &str = env!("CARGO_BIN_EXE_dlock");

#[test]
fn the_command_reads_the_terminal() {
    let world = World::new();
    let script = "read line; test -t 0 && echo \"got <$line>\"";
    let mut screen = Screen::start(&world, &[DLOCK, "run", "a", "--", "sh", "-c", script]);
    screen.type_in("hello\n");
    screen.see("got <hello>");
    assert_eq!(screen.code(), 0);
}

#[test]
fn ctrl_c_reaches_the_command_once_and_only_the_command() {
    let world = World::new();
    let script = "trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.02; done";
    let mut screen = Screen::start(&world, &[DLOCK, "run", "a", "--", "sh", "-c", script]);
    screen.see("ready");
    screen.type_in("\x03");
    screen.see("interrupted");
    assert_eq!(screen.code(), 3);
}

#[test]
fn ctrl_c_while_waiting_ends_the_wait() {
    let world = World::new();
    let holder = world.start(&[], "a", "echo held; exec sleep 1000");
    holder.expect("held");
    let mut screen = Screen::start(&world, &[DLOCK, "run", "a", "--", "true"]);
    screen.see("waiting for \"a\", held by ");
    screen.type_in("\x03");
    assert_eq!(screen.signal(), 2);
}

/// The terminal tells only the command; the shells around it must hear of it as well.
#[test]
fn ctrl_c_in_a_script_stops_the_script() {
    for shell in ["sh", "bash"] {
        for script in [
            "D run a -- sh -c 'echo ready; exec sleep 1000'; echo went on",
            "while :; do D run a -- sh -c 'echo ready; exec sleep 1000'; echo went on; done",
            "D run a -- D run b -- sh -c 'echo ready; exec sleep 1000'; echo went on",
            "D run a -- sh -c 'echo ready; exec sleep 1000' | cat; echo went on",
        ] {
            let world = World::new();
            let script = script.replace('D', DLOCK);
            let mut screen = Screen::start(&world, &[shell, "-c", &script]);
            screen.see("ready");
            screen.type_in("\x03");
            assert_eq!(screen.signal(), 2, "{shell}: {script}");
            let shown = screen.shown.lock().unwrap().clone();
            assert!(!shown.contains("went on"), "{shell}: {script}: {shown}");
        }
    }
}

/// As bash does it: whoever handles Ctrl-C and ends in order is not taken for interrupted.
#[test]
fn ctrl_c_that_the_command_handles_lets_the_script_go_on() {
    let world = World::new();
    let command = "trap 'exit 3' INT; echo ready; while :; do sleep 0.02; done";
    let script = format!("'{DLOCK}' run a -- sh -c \"{command}\"; echo code=$?");
    let mut screen = Screen::start(&world, &["bash", "-c", &script]);
    screen.see("ready");
    screen.type_in("\x03");
    screen.see("code=3");
    assert_eq!(screen.code(), 0);
}

#[test]
fn ctrl_c_in_a_loop_of_an_interactive_shell_stops_the_loop() {
    let world = World::new();
    let mut screen = Screen::start(&world, &["bash", "--norc", "--noprofile", "-i"]);
    screen.see("PROMPT ");
    screen.type_in(&format!(
        "while :; do '{DLOCK}' run a -- sh -c 'echo re''ady; exec sleep 1000'; done; echo aft''er\n"
    ));
    screen.see("ready");
    screen.type_in("\x03");
    screen.see("PROMPT ");
    screen.type_in("echo code=$?\n");
    screen.see("code=130");
    screen.type_in("exit 0\n");
    assert_eq!(screen.code(), 0);
}

#[test]
fn the_terminal_comes_back_to_a_script_without_job_control() {
    let world = World::new();
    let script = format!("'{DLOCK}' run a -- true; read line; echo \"back <$line>\"");
    let mut screen = Screen::start(&world, &["sh", "-c", &script]);
    screen.type_in("again\n");
    screen.see("back <again>");
    assert_eq!(screen.code(), 0);
}

#[test]
fn ctrl_z_and_fg_work_as_without_dlock() {
    let world = World::new();
    let mut screen = Screen::start(&world, &["bash", "--norc", "--noprofile", "-i"]);
    screen.see("PROMPT ");
    screen.type_in(&format!(
        "'{DLOCK}' run a -- sh -c 'echo re''ady; exec cat'\n"
    ));
    screen.see("ready");
    screen.type_in("\x1a");
    screen.see("Stopped");
    screen.see("PROMPT ");
    // The shell has the terminal, and the lock is still held.
    screen.type_in("echo $((40+2))\n");
    screen.see("42");
    assert_eq!(world.holders("a"), 1);
    screen.type_in("fg\n");
    screen.see("run a");
    screen.type_in("typed\n");
    // Once as the terminal's echo, once from cat.
    screen.see("typed");
    screen.see("typed");
    screen.type_in("\x04");
    screen.see("PROMPT ");
    screen.type_in("echo code=$?\n");
    screen.see("code=0");
    assert_eq!(world.holders("a"), 0);
    screen.type_in("exit 0\n");
    assert_eq!(screen.code(), 0);
}

#[test]
fn a_command_in_the_background_that_reads_is_stopped_and_can_be_fetched() {
    let world = World::new();
    let mut screen = Screen::start(&world, &["bash", "--norc", "--noprofile", "-i"]);
    screen.see("PROMPT ");
    screen.type_in(&format!(
        "'{DLOCK}' run a -- sh -c 'read line; echo \"got <$line>\"' &\n"
    ));
    screen.see("PROMPT ");
    common::until("holding", || world.holders("a") == 1);
    screen.type_in("wait; jobs\n");
    screen.see("Stopped");
    screen.type_in("fg\n");
    screen.see("run a");
    screen.type_in("fetched\n");
    screen.see("got <fetched>");
    screen.type_in("exit 0\n");
    assert_eq!(screen.code(), 0);
}

#[test]
fn without_a_shell_that_could_continue_it_ctrl_z_does_not_stop_the_command() {
    let world = World::new();
    let script = "echo ready; read line; echo \"got <$line>\"";
    let mut screen = Screen::start(&world, &[DLOCK, "run", "a", "--", "sh", "-c", script]);
    screen.see("ready");
    screen.type_in("\x1a");
    screen.type_in("on\n");
    screen.see("got <on>");
    assert_eq!(screen.code(), 0);
}
