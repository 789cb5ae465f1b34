//! The flash sale, from several processes.

use std::process::Stdio;

use tokio::process::{Child, Command};

/// Workers of a sale in all its processes.
pub const WORKERS: usize = 50;
const PROCESSES: usize = 3;
/// The test that sells, in each of the processes; without a job it does nothing.
const TEST: &str = "one_process_of_the_sale";
const JOB: &str = "DLOCK_TEST_SALE";

/// Processes that sell. They end when this is dropped.
#[derive(Debug)]
pub struct Sale(Vec<Child>);

impl Sale {
    /// Starts this test program again, three times, with the test `one_process_of_the_sale` alone. What `job` makes for a number of
    /// workers is what [`job`](Self::job) gives there.
    pub fn start(job: impl Fn(usize) -> String) -> Self {
        let children = (0..PROCESSES).map(|n| {
            let workers = WORKERS / PROCESSES + usize::from(n < WORKERS % PROCESSES);
            Command::new(std::env::current_exe().expect("this program"))
                .args(["--exact", TEST, "--nocapture"])
                .env(JOB, job(workers))
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .expect("a process")
        });
        Self(children.collect())
    }

    /// The words of the job of this process, if it is one of a sale.
    pub fn job() -> Option<Vec<String>> {
        let job = std::env::var(JOB).ok()?;
        Some(job.split(' ').map(str::to_owned).collect())
    }

    /// The end of the job: so many were sold here.
    #[allow(clippy::print_stdout, reason = "it tells the process that started it")]
    pub fn tell(sold: usize) {
        println!("\nsold {sold}");
    }

    /// Waits for all of them, and adds up what they sold.
    pub async fn sold(self) -> usize {
        let mut sold = 0;
        for child in self.0 {
            let output = child.wait_with_output().await.expect("its output");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{text}");
            let own = text
                .lines()
                .find_map(|line| line.strip_prefix("sold ")?.parse::<usize>().ok());
            sold += own.unwrap_or_else(|| panic!("no result: {text}"));
        }
        sold
    }
}
