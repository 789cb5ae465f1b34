//! Who may use the nodes of a client.

use std::str::FromStr;

/// Who may read and change the nodes that this client creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// Everybody who reaches the server. The default without a user.
    Open,
    /// Those with the same user and password. The default with a user.
    Creator,
    /// Those with the same user and password; everybody else may look (`inspect`, `list`).
    CreatorAndReaders,
}

impl FromStr for Access {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "open" => Ok(Self::Open),
            "creator" => Ok(Self::Creator),
            "creator-read" => Ok(Self::CreatorAndReaders),
            _ => Err("it is open, creator or creator-read"),
        }
    }
}

/// Somebody who may do something with our nodes, beside those of [`Access`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    pub(crate) scheme: String,
    pub(crate) id: String,
    pub(crate) permissions: i32,
}

impl FromStr for Grant {
    type Err = &'static str;
    /// `scheme:id:permissions`, where the id may have colons of its own.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "each is scheme:id:permissions, with permissions out of cdrwa";
        let (scheme, rest) = text.split_once(':').ok_or(FORM)?;
        let (id, letters) = rest.rsplit_once(':').ok_or(FORM)?;
        let permissions = letters.chars().try_fold(0, |sum, letter| {
            let index = "rwcda".find(letter)?;
            Some(sum | 1 << index)
        });
        match permissions {
            Some(1..) if !scheme.is_empty() => Ok(Self {
                scheme: scheme.to_owned(),
                id: id.to_owned(),
                permissions: permissions.unwrap_or_default(),
            }),
            _ => Err(FORM),
        }
    }
}

/// Several of them, with semicolons.
pub(crate) struct Grants(pub(crate) Vec<Grant>);

impl FromStr for Grants {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split(';')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}
