//! Extended attributes, by file number. They are those of the source's file.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use forebay_io::xattr;

use super::{Names, path_of};

/// Attribute with the capabilities of a program.
const CAPABILITIES: &[u8] = b"security.capability";
/// Prefixes of the names that programs see. Others, such as `system.posix_acl_access`, have a
/// meaning that the kernel would have to know.
const PREFIXES: [&[u8]; 3] = [b"user.", TRUSTED, b"security."];
/// Prefix of the names for root only.
const TRUSTED: &[u8] = b"trusted.";

impl Names {
    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// Errors of the system; `EOPNOTSUPP` for POSIX ACLs and other attributes of the system.
    pub fn xattr(&self, number: u64, name: &OsStr) -> io::Result<Vec<u8>> {
        check_visible(name)?;
        // The path leads to the file itself, whatever its names, also if it is a symbolic link.
        let here = self.file(number)?;
        xattr::get(&path_of(&here), name)
    }

    /// Returns the names of all extended attributes, each with a zero byte at its end. Those for
    /// root only are among them if `root`.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn list_xattrs(&self, number: u64, root: bool) -> io::Result<Vec<u8>> {
        let here = self.file(number)?;
        let all = xattr::list(&path_of(&here))?;
        let names = all.split_inclusive(|byte| *byte == 0);
        let visible = |name: &&[u8]| is_known(name) && (root || !name.starts_with(TRUSTED));
        Ok(names.filter(visible).flatten().copied().collect())
    }

    /// Sets an extended attribute, with the flags of setxattr(2).
    ///
    /// # Errors
    /// As for [`Names::xattr`]; `EOPNOTSUPP` for `security.capability` too.
    pub fn set_xattr(&self, number: u64, name: &OsStr, value: &[u8], flags: i32) -> io::Result<()> {
        check_visible(name)?;
        // A write on a mount would leave it until the write-back.
        if name.as_bytes() == CAPABILITIES {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let here = self.file(number)?;
        xattr::set(&path_of(&here), name, value, flags)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As for [`Names::xattr`].
    pub fn remove_xattr(&self, number: u64, name: &OsStr) -> io::Result<()> {
        check_visible(name)?;
        let here = self.file(number)?;
        xattr::remove(&path_of(&here), name)
    }
}

fn is_known(name: &[u8]) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Checks that programs may see an attribute.
///
/// # Errors
/// `EOPNOTSUPP` if they may not.
fn check_visible(name: &OsStr) -> io::Result<()> {
    match is_known(name.as_bytes()) {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
    }
}
