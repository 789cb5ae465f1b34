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
use saphyr::{LoadableYamlNode, Yaml};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const MANIFEST: &str = include_str!("../examples/kubernetes/deployment.yaml");
const LIMIT: Duration = Duration::from_secs(60);

type Node = Yaml<'static>;

/// What stands at this place of a manifest: names of fields, and numbers of places in a list, with dots between.
fn at<'a>(manifest: &'a Node, path: &str) -> &'a Node {
    path.split('.').fold(manifest, |node, step| {
        let next = match step.parse() {
            Ok(place) => node.as_sequence_get(place),
            Err(_) => node.as_mapping_get(step),
        };
        next.unwrap_or_else(|| panic!("no {step} of {path}"))
    })
}

fn text<'a>(manifest: &'a Node, path: &str) -> &'a str {
    at(manifest, path).as_str().expect(path)
}

fn number(manifest: &Node, path: &str) -> i64 {
    at(manifest, path).as_integer().expect(path)
}

/// The deployment, and how many of its pods may be away.
fn manifests() -> [Node; 2] {
    let all = Node::load_from_str(MANIFEST).expect("YAML");
    all.try_into().expect("two manifests")
}

/// What the manifest says of a variable of the only container.
fn variable<'a>(deployment: &'a Node, name: &str) -> &'a Node {
    let all = at(deployment, "spec.template.spec.containers.0.env");
    let mut all = all.as_sequence().expect("a list").iter();
    all.find(|variable| text(variable, "name") == name)
        .expect(name)
}

#[test]
fn the_manifest_says_what_the_program_rests_on() {
    let [deployment, budget] = manifests();
    let kind = |manifest| (text(manifest, "apiVersion"), text(manifest, "kind"));
    assert_eq!(kind(&deployment), ("apps/v1", "Deployment"));
    assert_eq!(kind(&budget), ("policy/v1", "PodDisruptionBudget"));

    // All three mean the same pods.
    let labels = at(&deployment, "spec.template.metadata.labels");
    assert_eq!(text(labels, "app"), "reports");
    assert_eq!(at(&deployment, "spec.selector.matchLabels"), labels);
    assert_eq!(at(&budget, "spec.selector.matchLabels"), labels);

    // A new one stands in the queue before an old one goes, and a node can be emptied.
    let update = at(&deployment, "spec.strategy.rollingUpdate");
    assert_eq!(
        (number(update, "maxSurge"), number(update, "maxUnavailable")),
        (1, 0)
    );
    assert!(number(&budget, "spec.minAvailable") < number(&deployment, "spec.replicas"));

    let pod = at(&deployment, "spec.template.spec");
    let containers = at(pod, "containers").as_sequence().expect("a list");
    assert_eq!(containers.len(), 1);
    let resources = at(pod, "containers.0.resources");
    // A leader that is throttled for longer than its session is a leader no more.
    assert!(resources.as_mapping_get("limits").is_none());

    let name = variable(&deployment, "POD_NAME");
    assert_eq!(text(name, "valueFrom.fieldRef.fieldPath"), "metadata.name");

    // There is time to give the place away after the longest that a pod may not know that it has lost it.
    let url = text(variable(&deployment, "DLOCK_URL"), "value");
    let (_, session) = url.split_once("?session=").expect("a session");
    let session: i64 = session.trim_end_matches('s').parse().expect("seconds");
    assert!(number(pod, "terminationGracePeriodSeconds") > session);
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
    let [deployment, _] = manifests();
    let url = text(variable(&deployment, "DLOCK_URL"), "value");
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
