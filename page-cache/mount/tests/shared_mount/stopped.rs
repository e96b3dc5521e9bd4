//! A source whose disk stops to answer for a while.
//!
//! `FOREBAY_STOPPED` selects how long, seconds. From [`COMPARED`] on, reads of pages in memory are
//! compared with those before the stop.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

use forebay_fuse::Access;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    WriteFlags,
};

use super::cluster::{Cluster, can_mount};
use super::open;
use super::sources::{made, plain, sibling};

const DISK_BYTES: u64 = 64 << 20;
const PAGE: usize = 4096;
const PAGES: usize = 32;
/// More requests than the mount has threads that read requests.
const COLD_READERS: usize = 24;
/// Longer than the lease of a node.
const STOPPED: Duration = Duration::from_secs(8);
/// Time from which the comparison of latencies is required: short runs share a busy machine.
const COMPARED: Duration = Duration::from_secs(100);
/// Time limit of an operation that waits for the source.
const SOURCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time of the reads before the stop.
const BEFORE: Duration = Duration::from_secs(2);

/// Whether the disk answers.
#[derive(Debug, Default)]
struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn close(&self) {
        *self.is_closed.lock().expect("no panic") = true;
    }

    fn open(&self) {
        *self.is_closed.lock().expect("no panic") = false;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let is_closed = self.is_closed.lock().expect("no panic");
        drop(self.opened.wait_while(is_closed, |is_closed| *is_closed));
    }
}

/// Opens the gate even if the test panics, so that the kernel can unmount.
struct Closed<'a>(&'a Gate);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A file system with one file, `image`.
struct Disk {
    file: File,
    gate: Arc<Gate>,
}

const ROOT: u64 = 1;
const IMAGE: u64 = 2;

fn attributes(number: u64) -> FileAttr {
    let (kind, size) = match number {
        ROOT => (FileType::Directory, 0),
        _ => (FileType::RegularFile, DISK_BYTES),
    };
    FileAttr {
        ino: INodeNo(number),
        size,
        blocks: size / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o700,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Disk {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == "image" {
            true => reply.entry(&Duration::MAX, &attributes(IMAGE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::MAX, &attributes(number.0));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.gate.pass();
        let mut out = vec![0; size as usize];
        let count = self.file.read_at(&mut out, offset).expect("a file");
        reply.data(&out[..count]);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.gate.pass();
        self.file.write_all_at(data, offset).expect("a file");
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.gate.pass();
        reply.ok();
    }
}

/// An ext4 file system on a disk that can stop. Holds the disk until it is unmounted.
fn on_a_disk(source: &Path, gate: &Arc<Gate>) -> (forebay_fuse::Mount, Vec<PathBuf>) {
    let (place, image) = (
        sibling(source, "disk"),
        sibling(source, "store").join("image"),
    );
    let file = File::create_new(&image).expect("made");
    file.set_len(DISK_BYTES).expect("there is nothing in it");
    made("mkfs.ext4", &["-q", "-F", plain(&image)]);
    let file = open(&image);
    let gate = Arc::clone(gate);
    let disk = forebay_fuse::mount(
        Disk { file, gate },
        &place,
        "disk",
        Access::default(),
        40,
        |_| Ok(()),
    );
    let disk = disk.expect("it mounts");
    let image = place.join("image");
    made("mount", &["-o", "loop", plain(&image), plain(source)]);
    fs::write(source.join("cold"), vec![1; PAGES * PAGE]).expect("written");
    // The kernel forgets the data with the mount and the open image.
    made("umount", &[plain(source)]);
    made("mount", &["-o", "loop", plain(&image), plain(source)]);
    (disk, vec![source.to_owned()])
}

/// Reads pages of the files, which hold this byte and are in memory, for a time. Returns the
/// latencies, shortest first.
fn read_for(time: Duration, files: &[File], byte: u8) -> Vec<Duration> {
    let begin = Instant::now();
    let mut latencies = Vec::new();
    while begin.elapsed() < time {
        for file in files {
            let (mut out, start) = ([0; PAGE], Instant::now());
            let offset = (latencies.len() % PAGES * PAGE) as u64;
            file.read_exact_at(&mut out, offset)
                .expect("it is in memory");
            assert_eq!(out, [byte; PAGE]);
            latencies.push(start.elapsed());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    latencies.sort_unstable();
    latencies
}

/// Returns the 99th percentile.
fn p99(latencies: &[Duration]) -> Duration {
    latencies[latencies.len() * 99 / 100]
}

#[test]
fn pages_in_memory_are_read_while_the_disk_does_not_answer() {
    if !can_mount() {
        return;
    }
    let (gate, mut disk) = (Arc::new(Gate::default()), None);
    let mut cluster = Cluster::on("stopped", |source| {
        let (mounted, mounts) = on_a_disk(source, &gate);
        disk = Some(mounted);
        mounts
    });
    let (one, two) = (cluster.node(1), cluster.node(2));
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    fs::write(a.join("hot"), vec![7; PAGES * PAGE]).expect("written");
    let hot = [open(&a.join("hot")), open(&b.join("hot"))];
    hot[0].sync_all().expect("durable");
    let cold = open(&a.join("cold"));
    let stopped = std::env::var("FOREBAY_STOPPED").map_or(STOPPED, |seconds| {
        Duration::from_secs(seconds.parse().expect("a number of seconds"))
    });
    let before = read_for(BEFORE, &hot, 7);
    // Beyond the expiry, the node tries to write them back while the disk does not answer.
    let dirty = [a.join("dirty"), b.join("dirty-too")];
    for path in &dirty {
        fs::write(path, vec![5; PAGES * PAGE]).expect("written");
    }
    std::thread::scope(|scope| {
        let closed = Closed(&gate);
        gate.close();
        let (done, ended) = channel();
        for number in 0..COLD_READERS {
            let (cold, done) = (&cold, done.clone());
            scope.spawn(move || {
                let mut out = [0; PAGE];
                let read = cold.read_exact_at(&mut out, (number * PAGE) as u64);
                let _ = done.send(read.map(|()| out));
            });
        }
        // The nodes report their fills in progress to the next directory.
        std::thread::sleep(Duration::from_millis(200));
        cluster.kill_directory();
        cluster.start_directory();
        let during = read_for(stopped, &hot, 7);
        let longest = during.last().expect("some");
        println!(
            "{} reads of pages in memory during {stopped:?}: p99 {:?}, before {:?}; longest \
             {longest:?}",
            during.len(),
            p99(&during),
            p99(&before)
        );
        assert!(*longest < stopped / 2, "a read took {longest:?}");
        assert!(stopped < COMPARED || p99(&during) <= 2 * p99(&before));
        let are_over = stopped > 2 * SOURCE_TIMEOUT;
        assert!(
            are_over || ended.try_recv().is_err(),
            "a cold page was read without the disk"
        );
        let status = cluster.status();
        assert_eq!((status.nodes.len(), status.fenced), (2, 0), "{status:?}");
        drop(closed);
        for _ in 0..COLD_READERS {
            let read = ended.recv_timeout(Duration::from_secs(60));
            match read.expect("the disk answers, or did not within the limit") {
                Ok(out) => assert_eq!(out, [1; PAGE]),
                Err(error) if are_over => assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT)),
                Err(error) => panic!("{error}"),
            }
        }
        let mut out = [0; PAGE];
        cold.read_exact_at(&mut out, 0).expect("the disk answers");
        assert_eq!(out, [1; PAGE]);
    });
    for path in &dirty {
        let file = open(path);
        file.sync_all().expect("durable");
        let stored = cluster.source().join(path.file_name().expect("a file"));
        let stored = fs::read(stored).expect("there");
        assert!(stored == vec![5; PAGES * PAGE], "{path:?}");
    }
    hot[1].write_all_at(&[8; PAGE], 0).expect("written");
    hot[1].sync_all().expect("durable");
    assert_eq!(cluster.status().lost_pages, 0);
    drop((hot, cold));
    one.end();
    two.end();
    let top = cluster.source().parent().map(Path::to_owned);
    drop(cluster);
    // Its mountpoint is in the directory of the test.
    drop(disk);
    fs::remove_dir_all(top.expect("a directory")).expect("nothing is mounted there");
}
