mod cold;
mod cuts;
mod leave;
mod links;
mod relaxed;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use std::ffi::OsStr;

use super::*;
use crate::names::{Names, NewFile, Opened, ROOT, Renaming};
use crate::second_names;
use crate::server::{self, Server};
use crate::{Node, NodeId, Options, Replicas};

/// Directory that contains the mapped directory.
const ABOVE: &str = "above";
const MAPPED: &str = "above/mapped";

/// A source and a pool in this process, with nodes that need no mount.
struct Bed {
    source: PathBuf,
    pool: PathBuf,
}

impl Bed {
    fn new(name: &str) -> Self {
        Self::with(name, &[MAPPED])
    }

    fn with(name: &str, mapped: &[&str]) -> Self {
        Self::of_pages(name, mapped, 256)
    }

    fn of_pages(name: &str, mapped: &[&str], pages: u32) -> Self {
        let id = std::process::id();
        let bed = Self {
            source: std::env::temp_dir().join(format!("forebay-file-{name}-{id}")),
            pool: PathBuf::from(format!("/dev/shm/forebay-file-{name}-{id}")),
        };
        std::fs::create_dir_all(bed.source.join(MAPPED)).expect("made");
        let mut options = server::Options::new(&bed.source, &bed.pool, pages);
        options.mapped = mapped.iter().map(Into::into).collect();
        let directory = Server::open(options).expect("it opens");
        // It serves until this process ends.
        std::thread::spawn(move || directory.run());
        bed
    }

    fn node(&self, number: u8) -> Node {
        let id = NodeId::new(number).expect("a node");
        Node::join(Options::new(&self.pool, id, 100)).expect("it joins")
    }
}

/// Mounts a file system of this size on a path. Returns false if that is not possible here.
fn mount_small(at: &Path, size: &str) -> bool {
    std::fs::create_dir_all(at).expect("made");
    let size = format!("size={size},nr_inodes=100");
    let mut mount = std::process::Command::new("mount");
    let mount = mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at);
    mount.status().is_ok_and(|status| status.success())
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Unmounts a source that is its own file system.
        let mut unmount = std::process::Command::new("umount");
        let _ = unmount.arg("-lq").arg(&self.source).status();
        let _ = std::fs::remove_dir_all(&self.source);
        let _ = std::fs::remove_dir_all(&self.pool);
    }
}

/// Simulates a node that is killed during a truncation, before or after the tree has the new size.
fn begin_to_cut(file: &File, size_bytes: u64, resized: bool) {
    let begun = file.with_size_locked(|tree| {
        tree.begin_cut(file.inode, tree.size_bytes(file.inode)?)?;
        match resized {
            true => tree.resize(file.inode, size_bytes),
            false => Ok(()),
        }
    });
    begun.expect("begun");
}

#[test]
fn an_interrupted_truncation_leaves_zeroes() {
    const LEN: usize = 50_000;
    let bed = Bed::new("cut");
    let (one, two) = (bed.node(1), bed.node(2));
    let at_one = one.create("data").expect("made");
    let at_two = two.open("data").expect("there");
    let mut out = vec![0; LEN];
    let grow: [fn(&File); 4] = [
        |file| file.truncate(LEN as u64).expect("longer"),
        |file| file.write_at(LEN as u64 - 1, &[0]).expect("written"),
        |file| {
            file.append(&[0; LEN - 10_001]).expect("appended");
        },
        |file| {
            // Even shorter, and then long again.
            file.truncate(10_001 - 100).expect("shorter");
            file.write_at(10_001 - 100, &[8; 100]).expect("written");
            file.truncate(LEN as u64).expect("longer");
        },
    ];
    for grow in grow {
        at_one.truncate(0).expect("empty");
        at_one.write_at(0, &[8; LEN]).expect("written");
        assert_eq!(at_two.read_at(0, &mut out).expect("read"), LEN);
        begin_to_cut(&at_one, 10_001, true);
        assert_eq!(at_two.read_at(0, &mut out).expect("read"), 10_001);
        grow(&at_two);
        assert_eq!(at_one.read_at(0, &mut out).expect("read"), LEN);
        assert!(out[..10_001].iter().all(|byte| *byte == 8));
        assert!(out[10_001..].iter().all(|byte| *byte == 0));
    }
    // Nothing was truncated yet, and nothing is.
    at_one.write_at(0, &[7; LEN]).expect("written");
    begin_to_cut(&at_one, 10_001, false);
    at_two.write_at(LEN as u64, &[7]).expect("written");
    assert_eq!(at_one.read_at(0, &mut out).expect("read"), LEN);
    assert!(out.iter().all(|byte| *byte == 7));
    // It is done once.
    let left = at_two.with_size_locked(|tree| tree.begun_cut(at_two.inode));
    assert_eq!(left.expect("answers"), None);
}

/// Returns the number of the file at a path, as a node's programs see it.
fn find(names: &Names, path: &str) -> u64 {
    path.split('/').fold(ROOT, |parent, name| {
        let found = names.look_up(parent, OsStr::new(name));
        found.expect("there").number
    })
}

fn refused<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn a_file_of_a_mapped_directory_is_for_mounts() {
    let bed = Bed::new("mapped");
    std::fs::write(bed.source.join(MAPPED).join("file"), "file").expect("written");
    let node = bed.node(1);
    let refused = |result: Result<File>| result.expect_err("it is not cached").kind();
    let there = Path::new(MAPPED);
    assert_eq!(
        refused(node.open(there.join("file"))),
        ErrorKind::Unsupported
    );
    assert_eq!(
        refused(node.create(there.join("file"))),
        ErrorKind::Unsupported
    );
    assert_eq!(
        refused(node.create(there.join("new"))),
        ErrorKind::Unsupported
    );
    assert!(
        !bed.source.join(MAPPED).join("new").exists(),
        "it is refused, and made"
    );
    assert_eq!(refused(node.create("db-wal")), ErrorKind::Unsupported);
    assert!(
        !bed.source.join("db-wal").exists(),
        "it is refused, and made"
    );
    std::fs::write(bed.source.join("db-shm"), "log").expect("written");
    assert_eq!(refused(node.open("db-shm")), ErrorKind::Unsupported);
    node.create("file").expect("made");
}

#[test]
fn parents_of_a_mapped_directory_keep_their_names() {
    let bed = Bed::new("above");
    let node = bed.node(1);
    let names = node.names().expect("it can be mounted");
    let (above, other) = (OsStr::new(ABOVE), OsStr::new("other"));
    let directory = NewFile {
        parent: ROOT,
        name: other,
        mode: 0o700,
        maker: None,
    };
    names.make_directory(&directory).expect("made");
    let rename = |from, to| refused(names.rename((ROOT, from), (ROOT, to), Renaming::Replace));
    assert_eq!(rename(above, OsStr::new("new")), Some(libc::EBUSY));
    assert_eq!(rename(other, above), Some(libc::EBUSY));
    assert_eq!(
        refused(names.remove_directory(ROOT, above)),
        Some(libc::EBUSY)
    );
    assert_eq!(rename(other, OsStr::new("new")), None);
    // A restarted directory, and nodes that join, find it at the same path.
    bed.node(2).names().expect("it can be mounted");
}

#[test]
fn a_file_that_is_used_as_a_mapped_one_is_not_cached_until_it_is_closed() {
    let bed = Bed::new("either");
    let (cached, mapped) = (
        bed.source.join("file"),
        bed.source.join(MAPPED).join("file"),
    );
    std::fs::write(&cached, "file").expect("written");
    std::fs::hard_link(&cached, &mapped).expect("linked");
    let (one, two) = (bed.node(1), bed.node(2));
    let names = one.names().expect("it can be mounted");
    let number = find(&names, &format!("{MAPPED}/file"));
    for _ in 0..2 {
        let opened = names.open(number).expect("nobody has cached it");
        assert!(matches!(opened, Opened::Mapped(_)));
        assert_eq!(
            two.open("file").expect_err("it is mapped").kind(),
            ErrorKind::Busy
        );
    }
    two.open("file").expect("nobody has it mapped");
    assert_eq!(
        names.open(number).expect_err("it is cached").kind(),
        ErrorKind::Busy
    );
}

#[test]
fn a_file_that_is_still_used_as_a_mapped_one_is_not_cached_when_nothing_is_mapped_any_more() {
    let bed = Bed::with("before", &[]);
    let path = bed.source.join("file");
    std::fs::write(&path, "file").expect("written");
    // The mount of a killed node holds it for its programs.
    let held = std::fs::File::options().read(true).write(true).open(path);
    let held = held.expect("there");
    second_names::mark_mapped(&held).expect("locked");
    let node = bed.node(1);
    assert_eq!(
        node.open("file").expect_err("it is mapped").kind(),
        ErrorKind::Busy
    );
    drop(held);
    node.open("file").expect("nobody has it mapped");
}

#[test]
fn a_full_source_refuses_writes_and_nothing_else() {
    let source = std::env::temp_dir().join(format!("forebay-file-full-{}", std::process::id()));
    if !mount_small(&source, "2M") {
        println!("SKIPPED: no file system can be mounted here");
        return;
    }
    let bed = Bed::with("full", &[]);
    let (one, two) = (bed.node(1), bed.node(2));
    let open = |node: &Node, name: &str| node.create(Path::new(name)).expect("it opens");
    let (other, full) = (open(&one, "other"), open(&one, "full"));
    let piece = |number: u64| vec![number as u8; 16 * PAGE_BYTES];
    other.write_at(0, &piece(77)).expect("there is room");
    let mut written = 0;
    // More than the frames of all nodes, and more than the source.
    let refused = loop {
        let offset = written * piece(0).len() as u64;
        match full.write_at(offset, &piece(written)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 64, "the source has room for 32");
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{}", refused.report());
    assert!(written > 20, "{written}");
    let append = full.append(&piece(1)).expect_err("the source is full");
    assert_eq!(append.kind(), ErrorKind::NoSpace);
    full.fsync().expect("what was written has room");
    // An overwrite has its blocks already, and files are readable on all nodes.
    full.write_at(0, &piece(200)).expect("its room is there");
    full.fsync().expect("durable");
    let mut bytes = piece(0);
    let (other, seen) = (open(&two, "other"), open(&two, "full"));
    other.read_at(0, &mut bytes).expect("read");
    assert!(bytes == piece(77));
    for number in 0..written {
        seen.read_at(number * bytes.len() as u64, &mut bytes)
            .expect("read");
        let expected = if number == 0 { 200 } else { number };
        assert!(bytes == piece(expected), "piece {number}");
    }
    // Freed blocks are used again.
    full.truncate(0).expect("shorter");
    let whole = open(&two, "third");
    whole.write_at(0, &piece(9)).expect("there is room");
    whole.fsync().expect("durable");
}

/// A full source may have no room for a file's second name.
#[test]
fn a_full_source_lets_nodes_start_and_files_be_read() {
    let source = std::env::temp_dir().join(format!("forebay-file-names-{}", std::process::id()));
    if !mount_small(&source, "2M") {
        println!("SKIPPED: no file system can be mounted here");
        return;
    }
    let content = |byte: u8| vec![byte; 2 * PAGE_BYTES + 100];
    for name in ["read", "written", "cut"] {
        std::fs::write(source.join(name), content(1)).expect("there is room");
    }
    let bed = Bed::with("names", &[]);
    let one = bed.node(1);
    let filler = |number: u32| source.join(format!("filler-{number}"));
    let full = (0..200).find(|number| std::fs::File::create(filler(*number)).is_err());
    let full = full.expect("it has 100 inodes");
    let two = bed.node(2);
    let second_names = two.inner();
    let second_names = second_names.client().store().second_names();
    second_names
        .expect("there")
        .nameless()
        .expect("a mount starts");
    let open = |node: &Node, name: &str| node.open(name).expect("it opens");
    let read = |file: &File| {
        let mut bytes = content(0xff);
        let len = file.read_at(0, &mut bytes).expect("read");
        bytes.truncate(len);
        bytes
    };
    let files = [open(&one, "read"), open(&two, "read")];
    assert!(files.iter().all(|file| read(file) == content(1)));
    let [written, seen] = [open(&one, "written"), open(&two, "written")];
    let refused = |result: Result<()>| result.expect_err("it is full").kind();
    assert_eq!(
        refused(written.write_at(0, &content(2))),
        ErrorKind::NoSpace
    );
    assert_eq!(refused(written.append(&[2]).map(drop)), ErrorKind::NoSpace);
    assert_eq!(refused(written.map(0).map(drop)), ErrorKind::NoSpace);
    written.fsync().expect("nothing was written");
    assert!(read(&seen) == content(1), "it is unchanged");
    let cut = open(&one, "cut");
    cut.truncate(10).expect("shorter");
    cut.truncate(2 * PAGE_BYTES as u64).expect("longer");
    let mut expected = vec![0; 2 * PAGE_BYTES];
    expected[..10].fill(1);
    assert!(read(&cut) == expected && read(&open(&two, "cut")) == expected);
    // With room, the files that are open are written, and nodes see it.
    (0..full).for_each(|number| std::fs::remove_file(filler(number)).expect("removed"));
    written.write_at(0, &content(3)).expect("there is room");
    assert!(read(&seen) == content(3));
    std::fs::remove_file(source.join("read")).expect("removed");
    assert!(files.iter().all(|file| read(file) == content(1)));
}

#[test]
fn a_written_page_has_a_replica_after_its_write_back() {
    let bed = Bed::new("replica");
    let node = |number| {
        let id = NodeId::new(number).expect("a node");
        let mut options = Options::new(&bed.pool, id, 100);
        options.replicas = Replicas::Idle;
        Node::join(options).expect("it joins")
    };
    let (writer, reader) = (node(1), node(2));
    let written = writer.create("data").expect("created");
    written.write_at(0, &[7; PAGE_BYTES]).expect("written");
    let read = reader.open("data").expect("it opens");
    written.fsync().expect("durable");
    let mut page = [0; PAGE_BYTES];
    let begin = Instant::now();
    while reader.counts().hits_local == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "no replica");
        read.read_at(0, &mut page).expect("read");
        assert_eq!(page, [7; PAGE_BYTES]);
    }
    for byte in 1..20 {
        written.write_at(0, &[byte; PAGE_BYTES]).expect("written");
        read.read_at(0, &mut page).expect("read");
        assert_eq!(page, [byte; PAGE_BYTES]);
    }
}

/// Writes reach the source at their age, although no program flushes them.
#[test]
fn written_data_reaches_the_source_at_its_expiry() {
    let bed = Bed::new("expiry");
    let node = |number, expiry| {
        let id = NodeId::new(number).expect("a node");
        let mut options = Options::new(&bed.pool, id, 100);
        options.expiry = expiry;
        Node::join(options).expect("it joins")
    };
    let (soon, late) = (
        node(0, Duration::from_millis(200)),
        node(1, Duration::from_secs(3600)),
    );
    let data = vec![7; 3 * PAGE_BYTES + 100];
    let files = [(&soon, "soon"), (&late, "late")].map(|(node, name)| {
        let file = node.create(name).expect("created");
        file.write_at(0, &data).expect("written");
        file
    });
    let stored = |name: &str| std::fs::read(bed.source.join(name)).expect("there") == data;
    let begin = Instant::now();
    while !stored("soon") {
        assert!(begin.elapsed() < Duration::from_secs(60), "never stored");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!stored("late"), "its expiry is an hour");
    files[1].fsync().expect("stored");
    assert!(stored("late"));
}

#[test]
fn a_fast_writer_does_not_outrun_the_write_back() {
    const LIMIT: usize = 16;
    let bed = Bed::new("dirty");
    let id = NodeId::new(0).expect("a node");
    let mut options = Options::new(&bed.pool, id, 200);
    options.dirty_pages = LIMIT;
    let node = Node::join(options).expect("it joins");
    let file = node.create("data").expect("created");
    for page in 0..180 {
        let offset = page * PAGE_BYTES as u64;
        file.write_at(offset, &[7; PAGE_BYTES]).expect("written");
        let dirty = file.node.client().dirty().pages;
        assert!(dirty <= 3 * LIMIT, "{dirty} after page {page}");
    }
}

/// Sends its result to the test.
struct Reads(std::sync::mpsc::Sender<Result<Vec<u8>>>);

impl Reader for Reads {
    fn end(self, result: Result<&[u8]>) {
        let _ = self.0.send(result.map(<[u8]>::to_vec));
    }

    fn execute(self, work: impl FnOnce(Self) + Send + 'static) {
        std::thread::spawn(move || work(self));
    }
}

#[test]
fn a_read_without_a_thread_returns_the_bytes_of_the_file() {
    const BYTES: usize = 10 * PAGE_BYTES + 100;
    let bed = Bed::new("reads");
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at / 7) as u8).collect();
    let node = bed.node(1);
    for (number, (offset, len)) in [
        (0, BYTES + 50),
        (PAGE_BYTES, PAGE_BYTES),
        (100, 50),
        (PAGE_BYTES - 10, 20),
        (3, 7 * PAGE_BYTES),
        (10 * PAGE_BYTES, PAGE_BYTES),
        (BYTES, 10),
        (BYTES + PAGE_BYTES, 10),
    ]
    .into_iter()
    .enumerate()
    {
        // No page of it is in memory.
        let name = format!("file{number}");
        std::fs::write(bed.source.join(&name), &bytes).expect("written");
        let file = Arc::new(node.open(&name).expect("it opens"));
        for _ in 0..2 {
            let (sender, receiver) = std::sync::mpsc::channel();
            Arc::clone(&file).read_then(offset as u64, len, Reads(sender));
            let read = receiver.recv_timeout(Duration::from_secs(30));
            let read = read.expect("it ends").expect("it is read");
            let expected = &bytes[offset.min(BYTES)..(offset + len).min(BYTES)];
            assert!(read == expected, "{len} bytes at {offset}");
        }
    }
}
