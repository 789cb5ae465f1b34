//! The settings that every store on a network has.

/// Gives a backend's `Config` the settings that every store on a network has, with the same names and meaning: `user`, `password`, `password_file`, `credentials` and `tls`.
///
/// The type needs a field `login:` [`Login`](crate::kit::Login) and a field `tls: Option<`[`Tls`](crate::kit::Tls)`>`.
///
/// ```
/// use dlock_core::kit::{Login, Tls};
///
/// /// Where the shelf is.
/// #[derive(Debug, Default)]
/// pub struct Config { login: Login, tls: Option<Tls> }
///
/// dlock_core::kit::network_settings!(Config);
///
/// let config = Config::default().user("app").password_file("/run/secrets/shelf").tls(Tls::new().system_ca());
/// let config = Config::default().credentials(|| async {
///     let token = "short-lived"; // from your provider
///     Ok(Login::new("app", token))
/// });
/// ```
#[macro_export]
macro_rules! network_settings {
    ($Config:ident) => {
        impl $Config {
            /// The user. Default: none.
            #[must_use = "a changed configuration is returned"]
            pub fn user(mut self, user: impl ::std::convert::Into<::std::string::String>) -> Self {
                self.login.user = ::std::option::Option::Some(user.into());
                self
            }

            /// The password. Default: none. Never shown in `Debug` output or errors.
            #[must_use = "a changed configuration is returned"]
            pub fn password(
                mut self,
                password: impl ::std::convert::Into<::std::string::String>,
            ) -> Self {
                let password = $crate::kit::Password::Text(password.into());
                self.login.password = ::std::option::Option::Some(password);
                self
            }

            /// A file with the password, read whenever a connection is made, without a line break at its end: as an agent writes it that gets
            /// short-lived passwords. Default: none.
            ///
            /// A connection that is open stays as it is when the file changes. The server ends it when it no longer wants it, and the next one has the new
            /// password.
            #[must_use = "a changed configuration is returned"]
            pub fn password_file(
                mut self,
                path: impl ::std::convert::Into<::std::path::PathBuf>,
            ) -> Self {
                let password = $crate::kit::Password::File(path.into());
                self.login.password = ::std::option::Option::Some(password);
                self
            }

            /// Asks for user and password whenever a connection is made, for those that change (IAM, Vault). Default: none.
            ///
            /// It has the time that a connection has, with everything else that one needs; keep what is still good rather than fetch it each time. A
            /// connection that is open is not told of new ones: when the server ends it, the next one has them, and renewals and waiters go on there.
            #[must_use = "a changed configuration is returned"]
            pub fn credentials<F, A>(mut self, ask: F) -> Self
            where
                F: Fn() -> A + Send + Sync + 'static,
                A: ::std::future::Future<Output = $crate::Result<$crate::kit::Login>>
                    + Send
                    + 'static,
            {
                self.login = self.login.and_asked(ask);
                self
            }

            /// Encrypts the connections (feature `tls`). Default: not, except with a URL whose scheme says so.
            #[must_use = "a changed configuration is returned"]
            pub fn tls(mut self, tls: $crate::kit::Tls) -> Self {
                self.tls = ::std::option::Option::Some(tls);
                self
            }
        }
    };
}
