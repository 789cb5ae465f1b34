//! Mode `advisory`: one statement takes the lock and its mark ([`take`](super::take)), and one clears the mark and gives the lock back, with the row of the mark
//! locked until the change is committed: the next one waits for that row.

use dlock_core::Name;

use super::mark::HoldKey;
use crate::connect::{Arg, Connection};
use crate::error::Trouble;

/// The statements of the short way.
#[derive(Debug)]
pub(super) struct ShortWay {
    pub(super) take: String,
    release: String,
    /// Of a hold that was waited for.
    release_place: String,
}

impl ShortWay {
    pub(super) fn new(fill_in: impl Fn(&str) -> String) -> Self {
        let release = fill_in(include_str!("../sql/advisory_release.sql"));
        Self {
            take: fill_in(include_str!("../sql/advisory_take.sql")),
            release_place: release.replace("{leave}", " + COALESCE(RELEASE_LOCK(?), 0)"),
            release: release.replace("{leave}", ""),
        }
    }

    pub(super) fn statements(&self) -> [&String; 3] {
        [&self.take, &self.release, &self.release_place]
    }

    /// Clears the mark, and gives the lock and the place back; tells how many marks it has cleared.
    pub(super) async fn release(
        &self,
        connection: &mut Connection,
        name: &Name,
        key: HoldKey,
        lock: &str,
        place: Option<&str>,
    ) -> Result<u64, Trouble> {
        let name = Arg::from(name.as_str());
        let owner = Arg::from(key.attempt.as_uuid().as_bytes().as_slice());
        let (lock, token) = (Arg::from(lock), Arg::from(key.fence));
        let answer = match place {
            None => {
                let args = [lock, name, owner, token];
                connection.exec(&self.release, &args).await?
            }
            Some(place) => {
                let args = [lock, place.into(), name, owner, token];
                connection.exec(&self.release_place, &args).await?
            }
        };
        Ok(answer.affected)
    }
}
