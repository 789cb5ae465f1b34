//! The program of the Kubernetes example, as its manifest starts it, on a real etcd.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::process::Stdio;
use std::time::Duration;

use integration_tests::EtcdServer;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const MANIFEST: &str = include_str!("../examples/kubernetes/deployment.yaml");
const LIMIT: Duration = Duration::from_secs(60);

/// The value that the manifest gives to a variable.
fn value_of(variable: &str) -> &'static str {
    let (_, rest) = MANIFEST
        .split_once(&format!("- name: {variable}\n"))
        .expect(variable);
    let line = rest.lines().next().expect("a value").trim();
    line.trim_start_matches("value: ").trim_matches('"')
}

struct Pod {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Pod {
    fn start(name: &str, url: &str) -> Self {
        let tests = std::env::current_exe().expect("the path of this test");
        let folder = tests.ancestors().nth(2).expect("target/debug");
        let mut child = Command::new(folder.join("examples/kubernetes"))
            .envs([("POD_NAME", name), ("DLOCK_URL", url)])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, lines }
    }

    /// Reads on until a line has this in it.
    async fn says(&mut self, what: &str) -> String {
        let found = async {
            while let Some(line) = self.lines.next_line().await.expect("a line") {
                if line.contains(what) {
                    return line;
                }
            }
            panic!("it ended without {what:?}");
        };
        tokio::time::timeout(LIMIT, found).await.expect(what)
    }

    /// As Kubernetes does.
    async fn terminate(&mut self) {
        let id = self.child.id().expect("it runs").to_string();
        let killed = Command::new("kill").args(["-TERM", &id]).status().await;
        assert!(killed.expect("kill").success());
        let ended = tokio::time::timeout(LIMIT, self.child.wait()).await;
        assert!(ended.expect("it ends").expect("a status").success());
    }
}

fn token(line: &str) -> u64 {
    let token = line.rsplit(' ').next().expect("a word");
    token.parse().expect("a number")
}

#[tokio::test]
async fn a_pod_that_is_told_to_end_gives_its_place_to_the_next() {
    let server = EtcdServer::start().await.expect("etcd");
    let url = value_of("DLOCK_URL");
    assert!(url.starts_with("etcd://"), "{url}");
    let parameters = url.split_once('?').map_or("", |(_, rest)| rest);
    let url = format!("{}?{parameters}", server.url());

    let mut first = Pod::start("reports-1", &url);
    let old = token(&first.says("reports-1 leads").await);
    let mut second = Pod::start("reports-2", &url);
    second.says("stands for election").await;
    first.terminate().await;
    let new = token(&second.says("reports-2 leads").await);
    assert!(new > old, "{new} after {old}");
    second.terminate().await;
}
