//! Object stores.
//!
//! - [`address`]: the URL of a folder, and its settings.
//! - [`credentials`]: secrets for a remote store.
//! - [`directory`]: a directory of a mounted file system.
//! - `remote`: S3, Google Cloud Storage and Azure Blob Storage, with the feature `remote`.

pub mod address;
pub mod credentials;
pub mod directory;
#[cfg(feature = "remote")]
mod remote;

use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Result};

use crate::store::Store;
use address::{Address, Place};
use credentials::Credentials;
use directory::DirectoryStore;

/// Use of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Objects are created, read and deleted.
    Write,
    /// Objects are read, and nothing in the store changes.
    Read,
}

/// Opens the store at `address`. `credentials` replace those of the environment. A remote store
/// gets no request.
///
/// # Errors
/// - `NotFound` if the directory does not exist.
/// - `InvalidInput` for incomplete settings or credentials of another provider.
/// - `Unsupported` for a remote store in a build without them.
/// - The system's error.
///
/// # Panics
/// If this thread runs no reactor.
pub async fn open(
    address: &Address,
    credentials: Option<&Credentials>,
    purpose: Use,
) -> Result<Rc<dyn Store>> {
    match &address.place {
        Place::Directory(path) => Ok(Rc::new(DirectoryStore::open(path, purpose).await?)),
        #[cfg(feature = "remote")]
        Place::Bucket(bucket) => Ok(Rc::new(remote::RemoteStore::open(
            address,
            bucket,
            credentials,
        )?)),
        #[cfg(not(feature = "remote"))]
        Place::Bucket(_) => {
            let _ = credentials;
            let what = format!(
                "this build of Forebay has no remote object stores such as {address}\n\
                 help: build with `--features object`, or use a directory (file://)"
            );
            Err(Error::new(ErrorKind::Unsupported, what))
        }
    }
}

/// Checks a name of an object, or a prefix of names.
///
/// # Errors
/// `InvalidInput` for a name that the trait does not allow, or that leaves the folder.
fn check_name(name: &str) -> Result<()> {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_./".contains(&byte);
    let parts = name.strip_suffix('/').unwrap_or(name).split('/');
    // A part that begins with a dot may be `..`, or a file of the store itself.
    let mut parts = parts.map(|part| !part.is_empty() && !part.starts_with('.'));
    match parts.all(|fits| fits) && name.bytes().all(allowed) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{name:?} is no name of an object\nhelp: use lower-case letters, digits, -, _ and ."
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_folder() {
        for name in [
            "volume",
            "log/0000000000000001",
            "log/",
            "snapshots/a-b_c.d",
        ] {
            check_name(name).expect(name);
        }
        for name in [
            "", "/", "/log", "log//a", "../up", "a/../b", ".new/a", "A", "a b", "ä",
        ] {
            let error = check_name(name).expect_err(name);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    }
}
