//! The scripts. Those of locks with a queue are put together from the parts in `scripts/parts`; the whole ones are checked in beside them,
//! so that a line in an error of the server is a line in a file, and a test says when one is not up to date.

/// One Lua script and the hash by which the server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    /// For people: what it does.
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    pub(crate) hash: String,
}

impl Script {
    pub(crate) fn new(name: &'static str, source: &'static str) -> Self {
        let hash = crate::connect::hash_of(source);
        Self { name, source, hash }
    }

    pub(crate) fn many() -> Self {
        Self::new("many", include_str!("scripts/many.lua"))
    }

    /// For a node of a quorum.
    pub(crate) fn raise() -> Self {
        Self::new("raise", include_str!("scripts/raise.lua"))
    }

    /// For a node of a quorum.
    pub(crate) fn give_way() -> Self {
        Self::new("give way", include_str!("scripts/give_way.lua"))
    }
}

/// Every script of a client.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire: Script,
    pub(crate) release: Script,
    pub(crate) abandon: Script,
    pub(crate) renew: Script,
    pub(crate) downgrade: Script,
    pub(crate) break_lock: Script,
    pub(crate) inspect: Script,
    pub(crate) listen: Script,
    pub(crate) fenced_set: Script,
}

impl Scripts {
    /// The scripts of locks with a queue.
    pub(crate) fn queued() -> Self {
        Self {
            acquire: Script::new("acquire", include_str!("scripts/acquire.lua")),
            release: Script::new("release", include_str!("scripts/release.lua")),
            abandon: Script::new("abandon", include_str!("scripts/abandon.lua")),
            renew: Script::new("renew", include_str!("scripts/renew.lua")),
            downgrade: Script::new("downgrade", include_str!("scripts/downgrade.lua")),
            break_lock: Script::new("break", include_str!("scripts/break.lua")),
            inspect: Script::new("inspect", include_str!("scripts/inspect.lua")),
            listen: Script::new("listen", include_str!("scripts/listen.lua")),
            fenced_set: fenced_set(),
        }
    }

    /// The scripts of plain locks.
    pub(crate) fn plain() -> Self {
        let release = || Script::new("plain release", include_str!("scripts/plain_release.lua"));
        Self {
            acquire: Script::new("plain acquire", include_str!("scripts/plain_acquire.lua")),
            release: release(),
            abandon: release(),
            renew: Script::new("plain renew", include_str!("scripts/plain_renew.lua")),
            downgrade: Script::new("nothing", "return 0"),
            break_lock: Script::new("plain break", "return redis.call('DEL', KEYS[1])"),
            inspect: Script::new("nothing", "return 0"),
            listen: Script::new("nothing", "return 0"),
            fenced_set: fenced_set(),
        }
    }
}

fn fenced_set() -> Script {
    Script::new("fenced set", crate::FENCED_SET)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Each whole script and its parts. `look` is what a short cut has read before `lock.lua` begins.
    const MADE_OF: [(&str, &[&str]); 11] = [
        ("acquire", &["value", "acquire", "lock", "wait"]),
        ("release", &["value", "release", "lock", "pass_on"]),
        ("abandon", &["value", "look", "lock", "abandon"]),
        ("break", &["value", "look", "lock", "break"]),
        ("downgrade", &["value", "look", "lock", "downgrade"]),
        ("renew", &["value", "renew"]),
        ("inspect", &["value", "inspect"]),
        ("listen", &["value", "listen"]),
        ("raise", &["value", "raise"]),
        ("give_way", &["value", "look", "lock", "give_way", "wait"]),
        ("many", &["value", "many"]),
    ];

    /// With `DLOCK_WRITE_SCRIPTS` set, writes them.
    #[test]
    fn the_whole_scripts_are_up_to_date() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/scripts");
        let read = |path: &Path| std::fs::read_to_string(path).expect("a script");
        for (name, parts) in MADE_OF {
            let mut whole = format!(
                "-- Made of parts/{}.lua by the test in script.rs (DLOCK_WRITE_SCRIPTS=1 writes it): change those.\n",
                parts.join(".lua, ")
            );
            for part in parts {
                whole.push('\n');
                whole.push_str(&read(&folder.join("parts").join(format!("{part}.lua"))));
            }
            let path = folder.join(format!("{name}.lua"));
            if std::env::var_os("DLOCK_WRITE_SCRIPTS").is_some() {
                std::fs::write(&path, &whole).expect("written");
            }
            assert!(read(&path) == whole, "{name}.lua is not up to date");
        }
    }
}
