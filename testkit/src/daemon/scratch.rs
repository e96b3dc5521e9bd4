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
    /// Creates a directory with the name of the test and the number of the process.
    ///
    /// # Panics
    /// Panics if it cannot be created.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::create(&std::env::temp_dir(), name)
    }

    /// Creates a directory in memory where /dev/shm exists, otherwise among the temporary files.
    /// Removes the directories of this name that killed processes left.
    ///
    /// # Panics
    /// Panics if it cannot be created.
    #[must_use]
    pub fn in_memory(name: &str) -> Self {
        let memory = Path::new("/dev/shm");
        let parent = match memory.is_dir() {
            true => memory.to_owned(),
            false => std::env::temp_dir(),
        };
        remove_leftovers(&parent, &format!("{name}-"));
        Self::create(&parent, name)
    }

    fn create(parent: &Path, name: &str) -> Self {
        let path = parent.join(format!("{name}-{}", std::process::id()));
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

    /// Creates a sparse file of `size_bytes` zeroes, which must not exist yet.
    ///
    /// # Panics
    /// Panics if it cannot be created.
    pub fn create_file(&self, name: &str, size_bytes: u64) {
        let file = File::create_new(self.path(name)).expect("a new file");
        file.set_len(size_bytes).expect("a sparse file");
    }
}

/// Removes the directories whose name is `prefix` and the number of a process that has ended.
fn remove_leftovers(parent: &Path, prefix: &str) {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(prefix));
        let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
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
