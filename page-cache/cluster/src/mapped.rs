//! Mapped files: programs may map them shared.
//!
//! A store into a mapping causes no notification. So a mapped file has its one copy in the kernel's
//! page cache of the source's own file system, and none in frames. All nodes read, write and map it
//! there. Two kinds of files are mapped:
//!
//! - Files in mapped directories. The directory process selects these directories at its start.
//! - SQLite's write-ahead logs and their indices, by their names. The index is useful only as a
//!   shared mapping. It refers to contents of the log which may not be durable, and which must
//!   therefore not be lost with a node.
//!
//! The selection does not change while nodes run: a file cannot be moved or linked such that it
//! becomes mapped, or is mapped no longer.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use forebay_block::{Context, Error, ErrorKind, Result};

use crate::pool::Pool;
use crate::second_names;

/// Ends of the names of SQLite's write-ahead logs and of their indices.
const LOG_ENDS: [&[u8]; 2] = [b"-wal", b"-shm"];

/// Returns whether a regular file of this name is mapped in each directory.
pub(crate) fn is_log(name: &OsStr) -> bool {
    let name = name.as_bytes();
    LOG_ENDS.iter().any(|end| name.ends_with(end))
}

/// The mapped directories of a source.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    tops: Vec<PathBuf>,
    inodes: BTreeSet<u64>,
    /// Inodes of the directories above them.
    above: BTreeSet<u64>,
}

impl Mapped {
    /// Loads the directories that the directory process has selected.
    pub(crate) fn load(pool: &Pool, source: &Path) -> Result<Self> {
        let mut mapped = Self::default();
        for path in parse(&pool.load_mapped()?) {
            let top = source.join(path);
            let inode = |path: &Path| {
                let metadata = fs::metadata(path).context(|| named(&top))?;
                Ok::<_, Error>(metadata.ino())
            };
            mapped.inodes.insert(inode(&top)?);
            let above = top.ancestors().skip(1);
            for path in above.take_while(|path| *path != source) {
                mapped.above.insert(inode(path)?);
            }
            mapped.tops.push(top);
        }
        Ok(mapped)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tops.is_empty()
    }

    /// Returns whether this is a mapped directory itself.
    pub(crate) fn is_top(&self, inode: u64) -> bool {
        self.inodes.contains(&inode)
    }

    /// Returns whether this directory must keep its name while nodes run: it is mapped, or contains
    /// a mapped one.
    pub(crate) fn keeps_name(&self, inode: u64) -> bool {
        self.is_top(inode) || self.above.contains(&inode)
    }

    /// Returns whether a regular file is mapped, by the name that it was opened with.
    pub(crate) fn holds(&self, file: &fs::File) -> bool {
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        path.is_ok_and(|path| path.file_name().is_some_and(is_log) || self.holds_path(&path))
    }

    /// Returns whether a new regular file at this path is mapped. Returns false if its parent does
    /// not exist.
    pub(crate) fn holds_new(&self, path: &Path) -> bool {
        let directory = || path.parent()?.canonicalize().ok();
        path.file_name().is_some_and(is_log)
            || directory().is_some_and(|path| self.holds_path(&path))
    }

    fn holds_path(&self, path: &Path) -> bool {
        self.tops.iter().any(|top| path.starts_with(top))
    }
}

/// Selects the mapped directories of a source; `is_unused` says that no node runs.
pub(crate) fn settle(
    pool: &Pool,
    source: &Path,
    wanted: &[PathBuf],
    is_unused: bool,
) -> Result<()> {
    let tops = check(source, wanted)?;
    let text: Vec<u8> = tops
        .iter()
        .flat_map(|top| [top.as_os_str().as_bytes(), b"\n"].concat())
        .collect();
    if !is_unused && pool.load_mapped()? != text {
        let context = format!(
            "pool {}: nodes run there with other mapped directories\n\
             help: give the same, or stop the nodes first",
            pool.path().display()
        );
        return Err(Error::new(ErrorKind::Busy, context));
    }
    pool.save_mapped(&text)
}

/// Returns the paths of mapped directories below their source.
///
/// # Errors
/// `InvalidInput` for a path that is no directory below the source.
pub(crate) fn check(source: &Path, wanted: &[PathBuf]) -> Result<BTreeSet<PathBuf>> {
    let mut tops = BTreeSet::new();
    for path in wanted {
        let top = source.join(path).canonicalize();
        let top = top.context(|| named(&source.join(path)))?;
        let below = top.strip_prefix(source).unwrap_or(Path::new(""));
        let mut parts = below.components();
        let ours = matches!(parts.next(), None | Some(Component::Normal(_)))
            && below.as_os_str().as_bytes() != b""
            && !below.starts_with(second_names::NAME)
            && !below.as_os_str().as_bytes().contains(&b'\n')
            && top.is_dir();
        if !ours {
            let context = format!(
                "{}: it is not a directory below the source {}\nhelp: name one that is",
                named(path),
                source.display()
            );
            return Err(Error::new(ErrorKind::InvalidInput, context));
        }
        tops.insert(below.to_owned());
    }
    Ok(tops)
}

fn parse(text: &[u8]) -> impl Iterator<Item = &Path> {
    let lines = text.split(|byte| *byte == b'\n');
    let lines = lines.filter(|line| !line.is_empty());
    lines.map(|line| Path::new(OsStr::from_bytes(line)))
}

fn named(path: &Path) -> String {
    format!("mapped directory {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_directories_are_constant_while_nodes_run() {
        let name = format!("forebay-mapped-{}", std::process::id());
        let top = std::env::temp_dir()
            .canonicalize()
            .expect("there")
            .join(name);
        let source = top.join("source");
        fs::create_dir_all(source.join("a/b")).expect("made");
        fs::create_dir_all(source.join(".forebay")).expect("made");
        fs::write(source.join("a/b/file"), "x").expect("written");
        fs::write(source.join("a/file"), "x").expect("written");
        let pool = Pool::new(&top.join("pool")).expect("short");
        pool.make().expect("made").keep();
        assert!(Mapped::load(&pool, &source).expect("none").is_empty());
        let path = PathBuf::from;
        for wrong in ["", ".", "..", "none", ".forebay", "a/file", "/"] {
            let refused = settle(&pool, &source, &[path(wrong)], true);
            assert!(refused.is_err(), "{wrong}");
        }
        let wanted = [path("a/b"), source.join("a/b")];
        settle(&pool, &source, &wanted, true).expect("settled");
        settle(&pool, &source, &wanted[..1], false).expect("the same");
        let other = settle(&pool, &source, &[], false).expect_err("nodes run");
        assert_eq!(other.kind(), ErrorKind::Busy);
        let mapped = Mapped::load(&pool, &source).expect("settled");
        let inode = |name: &str| fs::metadata(source.join(name)).expect("there").ino();
        assert!(mapped.is_top(inode("a/b")) && !mapped.is_top(inode("a")));
        assert!(mapped.keeps_name(inode("a")) && !mapped.keeps_name(inode("")));
        let open = |name: &str| fs::File::open(source.join(name)).expect("there");
        assert!(mapped.holds(&open("a/b/file")) && !mapped.holds(&open("a/file")));
        fs::remove_dir_all(&top).expect("removed");
    }
}
