//! Extended attributes of the file that a path leads to.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the value of an attribute.
///
/// # Errors
/// The system's error, such as `ENODATA` for an attribute that does not exist.
pub fn get(path: &Path, name: &OsStr) -> io::Result<Vec<u8>> {
    let (path, name) = (text(path.as_os_str())?, text(name)?);
    whole(|buffer| {
        let (into, len) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: two strings, and memory of the stated length, which live through the call.
        unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), into, len) }
    })
}

/// Returns the names of all attributes, each with a zero byte at its end.
///
/// # Errors
/// The system's error.
pub fn list(path: &Path) -> io::Result<Vec<u8>> {
    let path = text(path.as_os_str())?;
    whole(|buffer| {
        let (into, len) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: a string, and memory of the stated length, which live through the call.
        unsafe { libc::listxattr(path.as_ptr(), into, len) }
    })
}

/// Sets an attribute, with the flags of setxattr(2).
///
/// # Errors
/// The system's error, such as `EEXIST` for `XATTR_CREATE`.
pub fn set(path: &Path, name: &OsStr, value: &[u8], flags: i32) -> io::Result<()> {
    let (path, name) = (text(path.as_os_str())?, text(name)?);
    let (path, name, len) = (path.as_ptr(), name.as_ptr(), value.len());
    // SAFETY: two strings and a value of the stated length, which live through the call.
    done(unsafe { libc::setxattr(path, name, value.as_ptr().cast(), len, flags) })
}

/// Removes an attribute.
///
/// # Errors
/// The system's error, such as `ENODATA` for an attribute that does not exist.
pub fn remove(path: &Path, name: &OsStr) -> io::Result<()> {
    let (path, name) = (text(path.as_os_str())?, text(name)?);
    // SAFETY: two strings that live through the call.
    done(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) })
}

/// Returns all bytes that `read` has. With an empty buffer, it returns their number.
fn whole(read: impl Fn(&mut [u8]) -> isize) -> io::Result<Vec<u8>> {
    let count = |count: isize| usize::try_from(count).map_err(|_| io::Error::last_os_error());
    loop {
        let mut bytes = vec![0; count(read(&mut []))?];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        match count(read(&mut bytes)) {
            Ok(count) => {
                bytes.truncate(count);
                return Ok(bytes);
            }
            // They have become more.
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) => {}
            Err(error) => return Err(error),
        }
    }
}

fn text(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.as_bytes())?)
}

fn done(outcome: libc::c_int) -> io::Result<()> {
    match outcome {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_set_listed_and_removed() {
        let path = std::env::temp_dir().join(format!("forebay-io-xattr-{}", std::process::id()));
        std::fs::write(&path, "").expect("made");
        let name = OsStr::new("user.one");
        let number = |error: io::Error| error.raw_os_error();
        match set(&path, name, b"value", 0) {
            Ok(()) => {
                assert_eq!(get(&path, name).expect("there"), b"value");
                let names = list(&path).expect("answers");
                assert!(
                    names
                        .split(|byte| *byte == 0)
                        .any(|name| name == b"user.one")
                );
                let second = set(&path, name, b"", libc::XATTR_CREATE).expect_err("there is one");
                assert_eq!(number(second), Some(libc::EEXIST));
                set(&path, name, b"", 0).expect("replaced");
                assert_eq!(get(&path, name).expect("there"), b"");
                remove(&path, name).expect("removed");
                let gone = get(&path, name).expect_err("removed");
                assert_eq!(number(gone), Some(libc::ENODATA));
            }
            Err(error) => assert_eq!(number(error), Some(libc::EOPNOTSUPP)),
        }
        std::fs::remove_file(&path).expect("removed");
    }
}
