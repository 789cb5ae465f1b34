//! `dlock ls`: the locks that are held.

use dlocks::Settings;
use serde_json::Value;

use crate::connect::{Store, leave};
use crate::exit::{ExitResult, say};
use crate::show;

pub(crate) async fn run(store: &Store, prefix: &str) -> ExitResult {
    let locks = store.connect(Settings::new()).await?;
    let found = locks.list(prefix).await?;
    if store.json {
        let all: Vec<Value> = found.iter().map(show::lock_as_json).collect();
        show::print(&Value::from(all))?;
    } else if found.is_empty() {
        say(format_args!("no lock is held in {}", locks.identity()));
    } else {
        show::print_table(&show::locks(&found))?;
    }
    leave(&locks).await;
    Ok(0)
}
