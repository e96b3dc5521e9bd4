//! Directories for one test.

use std::fs::File;
use std::path::{Path, PathBuf};

/// A directory among the temporary files, removed on drop.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    keep_on_panic: bool,
}

impl Scratch {
    /// Makes a directory with the name of the test and the number of the process.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Self {
            path,
            keep_on_panic: false,
        }
    }

    /// Keeps the directory if the test panics, and prints where it is.
    #[must_use]
    pub fn keep_on_panic(mut self) -> Self {
        self.keep_on_panic = true;
        self
    }

    /// Returns the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.path
    }

    /// Returns the path of `name` in the directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes a sparse file of `size_bytes` zeroes, which must not exist yet.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn create_file(&self, name: &str, size_bytes: u64) {
        let file = File::create_new(self.path(name)).expect("a new file");
        file.set_len(size_bytes).expect("a sparse file");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.keep_on_panic && std::thread::panicking() {
            eprintln!("the files of the test are in {}", self.path.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
