//! `--metrics`: the last run, as a text file that Prometheus' node exporter collects.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::exit::say;

/// What is known of a run when it is over.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    pub(crate) name: &'a str,
    /// When the lock was acquired.
    pub(crate) started: SystemTime,
    pub(crate) waited: Duration,
    /// From the acquisition to the end of the command.
    pub(crate) ran: Duration,
    /// What `dlock` exits with, as a shell would show it.
    pub(crate) code: u8,
    pub(crate) lost: bool,
}

impl Report<'_> {
    pub(crate) fn write(&self, path: &Path) {
        if let Err(error) = replace(path, &self.text()) {
            say(format_args!("cannot write {}: {error}", path.display()));
        }
    }

    fn text(&self) -> String {
        let name = self
            .name
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let values = [
            (
                "start_time_seconds",
                "When the lock was acquired.",
                started.as_secs_f64(),
            ),
            (
                "end_time_seconds",
                "When the command had ended.",
                (started + self.ran).as_secs_f64(),
            ),
            (
                "wait_seconds",
                "How long the lock was waited for.",
                self.waited.as_secs_f64(),
            ),
            (
                "duration_seconds",
                "How long the command ran.",
                self.ran.as_secs_f64(),
            ),
            (
                "exit_code",
                "What dlock run exited with.",
                f64::from(self.code),
            ),
            (
                "success",
                "1 when that was 0.",
                f64::from(u8::from(self.code == 0)),
            ),
            (
                "lock_lost",
                "1 when the lock was lost meanwhile.",
                f64::from(u8::from(self.lost)),
            ),
        ];
        let mut text = String::new();
        for (metric, help, value) in values {
            let metric = format!("dlock_run_last_{metric}");
            text.push_str(&format!("# HELP {metric} {help}\n# TYPE {metric} gauge\n"));
            text.push_str(&format!("{metric}{{name=\"{name}\"}} {value}\n"));
        }
        text
    }
}

/// Writes a file in one step: whoever reads it meanwhile sees the old text or the new one.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // The collector takes every file that ends in .prom, so this one does not.
    let mut draft = tempfile::Builder::new()
        .prefix(".dlock-")
        .suffix(".draft")
        .tempfile_in(folder)?;
    draft.write_all(text.as_bytes())?;
    // The collector runs as another user.
    let readable = std::fs::Permissions::from_mode(0o644);
    draft.as_file().set_permissions(readable)?;
    draft.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let report = Report {
            name: "a \"b\"\\",
            started: UNIX_EPOCH + Duration::from_secs(100),
            waited: Duration::from_millis(1500),
            ran: Duration::from_secs(20),
            code: 80,
            lost: true,
        };
        let text = report.text();
        for line in [
            "# TYPE dlock_run_last_wait_seconds gauge",
            "dlock_run_last_wait_seconds{name=\"a \\\"b\\\"\\\\\"} 1.5",
            "dlock_run_last_end_time_seconds{name=\"a \\\"b\\\"\\\\\"} 120",
            "dlock_run_last_exit_code{name=\"a \\\"b\\\"\\\\\"} 80",
            "dlock_run_last_success{name=\"a \\\"b\\\"\\\\\"} 0",
            "dlock_run_last_lock_lost{name=\"a \\\"b\\\"\\\\\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
