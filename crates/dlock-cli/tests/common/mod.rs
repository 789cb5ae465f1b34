//! The real binary, in a world of its own: a folder of locks that no other test uses.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than anything takes on a busy machine; a test that hangs ends by it.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct World {
    dir: tempfile::TempDir,
    url: String,
}

impl World {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file:{}", dir.path().join("locks").display());
        Self { dir, url }
    }

    /// With the locks in another store.
    pub(crate) fn of(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ..Self::new()
        }
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// A path for the test's own files.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn dlock<A: AsRef<std::ffi::OsStr>>(&self, args: &[A]) -> Command {
        let mut command = fresh(binary());
        command
            .args(args)
            .env("DLOCK_URL", self.url())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        finish(self.dlock(args))
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let output = self.run(args);
        let text = String::from_utf8(output.stdout).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Starts `dlock run` with a shell script as its command.
    pub(crate) fn start(&self, options: &[&str], name: &str, script: &str) -> Running {
        let mut args = vec!["run"];
        args.extend(options);
        args.extend([name, "--", "sh", "-c", script]);
        Running::start(self.dlock(&args))
    }

    pub(crate) fn holders(&self, name: &str) -> usize {
        let info = self.json(&["inspect", "--json", name]);
        info["holders"].as_array().unwrap().len()
    }

    pub(crate) fn waiters(&self, name: &str) -> usize {
        let info = self.json(&["inspect", "--json", name]);
        info["waiters"].as_array().unwrap().len()
    }
}

/// A program that ignores and blocks no signal, whatever the tests themselves were started with: by nohup, in the background of a
/// script. The program has the process id of what is started.
pub(crate) fn fresh(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(program);
    command
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(work)
}

/// For the starters of servers, which are async.
pub(crate) fn wait_for<T>(started: impl Future<Output = integration_tests::Result<T>>) -> T {
    block_on(started).unwrap()
}

/// A sale of 200 items with a lock: exact, and without a word about a stock that is not in the store.
pub(crate) fn sells_exactly(world: &World) {
    let args = "demo --json --stock 200 --workers 8 --loops 25 --processes 2";
    let args: Vec<&str> = args.split(' ').collect();
    let output = world.run(&args);
    assert_eq!(text(&output.stderr), "");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (key, expected) in [
        ("sold", 200),
        ("remaining", 0),
        ("oversold", 0),
        ("errors", 0),
    ] {
        assert_eq!(report[key], expected, "{key} in {report}");
    }
    assert_eq!(output.status.code(), Some(0));
}

/// What the doctor found: its exit code fits its findings, which come by the name of their check.
pub(crate) fn diagnosis(world: &World) -> (i32, Vec<(String, String, String)>) {
    let output = world.run(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    let word = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let findings: Vec<_> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| (word(f, "check"), word(f, "level"), word(f, "text")))
        .collect();
    let code = output.status.code().unwrap();
    let is_unsafe = findings.iter().any(|(_, level, _)| level == "unsafe");
    assert_eq!(code, i32::from(is_unsafe), "{findings:?}");
    (code, findings)
}

/// The level and the text of one check.
pub(crate) fn found<'a>(
    findings: &'a [(String, String, String)],
    check: &str,
) -> (&'a str, &'a str) {
    let finding = findings.iter().find(|(name, ..)| name == check);
    let (_, level, text) = finding.unwrap_or_else(|| panic!("{check} is not in {findings:?}"));
    (level, text)
}

pub(crate) fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_dlock")
}

/// A program under way whose lines are read as they come.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: Receiver<String>,
    complaints: Receiver<String>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = lines(child.stdout.take().unwrap());
        let complaints = lines(child.stderr.take().unwrap());
        Self {
            child,
            lines: said,
            complaints,
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        pid(i32::try_from(self.child.id()).unwrap())
    }

    /// The next line the program prints.
    pub(crate) fn line(&self) -> String {
        self.lines
            .recv_timeout(LIMIT)
            .expect("the program printed nothing")
    }

    /// Reads until nothing comes for a while, and tells how many lines did.
    pub(crate) fn wait_for_silence(&self) -> usize {
        let quiet = Duration::from_millis(300);
        std::iter::from_fn(|| self.lines.recv_timeout(quiet).ok()).count()
    }

    pub(crate) fn expect(&self, expected: &str) {
        assert_eq!(self.line(), expected);
    }

    /// The next line as a process id.
    pub(crate) fn pid_line(&self) -> Pid {
        pid(self.line().trim().parse().unwrap())
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < LIMIT, "the program does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn code(&mut self) -> i32 {
        let status = self.wait();
        status.code().unwrap_or_else(|| panic!("{status}"))
    }

    /// The signal that ended it.
    pub(crate) fn signal(&mut self) -> i32 {
        let status = self.wait();
        status.signal().unwrap_or_else(|| panic!("{status}"))
    }

    /// The next line on stderr, while the program goes on.
    pub(crate) fn stderr_line(&self) -> String {
        let line = self.complaints.recv_timeout(LIMIT);
        line.expect("the program said nothing")
    }

    /// The rest of stderr.
    pub(crate) fn stderr(&self) -> String {
        let lines = self.complaints.iter();
        lines.map(|line| line + "\n").collect()
    }
}

/// The lines of a pipe, as they come.
fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let _ = tell.send(line);
        }
    });
    lines
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn finish(command: Command) -> Output {
    let mut running = Running::start(command);
    let status = running.wait();
    let stderr = running.stderr().into_bytes();
    let lines: Vec<String> = running.lines.iter().collect();
    let mut stdout = lines.join("\n");
    if !stdout.is_empty() {
        stdout.push('\n');
    }
    Output {
        status,
        stdout: stdout.into_bytes(),
        stderr,
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The exit code and the one line on stderr.
pub(crate) fn complaint(output: &Output) -> (i32, String) {
    let stderr = text(&output.stderr);
    assert_eq!(stderr.lines().count(), 1, "one line, not {stderr:?}");
    assert!(stderr.starts_with("dlock: "), "{stderr}");
    (output.status.code().unwrap(), stderr)
}

pub(crate) fn pid(number: i32) -> Pid {
    Pid::from_raw(number).unwrap()
}

/// Whether a process runs; one that has ended and was not collected does not.
pub(crate) fn is_running(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let state = stat.ok().and_then(|stat| {
        let (_, rest) = stat.rsplit_once(')')?;
        rest.trim().chars().next()
    });
    !matches!(state, None | Some('Z' | 'X'))
}

/// Waits for something that has to come.
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < LIMIT, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn exists(path: &Path) -> bool {
    path.exists()
}
