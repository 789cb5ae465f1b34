//! Where the password is.

use std::fmt;
use std::path::PathBuf;

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Password {
    Text(String),
    /// It is read for each connection.
    File(PathBuf),
}

impl Password {
    /// The password, or what is wrong with its file.
    pub(crate) fn read(&self) -> Result<String, String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
                Err(error) => Err(format!(
                    "the password file {} cannot be read: {error}",
                    path.display()
                )),
            },
        }
    }
}

/// Without the password itself.
impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}
