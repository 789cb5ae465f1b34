//! A connection of our own to a Redis, for the demo's stock and the doctor's questions.

use dlock::BackendUrl;
use redis::aio::MultiplexedConnection;
use redis::{Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

use crate::exit::{Failure, UNAVAILABLE};

/// `None` for what is not one plain server: Sentinel, Cluster and TLS.
pub(crate) async fn connect(url: &str) -> Result<Option<MultiplexedConnection>, Failure> {
    let Some(client) = client(url)? else {
        return Ok(None);
    };
    let connection = client.get_multiplexed_async_connection().await;
    connection.map(Some).map_err(|error| failed(&error))
}

/// Whether [`connect`] knows how to reach it.
pub(crate) fn reaches(url: &str) -> bool {
    matches!(client(url), Ok(Some(_)))
}

fn client(url: &str) -> Result<Option<Client>, Failure> {
    let mut url = BackendUrl::parse(url)?;
    let address = match (url.scheme(), url.hosts()) {
        ("redis", [host]) => ConnectionAddr::Tcp(host.name.clone(), host.port.unwrap_or(6379)),
        ("redis+unix", []) => ConnectionAddr::Unix(url.path().into()),
        _ => return Ok(None),
    };
    if url.take::<String>("tls")?.is_some_and(|tls| tls != "false") {
        return Ok(None);
    }
    let in_path = match address {
        ConnectionAddr::Tcp(..) => url.path().trim_start_matches('/').parse::<i64>().ok(),
        _ => None,
    };
    let db = url.take::<i64>("db")?.or(in_path).unwrap_or(0);
    let user = url
        .take::<String>("user")?
        .or(url.user().map(str::to_owned));
    let password = url
        .take::<String>("password")?
        .or(url.password().map(str::to_owned));
    let mut login = RedisConnectionInfo::default().set_db(db);
    if let Some(user) = user {
        login = login.set_username(user);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    let info = address
        .into_connection_info()
        .map_err(|error| failed(&error))?
        .set_redis_settings(login);
    Client::open(info).map(Some).map_err(|error| failed(&error))
}

pub(crate) fn failed(error: &redis::RedisError) -> Failure {
    Failure::new(UNAVAILABLE, format!("redis: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_servers_are_reached_and_others_are_not() {
        for (url, expected) in [
            ("redis://h", true),
            ("redis://u:p@h:7000/2?prefix=x", true),
            ("redis+unix:///run/r.sock?db=1", true),
            ("rediss://h", false),
            ("redis://h?tls=true", false),
            ("redis+cluster://a,b", false),
            ("file:", false),
        ] {
            assert_eq!(reaches(url), expected, "{url}");
        }
    }
}
