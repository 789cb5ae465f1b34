//! Who a client is: a user and a password that are given once, read from a file, or asked for.

use std::str::FromStr;

use dlock_core::kit::Login;
use dlock_core::{Error, Result};

use super::Config;

/// How a client shows who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Auth {
    /// ZooKeeper's own: it accepts any pair, and a wrong one shows as a missing permission on the nodes of others.
    #[default]
    Digest,
    /// SASL with DIGEST-MD5, as one of the users whom the servers know (`DigestLoginModule` in their JAAS file). A wrong password is refused at
    /// connect, and the server has to show that it knows the right one.
    Sasl,
}

impl FromStr for Auth {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "digest" => Ok(Self::Digest),
            "sasl" => Ok(Self::Sasl),
            _ => Err("it is digest or sasl"),
        }
    }
}

/// A login that is there, and how it is shown.
#[derive(Debug, Clone)]
pub(crate) struct ShownLogin {
    login: Login,
    pub(crate) auth: Auth,
}

impl ShownLogin {
    /// User and password for a connection that is made now.
    pub(crate) async fn now(&self) -> Result<(String, String)> {
        let (user, password) = self.login.now().await?;
        let user = user.unwrap_or_default();
        check_user(&user, self.auth)?;
        Ok((user, password.unwrap_or_default()))
    }
}

fn check_user(user: &str, auth: Auth) -> Result<()> {
    if auth == Auth::Digest && user.contains(':') {
        return Err(Error::invalid(
            "the user has a colon, which digest authentication cannot send",
        ));
    }
    Ok(())
}

impl Config {
    /// How user and password are shown to the server. Default: [`Auth::Digest`], with which another password is another user, who may use other nodes.
    pub fn auth(mut self, auth: Auth) -> Self {
        self.auth = auth;
        self
    }

    /// What can be found out about the login without a connection.
    pub(super) fn check_login(&self) -> Result<()> {
        if self.auth == Auth::Sasl && !self.login.is_some() {
            return Err(Error::invalid(
                "SASL is asked for, but there is no user: give user:password",
            ));
        }
        self.login.both_or_none()?;
        self.login.check()?;
        check_user(self.login.user.as_deref().unwrap_or_default(), self.auth)
    }

    /// Who we are, and how it is shown.
    pub(crate) fn shown_login(&self) -> Option<ShownLogin> {
        self.login.is_some().then(|| ShownLogin {
            login: self.login.clone(),
            auth: self.auth,
        })
    }
}
