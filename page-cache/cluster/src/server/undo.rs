//! Removal of what a refused start has created.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_io::NewDirectories;
use forebay_pagecache::segment::Segment;

/// Files and directories that a start creates. Dropping this removes them, unless [`Undo::keep`]
/// was called.
#[derive(Debug, Default)]
pub(super) struct Undo {
    /// Files that did not exist before.
    files: Vec<PathBuf>,
    directories: Vec<NewDirectories>,
    /// Keeps other directory processes from using the files until they are removed.
    segment: Option<Arc<Segment>>,
}

impl Undo {
    /// Adds directories.
    pub(super) fn add(&mut self, directories: NewDirectories) {
        self.directories.push(directories);
    }

    /// Adds those files that do not exist yet.
    pub(super) fn add_missing(&mut self, files: impl IntoIterator<Item = PathBuf>) {
        let is_missing = |path: &PathBuf| {
            fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        self.files.extend(files.into_iter().filter(is_missing));
    }

    /// Holds the pool until the files are removed.
    pub(super) fn hold(&mut self, segment: &Arc<Segment>) {
        self.segment = Some(Arc::clone(segment));
    }

    /// Leaves everything in place.
    pub(super) fn keep(mut self) {
        self.files.clear();
        self.directories.drain(..).for_each(NewDirectories::keep);
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // Without the pool, the files may be another process's.
        if self.segment.is_some() {
            for path in self.files.drain(..).rev() {
                let _ = fs::remove_file(path);
            }
        }
        while self.directories.pop().is_some() {}
    }
}
