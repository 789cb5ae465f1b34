//! The scripts, put together from their parts.

/// One Lua script and the hash by which the server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    /// For people: what it does.
    pub(crate) name: &'static str,
    pub(crate) source: String,
    pub(crate) hash: String,
}

impl Script {
    pub(crate) fn new(name: &'static str, parts: &[&str]) -> Self {
        let source = parts.join("\n");
        let hash = crate::connect::hash_of(&source);
        Self { name, source, hash }
    }
}

/// What a short cut has read before `lock.lua` begins.
const NO_SHORT_CUT: &str = "local v = redis.call('GET', KEYS[1])";
const LOCK: &str = include_str!("scripts/lock.lua");

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
    pub(crate) fenced_set: Script,
}

impl Scripts {
    /// The scripts of locks with a queue.
    pub(crate) fn queued() -> Self {
        Self {
            acquire: Script::new(
                "acquire",
                &[
                    include_str!("scripts/acquire.lua"),
                    LOCK,
                    include_str!("scripts/wait.lua"),
                ],
            ),
            release: Script::new(
                "release",
                &[
                    include_str!("scripts/release.lua"),
                    LOCK,
                    include_str!("scripts/pass_on.lua"),
                ],
            ),
            abandon: Script::new(
                "abandon",
                &[NO_SHORT_CUT, LOCK, include_str!("scripts/abandon.lua")],
            ),
            renew: Script::new("renew", &[include_str!("scripts/renew.lua")]),
            downgrade: Script::new(
                "downgrade",
                &[NO_SHORT_CUT, LOCK, include_str!("scripts/downgrade.lua")],
            ),
            break_lock: Script::new(
                "break",
                &[NO_SHORT_CUT, LOCK, include_str!("scripts/break.lua")],
            ),
            inspect: Script::new("inspect", &[include_str!("scripts/inspect.lua")]),
            fenced_set: fenced_set(),
        }
    }

    /// The scripts of plain locks.
    pub(crate) fn plain() -> Self {
        let release = || {
            Script::new(
                "plain release",
                &[include_str!("scripts/plain_release.lua")],
            )
        };
        Self {
            acquire: Script::new(
                "plain acquire",
                &[include_str!("scripts/plain_acquire.lua")],
            ),
            release: release(),
            abandon: release(),
            renew: Script::new("plain renew", &[include_str!("scripts/plain_renew.lua")]),
            downgrade: Script::new("nothing", &["return 0"]),
            break_lock: Script::new("plain break", &["return redis.call('DEL', KEYS[1])"]),
            inspect: Script::new("nothing", &["return 0"]),
            fenced_set: fenced_set(),
        }
    }
}

fn fenced_set() -> Script {
    Script::new("fenced set", &[crate::FENCED_SET])
}
