//! Finds the programs of the servers, and runs those that end by themselves.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Doing;
use crate::{Error, Result};

/// Replaces the search path for server programs when set.
const SEARCH_PATH: &str = "DLOCK_TEST_PATH";

/// Where Debian puts servers; the `PATH` of a plain user often lacks it.
const SYSTEM_FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// Names the servers that tests must do without, as in `DLOCK_TEST_WITHOUT=mysql,valkey`.
const LEFT_OUT: &str = "DLOCK_TEST_WITHOUT";

/// Whether nobody has said that this server is known to be missing.
pub(crate) fn is_tested(server: &str) -> bool {
    let left_out = env::var(LEFT_OUT).unwrap_or_default();
    !left_out.split(',').any(|name| name == server)
}

/// The folder into which a script of `ci` has unpacked a server, unless `variable` names another one.
pub(crate) fn unpacked(server: &str, variable: &str) -> PathBuf {
    if let Some(folder) = env::var_os(variable) {
        return folder.into();
    }
    let cache = env::var_os("XDG_CACHE_HOME").map_or_else(
        || PathBuf::from(env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache"),
        PathBuf::from,
    );
    cache.join("dlock-ci").join(server)
}

/// The full path of a program, which `package` brings on Debian.
pub(crate) fn find(program: &str, package: &'static str) -> Result<PathBuf> {
    let path = env::var(SEARCH_PATH)
        .unwrap_or_else(|_| format!("{}:{SYSTEM_FOLDERS}", env::var("PATH").unwrap_or_default()));
    find_in(&path, program, package)
}

/// A file that must exist, which `package` brings on Debian.
pub(crate) fn need_file(file: &str, package: &'static str) -> Result<PathBuf> {
    if Path::new(file).is_file() {
        return Ok(PathBuf::from(file));
    }
    Err(Error::NotInstalled {
        what: file.to_owned(),
        package,
    })
}

fn find_in(path: &str, program: &str, package: &'static str) -> Result<PathBuf> {
    env::split_paths(path)
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| Error::NotInstalled {
            what: program.to_owned(),
            package,
        })
}

/// Runs a client program to its end and returns what it printed.
pub(crate) async fn output_of(mut command: Command) -> Result<String> {
    tokio::task::spawn_blocking(move || run(&mut command))
        .await
        .expect("running a program does not panic")
}

/// The same, blocking.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().doing(format!("run {name}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(Error::answer(
        name,
        text(&output.stderr) + &text(&output.stdout),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_says_what_to_install() {
        let error = find_in("/nowhere:/nor/here", "redis-server", "redis-server").unwrap_err();
        assert_eq!(
            error.to_string(),
            "redis-server was not found: run ci/setup or `apt-get install redis-server`"
        );
    }

    #[test]
    fn the_first_folder_with_the_program_wins() {
        assert_eq!(
            find_in("/nowhere:/bin:/usr/bin", "sh", "dash").unwrap(),
            Path::new("/bin/sh")
        );
    }

    #[test]
    fn a_missing_file_says_what_to_install() {
        let error = need_file("/nowhere/zookeeper.jar", "zookeeper").unwrap_err();
        assert!(
            error.to_string().ends_with("`apt-get install zookeeper`"),
            "{error}"
        );
    }
}
