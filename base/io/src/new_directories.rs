//! Directories that a start creates, and removes if it is refused.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Directories that were created. Dropping this removes those that are empty, unless
/// [`NewDirectories::keep`] was called.
#[derive(Debug, Default)]
#[must_use = "dropping this removes the directories"]
pub struct NewDirectories {
    /// Created directories, outermost first.
    made: Vec<PathBuf>,
}

impl NewDirectories {
    /// Creates the directory `path` and the missing ones above it, with the permissions `mode`.
    /// Does nothing for a directory that exists.
    ///
    /// # Errors
    /// The system's error. The directories that were created are removed then.
    pub fn create(path: &Path, mode: u32) -> io::Result<Self> {
        let mut new = Self::default();
        let above: Vec<_> = path.ancestors().collect();
        for path in above.into_iter().rev() {
            if path.as_os_str().is_empty() || path.is_dir() {
                continue;
            }
            match DirBuilder::new().mode(mode).create(path) {
                Ok(()) => new.made.push(path.to_owned()),
                // Another process was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(new)
    }

    /// Leaves the directories in place.
    pub fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for NewDirectories {
    fn drop(&mut self) {
        while let Some(path) = self.made.pop() {
            // Files of others stay, and so do the directories above them.
            if fs::remove_dir(&path).is_err() {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn only_new_and_empty_directories_are_removed() {
        let scratch = Scratch::new();
        let there = scratch.path("there");
        fs::create_dir(&there).expect("made");
        let deep = there.join("a/b");
        drop(NewDirectories::create(&deep, 0o700).expect("made"));
        assert!(there.is_dir() && !there.join("a").exists());
        drop(NewDirectories::create(&there, 0o700).expect("it exists"));
        assert!(there.is_dir());
        let new = NewDirectories::create(&deep, 0o700).expect("made");
        fs::write(there.join("a/file"), "mine").expect("written");
        drop(new);
        assert!(there.join("a/file").exists() && !deep.exists());
        NewDirectories::create(&deep, 0o700).expect("made").keep();
        assert!(deep.is_dir());
        // Of a creation that fails, nothing is left.
        let file = there.join("file");
        fs::write(&file, "mine").expect("written");
        let refused = NewDirectories::create(&file.join("below"), 0o700);
        refused
            .map(NewDirectories::keep)
            .expect_err("a file is in the way");
        assert!(file.is_file());
    }
}
