//! Who holds and who waits.

use std::time::{Duration, UNIX_EPOCH};

use dlock_core::{FencingToken, HolderInfo, LockInfo, Mode, Name, Result, WaiterInfo};
use futures::{StreamExt, stream};

use crate::acquire::unexpected_reply;
use crate::connect::{RedisReply, ScriptCall};
use crate::store::Store;

/// How many locks `list` asks about at once.
const AT_ONCE: usize = 64;

impl Store {
    pub(crate) async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        let key = self.keys.lock(name);
        let call = ScriptCall::on(&self.scripts.inspect, &key);
        let answer = self.link.call(&call, self.config.answer_timeout).await?.0;
        read(name, answer).ok_or_else(|| unexpected_reply("to a look in an unknown form").into())
    }

    /// `SCAN` finds the keys, also of locks that nobody holds any more; each is then looked at.
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let keys = self.link.scan(&self.keys.pattern(prefix)).await?;
        let mut looks: Vec<_> = Vec::with_capacity(keys.len());
        for key in &keys {
            looks.extend(self.keys.name_of(key).map(|name| self.inspect_owned(name)));
        }
        let mut looks = stream::iter(looks).buffer_unordered(AT_ONCE);
        let mut found = Vec::new();
        while let Some(info) = looks.next().await {
            found.extend(Some(info?).filter(LockInfo::is_locked));
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    async fn inspect_owned(&self, name: Name) -> Result<LockInfo> {
        self.inspect(&name).await
    }
}

fn read(name: &Name, answer: RedisReply) -> Option<LockInfo> {
    let mut info = LockInfo::new(name.clone());
    let [holders, waiters] = list::<2>(answer)?;
    for holder in items(holders)? {
        let [owner, mode, token, left, label] = list::<5>(holder)?;
        let mut known = HolderInfo::new(text(owner)?, mode_of(&text(mode)?)?);
        known.label = text(label)?;
        // A token is the time of the grant in microseconds, unless the server's clock had gone back.
        let token: u64 = text(token)?.parse().ok()?;
        if token > 0 {
            known.token = Some(FencingToken::new(token));
            known.since = UNIX_EPOCH.checked_add(Duration::from_micros(token));
        }
        known.expires_in = match left {
            RedisReply::Number(left) => Some(Duration::from_millis(left.try_into().ok()?)),
            _ => None,
        };
        info.holders.push(known);
    }
    for waiter in items(waiters)? {
        let [owner, mode, label] = list::<3>(waiter)?;
        let mut known = WaiterInfo::new(text(owner)?, mode_of(&text(mode)?)?);
        known.label = text(label)?;
        info.waiters.push(known);
    }
    Some(info)
}

fn items(answer: RedisReply) -> Option<Vec<RedisReply>> {
    match answer {
        RedisReply::List(items) => Some(items),
        _ => None,
    }
}

fn list<const N: usize>(answer: RedisReply) -> Option<[RedisReply; N]> {
    items(answer)?.try_into().ok()
}

fn text(answer: RedisReply) -> Option<String> {
    match answer {
        RedisReply::Text(text) => Some(text),
        _ => None,
    }
}

fn mode_of(text: &str) -> Option<Mode> {
    match text {
        "X" => Some(Mode::Exclusive),
        "S" => Some(Mode::Shared),
        permit => {
            // What a waiter asked for may be an L: see lock.lua.
            let limit = permit.strip_prefix(['P', 'L'])?.parse().ok()?;
            Some(Mode::Permit { limit })
        }
    }
}
