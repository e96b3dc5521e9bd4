//! Shared mappings on two mounts, in a mapped directory.

use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use super::cluster::{Cluster, MAPPED, can_mount};
use super::{number, open, text};

/// A mapping of a file from its start.
pub(crate) struct Map {
    start: *mut u8,
    len: usize,
}

// SAFETY: the mapping belongs to no thread, and its bytes are loaded and stored one by one.
unsafe impl Sync for Map {}

impl Map {
    pub(crate) fn new(file: &File, len: u64, private: bool) -> std::io::Result<Self> {
        let (protection, flags) = match private {
            true => (libc::PROT_READ, libc::MAP_PRIVATE),
            false => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED),
        };
        let (place, len, fd) = (std::ptr::null_mut(), len as usize, file.as_raw_fd());
        // SAFETY: a new mapping at an address of the system's choice; no other code has an address
        // in it.
        let start = unsafe { libc::mmap(place, len, protection, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let start = start.cast();
        Ok(Self { start, len })
    }

    pub(crate) fn load(&self, range: Range<usize>) -> Vec<u8> {
        assert!(range.end <= self.len);
        // SAFETY: in the mapping; another program may store at the same time, so each byte is
        // loaded once.
        let load = |at| unsafe { self.start.add(at).read_volatile() };
        range.map(load).collect()
    }

    pub(crate) fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: in the mapping, which is writable unless it is private, and private ones are
            // not stored into.
            unsafe { self.start.add(offset + at).write_volatile(*byte) };
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping from above; no code has an address in it any more.
        assert_eq!(unsafe { libc::munmap(self.start.cast(), self.len) }, 0);
    }
}

#[test]
fn a_store_into_a_mapping_is_read_on_the_other_node() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("mapped");
    let (mut one, two) = (cluster.node(1), cluster.node(2));
    let paths = [1, 2].map(|number| cluster.mountpoint(number).join(MAPPED).join("data"));
    fs::write(&paths[0], vec![1; 10_000]).expect("written");
    let files = [open(&paths[0]), open(&paths[1])];
    let maps = [0, 1].map(|at| Map::new(&files[at], 10_000, false).expect("mapped"));
    let mut out = [0; 3000];
    for round in 2..100_u8 {
        let (from, to) = match round % 2 {
            0 => (0, 1),
            _ => (1, 0),
        };
        match round % 3 {
            0 => files[from]
                .write_all_at(&[round; 3000], 3000)
                .expect("written"),
            _ => maps[from].store(3000, &[round; 3000]),
        }
        assert_eq!(maps[to].load(3000..6000), [round; 3000]);
        files[to].read_exact_at(&mut out, 3000).expect("read");
        assert_eq!(out, [round; 3000], "round {round}");
    }
    // Two alternating stores, which every reader sees in that order.
    std::thread::scope(|scope| {
        scope.spawn(|| (0..=255).for_each(|round| maps[0].store(0, &[round])));
        let (mut last, mut byte) = (0, [1]);
        while last < 255 {
            files[1].read_exact_at(&mut byte, 0).expect("read");
            if byte == [1] && last == 0 {
                continue;
            }
            assert!(byte[0] >= last, "{} after {last}", byte[0]);
            last = byte[0];
        }
    });
    let mut log = File::options().append(true).open(&paths[1]).expect("there");
    log.write_all(b"more").expect("appended");
    assert_eq!(files[0].metadata().expect("answers").len(), 10_004);
    files[1].set_len(4096).expect("cut");
    assert_eq!(files[0].metadata().expect("answers").len(), 4096);
    files[0].set_len(8192).expect("longer");
    assert_eq!(maps[1].load(4096..8192), [0; 4096]);
    let status = cluster.status();
    assert_eq!(status.pages.owner + status.pages.shared, 0, "{status:?}");
    // Stored data outlives its node, synced or not.
    maps[0].store(5000, b"last");
    one.kill();
    assert_eq!(maps[1].load(5000..5004), b"last");
    drop((files, maps, log));
    two.end();
    let stored = fs::read(cluster.source().join(MAPPED).join("data"));
    assert_eq!(stored.expect("there")[5000..5004], *b"last");
}

#[test]
fn files_do_not_go_into_a_mapped_directory_or_out_of_it() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("classes");
    let (source, a) = (cluster.source(), cluster.mountpoint(1));
    for name in ["one", "two"] {
        fs::write(source.join(name), name).expect("written");
        fs::hard_link(source.join(name), source.join(MAPPED).join(name)).expect("linked");
    }
    let _nodes = [cluster.node(1), cluster.node(2)];
    let (mapped, b) = (a.join(MAPPED), cluster.mountpoint(2));
    fs::write(a.join("cached"), "cached").expect("written");
    fs::create_dir(mapped.join("deep")).expect("made");
    fs::write(mapped.join("deep/file"), "file").expect("written");
    let file = open(&mapped.join("deep/file"));
    Map::new(&file, 4, false).expect("it is in the directory");
    let rename = |from: &str, to: &str| number(fs::rename(a.join(from), a.join(to)));
    assert_eq!(rename("cached", "mapped/cached"), Some(libc::EXDEV));
    assert_eq!(rename("mapped/deep/file", "file"), Some(libc::EXDEV));
    assert_eq!(rename("mapped/deep", "deep"), Some(libc::EXDEV));
    assert_eq!(rename("mapped", "other"), Some(libc::EBUSY));
    let link = fs::hard_link(a.join("cached"), mapped.join("cached"));
    assert_eq!(number(link), Some(libc::EXDEV));
    assert_eq!(number(fs::remove_dir(&mapped)), Some(libc::EBUSY));
    fs::rename(mapped.join("deep/file"), mapped.join("file")).expect("renamed");
    fs::hard_link(mapped.join("file"), mapped.join("deep/again")).expect("linked");
    assert_eq!(text(&mapped.join("deep/again")), "file");
    fs::remove_file(mapped.join("file")).expect("removed");
    file.write_all_at(b"F", 0).expect("it is open");
    assert_eq!(text(&mapped.join("deep/again")), "File");
    // SQLite's logs are mapped in each directory, by their names.
    fs::write(a.join("db-wal"), "log").expect("written");
    fs::create_dir(a.join("directory-wal")).expect("made");
    Map::new(&open(&a.join("db-wal")), 3, false).expect("it is a log");
    assert_eq!(rename("db-wal", "log"), Some(libc::EXDEV));
    assert_eq!(rename("cached", "cached-shm"), Some(libc::EXDEV));
    let link = fs::hard_link(a.join("cached"), a.join("cached-wal"));
    assert_eq!(number(link), Some(libc::EXDEV));
    let names = ["db-wal", "mapped/log", "other-wal"].map(|name| a.join(name));
    for pair in names.windows(2) {
        fs::rename(&pair[0], &pair[1]).expect("both are mapped");
    }
    fs::rename(a.join("directory-wal"), a.join("directory")).expect("it is no file");
    assert_eq!(text(&b.join("other-wal")), "log");
    // One file with a name on either side: all nodes use it by the same one.
    assert_eq!(text(&a.join("one")), "one");
    let refused = File::open(b.join(MAPPED).join("one"));
    assert_eq!(number(refused), Some(libc::EBUSY));
    let two = open(&mapped.join("two"));
    assert_eq!(number(File::open(b.join("two"))), Some(libc::EBUSY));
    drop(two);
}

#[test]
fn a_mapping_is_of_its_file_whatever_the_other_node_does_with_the_name() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("renamed");
    let (one, two) = (cluster.node(1), cluster.node(2));
    let [a, b] = [1, 2].map(|number| cluster.mountpoint(number).join(MAPPED));
    fs::write(a.join("data"), "first").expect("written");
    let file = open(&a.join("data"));
    let at_b = open(&b.join("data"));
    let map = Map::new(&file, 5, false).expect("mapped");
    // Only the mapping is left.
    drop(file);
    fs::write(b.join("new"), "newer").expect("written");
    fs::rename(b.join("new"), b.join("data")).expect("renamed");
    assert_eq!(text(&a.join("data")), "newer");
    map.store(0, b"F");
    let mut out = [0; 5];
    at_b.read_exact_at(&mut out, 0).expect("it is still there");
    assert_eq!(&out, b"First");
    at_b.write_all_at(b"!", 4).expect("written");
    assert_eq!(map.load(0..5), b"Firs!");
    fs::remove_file(a.join("data")).expect("removed");
    let recreated = File::create_new(b.join("data")).expect("made");
    recreated.set_len(5).expect("longer");
    let new = Map::new(&open(&a.join("data")), 5, false).expect("mapped");
    assert_eq!(new.load(0..5), [0; 5]);
    assert_eq!(map.load(0..5), b"Firs!");
    drop((map, new, at_b, recreated));
    // No open file remains.
    let at_rest = |node: &super::cluster::Worker, path: &std::path::Path| {
        let cycle = || {
            let file = open(path);
            // The kernel reports a close after the last close(2).
            let lock = || super::locks::lock(&file, libc::F_WRLCK, 0, 0);
            super::locks::soon("its last holder has closed it", || lock().is_ok());
            Map::new(&file, 5, false).expect("mapped").store(0, b"x");
        };
        cycle();
        let before = node.open_files();
        (0..200).for_each(|_| cycle());
        super::locks::soon("all is closed", || node.open_files() <= before);
    };
    at_rest(&one, &a.join("data"));
    at_rest(&two, &b.join("data"));
}

#[test]
fn mappings_need_no_directory() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::new("mapped-alone");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let paths = [1, 2].map(|number| cluster.mountpoint(number).join(MAPPED).join("data"));
    fs::write(&paths[0], "data").expect("written");
    let maps = paths.each_ref().map(|path| {
        let file = open(path);
        Map::new(&file, 4, false).expect("mapped")
    });
    cluster.kill_directory();
    maps[0].store(0, b"D");
    assert_eq!(maps[1].load(0..4), b"Data");
    // Nor do opening, writing, renaming and syncing there.
    let new = paths[1].with_file_name("new");
    fs::write(&new, "newer").expect("written");
    open(&new).sync_all().expect("synced");
    fs::rename(&new, &paths[1]).expect("renamed");
    assert_eq!(text(&paths[0]), "newer");
    cluster.start_directory();
    cluster.wait(|status| status.awaited.is_empty() && status.nodes.len() == 2);
    maps[1].store(1, b"A");
    assert_eq!(maps[0].load(0..4), b"DAta");
    let recreated = Map::new(&open(&paths[0]), 5, false).expect("mapped");
    fs::write(&paths[1], "other").expect("written");
    assert_eq!(recreated.load(0..5), b"other");
}

#[test]
fn appends_of_two_nodes_in_a_mapped_directory_all_get_a_place() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("mapped-append");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let paths = [1, 2].map(|number| cluster.mountpoint(number).join(MAPPED).join("log"));
    super::append_from_all(&paths);
}
