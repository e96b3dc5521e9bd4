//! The pool: a directory on tmpfs with the shared frames, the sockets, and the list of nodes.
//!
//! - `frames` is the memory.
//! - `nodes` lists the nodes with their shares and processes. It is replaced by a rename before a
//!   node learns that it has joined. So a restarted directory knows which nodes to wait for.
//! - `left-...` is created by a node that leaves, for its session, until a directory has noticed.
//! - `files` has a symbolic link for each opened file, named by its inode: it leads from a page to
//!   its file.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_io::{NewDirectories, shm};
use forebay_pagecache::directory::Share;
use forebay_pagecache::message::{NodeId, PageId};
use forebay_pagecache::segment::Segment;

use crate::PAGE_BYTES;

const MAPPED: &str = "mapped";

const FIRST_LINE: &str = "forebay pagecache 2";

/// Maximum length of a socket's path, by unix(7).
const SOCKET_PATH_MAX: usize = 107;

/// Paths in a pool.
#[derive(Clone, Debug)]
pub struct Pool {
    path: PathBuf,
}

/// A node in the pool's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) share: Share,
    /// Nonce of its join, which it repeats when it rejoins.
    pub(crate) session: u64,
    pub(crate) pid: u32,
    pub(crate) started: u64,
}

/// Content of the pool's list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// Number of starts of a directory.
    pub(crate) epoch: u64,
    /// Boot identifier of the machine: after another boot, processes are dead and the memory is
    /// lost.
    pub(crate) boot: String,
    /// Capacity of the cluster, pages.
    pub(crate) pages: u32,
    /// Path of the source: a directory tree, a block device, or an image of one.
    pub(crate) source: String,
    pub(crate) known: Vec<Known>,
}

impl Pool {
    /// Returns the pool at `path`, which need not exist yet.
    ///
    /// # Errors
    /// `InvalidInput` if the path is too long for the sockets in it.
    pub fn new(path: &Path) -> Result<Self> {
        let pool = Self {
            path: path.to_owned(),
        };
        let longest = pool.socket().as_os_str().len();
        if longest > SOCKET_PATH_MAX {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "pool {}: a socket in it would have a path of {longest} bytes, and \
                     {SOCKET_PATH_MAX} is the most\n\
                     help: choose a shorter path",
                    path.display()
                ),
            ));
        }
        Ok(pool)
    }

    /// Creates the directory, for its user only. Dropping the result removes it.
    pub(crate) fn make(&self) -> Result<NewDirectories> {
        NewDirectories::create(&self.files(), 0o700)
            .context(|| format!("making the pool {}", self.path.display()))
    }

    /// Returns the files that a directory process creates at its start.
    pub(crate) fn files_of_directory(&self) -> [PathBuf; 7] {
        let (nodes, mapped) = (self.nodes(), self.path.join(MAPPED));
        [
            nodes.with_extension("new"),
            mapped.with_extension("new"),
            self.frames(),
            nodes,
            mapped,
            self.socket(),
            self.status_socket(),
        ]
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join("directory.sock")
    }

    pub(crate) fn status_socket(&self) -> PathBuf {
        self.path.join("status.sock")
    }

    pub(crate) fn files(&self) -> PathBuf {
        self.path.join("files")
    }

    fn frames(&self) -> PathBuf {
        self.path.join("frames")
    }

    fn nodes(&self) -> PathBuf {
        self.path.join("nodes")
    }

    /// Opens the frames for the directory: exclusively, and created if they do not exist with this
    /// size.
    pub(crate) fn open_frames(&self, pages: u32) -> Result<Segment> {
        let size_bytes = Segment::size_bytes(pages, PAGE_BYTES);
        let (memory, _) = shm::open_padded(&self.frames(), size_bytes)?;
        Segment::new(memory, pages, PAGE_BYTES)
    }

    /// Opens the frames for a node, with the number of pages in the list.
    pub(crate) fn join_frames(&self, pages: u32) -> Result<Segment> {
        let size_bytes = Segment::size_bytes(pages, PAGE_BYTES);
        let memory = shm::join_shared(&self.frames(), size_bytes)?;
        Segment::new(memory, pages, PAGE_BYTES)
    }

    /// Returns whether there are frames for this number of pages.
    pub(crate) fn has_frames(&self, pages: u32) -> bool {
        let expected = shm::padded_bytes(Segment::size_bytes(pages, PAGE_BYTES));
        fs::metadata(self.frames()).is_ok_and(|metadata| metadata.size() == expected as u64)
    }

    /// Returns a page in the frames that the store may not have, if there is one.
    pub(crate) fn unsaved(&self, pages: u32) -> Result<Option<PageId>> {
        if pages == 0 || !self.has_frames(pages) {
            return Ok(None);
        }
        let frames = self.join_frames(pages)?;
        Ok(frames.any_unsaved())
    }

    /// Records that a node has left although its process continues: the directory may be killed
    /// before it notices.
    pub(crate) fn say_left(&self, session: u64) -> Result<()> {
        let path = self.left(session);
        fs::write(&path, []).context(|| format!("writing {}", path.display()))
    }

    /// Returns whether a node has recorded its leave.
    pub(crate) fn has_left(&self, session: u64) -> bool {
        self.left(session).exists()
    }

    /// Removes the record of a leave.
    pub(crate) fn forget_left(&self, session: u64) {
        // Usually there is none.
        let _ = fs::remove_file(self.left(session));
    }

    fn left(&self, session: u64) -> PathBuf {
        self.path.join(format!("left-{session:016x}"))
    }

    /// Returns the mapped directories of the source, one path a line; empty if there are none.
    pub(crate) fn load_mapped(&self) -> Result<Vec<u8>> {
        let path = self.path.join(MAPPED);
        match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            text => text.context(|| format!("reading {}", path.display())),
        }
    }

    /// Stores the mapped directories.
    pub(crate) fn save_mapped(&self, text: &[u8]) -> Result<()> {
        let path = self.path.join(MAPPED);
        let new = path.with_extension("new");
        let saved = fs::write(&new, text).and_then(|()| fs::rename(&new, &path));
        saved.context(|| format!("writing {}", path.display()))
    }

    /// Returns the stored list, if there is one.
    pub(crate) fn load(&self) -> Result<Option<Nodes>> {
        let path = self.nodes();
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.context(|| format!("reading {}", path.display()))?,
        };
        let nodes = parse(&text);
        nodes.map(Some).ok_or_else(|| {
            let context = format!(
                "{}: it is not a pool of this version\n\
                 help: stop its nodes, let the version that created it write its pages back (start \
                 its directory once), then remove the pool",
                path.display()
            );
            Error::new(ErrorKind::Corrupt, context)
        })
    }

    /// Returns the source of the pool's directory: a tree, or a block device.
    ///
    /// # Errors
    /// `NotFound` if no directory was ever started on the pool, or errors of the system.
    pub fn source(&self) -> Result<PathBuf> {
        let nodes = self.load()?.ok_or_else(|| {
            let context = format!(
                "pool {}: no directory was started on it\n\
                 help: start one with `forebay pagecache directory`",
                self.path.display()
            );
            Error::new(ErrorKind::NotFound, context)
        })?;
        Ok(PathBuf::from(nodes.source))
    }

    /// Stores the list.
    pub(crate) fn save(&self, nodes: &Nodes) -> Result<()> {
        let path = self.nodes();
        let new = path.with_extension("new");
        let saved = fs::write(&new, render(nodes)).and_then(|()| fs::rename(&new, &path));
        saved.context(|| format!("writing {}", path.display()))
    }
}

fn render(nodes: &Nodes) -> String {
    let Nodes {
        epoch,
        boot,
        pages,
        source,
        known,
    } = nodes;
    let mut text = format!("{FIRST_LINE}\n{epoch} {boot} {pages}\n{source}\n");
    for one in known {
        let Share {
            node,
            first_frame,
            frames,
            unpublished_pages,
            alive,
        } = one.share;
        text.push_str(&format!(
            "{} {first_frame} {frames} {unpublished_pages} {} {} {} {}\n",
            node.number(),
            u8::from(alive),
            one.session,
            one.pid,
            one.started
        ));
    }
    text.push_str("end\n");
    text
}

fn parse(text: &str) -> Option<Nodes> {
    let mut lines = text.lines();
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let head: Vec<&str> = lines.next()?.split(' ').collect();
    let [epoch, boot, pages] = head[..] else {
        return None;
    };
    let mut nodes = Nodes {
        epoch: epoch.parse().ok()?,
        boot: boot.to_owned(),
        pages: pages.parse().ok()?,
        source: lines.next()?.to_owned(),
        known: Vec::new(),
    };
    for line in lines {
        if line == "end" {
            return Some(nodes);
        }
        let numbers: Option<Vec<u64>> = line.split(' ').map(|part| part.parse().ok()).collect();
        let [
            node,
            first,
            frames,
            unpublished,
            alive,
            session,
            pid,
            started,
        ] = numbers?[..]
        else {
            return None;
        };
        nodes.known.push(Known {
            share: Share {
                node: NodeId::new(u8::try_from(node).ok()?)?,
                first_frame: u32::try_from(first).ok()?,
                frames: u32::try_from(frames).ok()?,
                unpublished_pages: u32::try_from(unpublished).ok()?,
                alive: alive != 0,
            },
            session,
            pid: u32::try_from(pid).ok()?,
            started,
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_list_is_read_back_or_refused() {
        let nodes = Nodes {
            epoch: 3,
            boot: "ab01".into(),
            pages: 100,
            source: "/srv/some data".into(),
            known: vec![Known {
                share: Share {
                    node: NodeId::new(4).expect("a node"),
                    first_frame: 10,
                    frames: 20,
                    unpublished_pages: 2,
                    alive: true,
                },
                session: u64::MAX,
                pid: 77,
                started: 5,
            }],
        };
        let text = render(&nodes);
        assert_eq!(parse(&text), Some(nodes));
        for end in 0..text.len() - 1 {
            assert_eq!(parse(&text[..end]), None, "{end} bytes of it");
        }
        assert_eq!(parse(&text.replace("pagecache 2", "pagecache 1")), None);
        assert_eq!(parse(&text.replace("77", "x")), None);
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_refused() {
        let long = PathBuf::from("/dev/shm").join("x".repeat(100));
        let refused = Pool::new(&long).expect_err("too long");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
}
