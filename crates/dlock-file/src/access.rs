//! Who may take part: the user whose folder it is, or every member of the folder's group.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::str::FromStr;

/// Who may take part in the locks of a folder.
///
/// Whoever can change the files of a folder can take and free every lock in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Access {
    /// The user to whom the folder belongs.
    #[default]
    Owner,
    /// All members of the folder's group, whoever made it. They trust each other.
    Group,
}

impl FromStr for Access {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "owner" => Ok(Self::Owner),
            "group" => Ok(Self::Group),
            _ => Err("it is owner or group"),
        }
    }
}

/// The cleaners of runtime and temporary folders leave files with this bit alone (XDG base directory specification,
/// systemd-tmpfiles). Elsewhere than on Linux a file may not have it.
const KEEP: u32 = if cfg!(target_os = "linux") { 0o1000 } else { 0 };

impl Access {
    fn file_mode(self) -> u32 {
        match self {
            Self::Owner => KEEP | 0o600,
            Self::Group => KEEP | 0o660,
        }
    }

    /// With the bit that gives what is made inside to the folder's group.
    fn folder_mode(self) -> u32 {
        match self {
            Self::Owner => 0o700,
            Self::Group => 0o2770,
        }
    }

    /// How our files are made. What the umask takes away, [`open_up`](Self::open_up) gives back.
    pub(crate) fn file(self) -> OpenOptions {
        let mut options = File::options();
        options.mode(self.file_mode());
        options
    }

    /// After a file was made: the group may use it, whatever the maker's umask is.
    pub(crate) fn open_up(self, file: &File) -> io::Result<()> {
        if self == Self::Group && file.metadata()?.mode() & 0o060 != 0o060 {
            file.set_permissions(Permissions::from_mode(self.file_mode()))?;
        }
        Ok(())
    }

    /// Opens a file, and makes it if it is not there. Others may open it at any moment, so one for the group has its permissions before
    /// it has its name.
    pub(crate) fn open_or_make(self, path: &Path) -> io::Result<File> {
        let mut options = self.file();
        options.read(true).write(true).truncate(false);
        if self == Self::Owner {
            return options.create(true).open(path);
        }
        loop {
            match options.open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.make(path)?,
                opened => return opened,
            }
        }
    }

    fn make(self, path: &Path) -> io::Result<()> {
        let draft = path.with_extension(uuid::Uuid::new_v4().simple().to_string());
        let file = self.file().write(true).create_new(true).open(&draft)?;
        let linked = self
            .open_up(&file)
            .and_then(|()| fs::hard_link(&draft, path));
        let _ = fs::remove_file(&draft);
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    }

    /// The same as [`open_up`](Self::open_up) by its path, for a socket.
    pub(crate) fn open_up_path(self, path: &Path) -> io::Result<()> {
        if self == Self::Group {
            fs::set_permissions(path, Permissions::from_mode(0o660))?;
        }
        Ok(())
    }

    /// Makes a folder and what is missing above it. One that is there stays as it is.
    pub(crate) fn make_folder(self, path: &Path) -> io::Result<()> {
        if let Some(above) = path.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(above)?;
        }
        match DirBuilder::new().mode(self.folder_mode()).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(()) if self == Self::Group => {
                fs::set_permissions(path, Permissions::from_mode(self.folder_mode()))
            }
            Ok(()) => Ok(()),
        }
    }
}
