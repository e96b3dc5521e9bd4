//! Tests with the real kernel: mounts, loop devices, file systems. Each needs root and prints a
//! reason if it is skipped. Guards undo all changes, even after a failure.

pub(super) mod support;

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_block::{BlockDevice, Completion, DeviceInfo, Request};
use forebay_device::mem::MemDevice;
use forebay_io::rt;

use super::*;
use support::{
    Loop, Mounted, Seen, Spy, TempDir, can_loop, can_mount, mount_device, open, run, serve,
};

#[test]
fn ordinary_programs_read_and_write_it() {
    if !can_mount() {
        return;
    }
    const SIZE: u64 = 8 << 20;
    let dir = TempDir::new("ordinary");
    let served = serve("db", false, || MemDevice::new("m", SIZE));
    let mount = mount(served.handle.clone(), &dir.0).expect("mounted");
    assert_eq!(mount.file(), dir.0.join("db"));

    let names: Vec<_> = std::fs::read_dir(&dir.0)
        .expect("listed")
        .map(|entry| entry.expect("listed").file_name())
        .collect();
    assert_eq!(names, ["db"]);
    let metadata = std::fs::metadata(mount.file()).expect("there");
    assert_eq!((metadata.len(), metadata.mode()), (SIZE, 0o100_600));
    assert!(!dir.0.join("other").exists());

    let mut file = open(mount.file(), 0);
    file.write_all_at(b"an unaligned piece", 4_095_999)
        .expect("written");
    let mut back = [0; 20];
    file.read_exact_at(&mut back, 4_095_998).expect("read");
    assert_eq!(&back, b"\0an unaligned piece\0");

    // A large file, which needs several of the kernel's requests, at an unaligned offset.
    let large: Vec<u8> = (0..3_000_001u32).map(|index| (index % 251) as u8).collect();
    file.write_all_at(&large, 777).expect("written");
    let mut back = vec![0; large.len()];
    file.read_exact_at(&mut back, 777).expect("read");
    assert!(back == large);

    assert_eq!(file.read_at(&mut back, SIZE - 100).expect("read"), 100);
    assert_eq!(file.read_at(&mut back, SIZE).expect("read"), 0);
    assert_eq!(file.write_at(&[1; 200], SIZE - 100).expect("cut"), 100);
    let full = file.write_at(&[1; 200], SIZE).expect_err("past the end");
    assert_eq!(full.kind(), IoErrorKind::StorageFull);

    let refused = file.set_len(0).expect_err("a volume keeps its size");
    assert_eq!(refused.kind(), IoErrorKind::PermissionDenied);
    file.set_len(SIZE).expect("the same size");
    assert_eq!(file.read_at(&mut back[..3], 777).expect("not truncated"), 3);
    assert_eq!(back[..3], large[..3]);
    file.write_all(b"x").expect("closed and written");
    drop(file);

    run(
        "dd",
        &[
            "if=/dev/zero",
            &format!("of={}", mount.file().display()),
            "bs=1M",
            "count=3",
            "conv=notrunc,fsync",
            "oflag=direct",
        ],
    );
    let mut start = vec![1; 3 << 20];
    File::open(mount.file())
        .and_then(|mut file| file.read_exact(&mut start))
        .expect("read");
    assert!(start.iter().all(|&byte| byte == 0));
    assert!(mount.unmount().expect("unmounted"), "nobody uses it");
    assert!(!dir.0.join("db").exists());
}

#[test]
fn programs_find_its_holes() {
    if !can_mount() {
        return;
    }
    const SIZE: u64 = 64 << 20;
    let dir = TempDir::new("holes");
    let served = serve("db", false, || MemDevice::new("m", SIZE));
    let mount = mount(served.handle.clone(), &dir.0).expect("mounted");
    let file = open(mount.file(), 0);
    file.write_all_at(&[7; 4096], 20 << 20).expect("written");
    let seek = |at: i64, whence: i32| {
        // SAFETY: the descriptor is open.
        let found = unsafe { libc::lseek(file.as_raw_fd(), at, whence) };
        u64::try_from(found).map_err(|_| std::io::Error::last_os_error().raw_os_error())
    };
    let (data, hole) = (libc::SEEK_DATA, libc::SEEK_HOLE);
    assert_eq!(seek(0, data), Ok(20 << 20));
    assert_eq!(seek(0, hole), Ok(0));
    assert_eq!(seek((20 << 20) + 5, data), Ok((20 << 20) + 5));
    assert_eq!(seek(20 << 20, hole), Ok(22 << 20));
    assert_eq!(seek(22 << 20, data), Err(Some(libc::ENXIO)));
    assert_eq!(seek(SIZE.cast_signed(), hole), Err(Some(libc::ENXIO)));
    assert_eq!(served.handle.stats().read.bytes, 0);
    drop(file);
    assert!(mount.unmount().expect("unmounted"));
}

#[test]
fn syncs_and_holes_reach_the_device() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new("syncs");
    let seen = Arc::new(Seen::default());
    let spied = Arc::clone(&seen);
    let served = serve("db", false, || {
        Rc::new(Spy(MemDevice::new("m", 8 << 20), spied))
    });
    let mount = mount(served.handle.clone(), &dir.0).expect("mounted");
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);

    let file = open(mount.file(), 0);
    file.write_all_at(&[7; 64 << 10], 0).expect("written");
    assert!(count(&seen.writes) > 0);
    assert_eq!((count(&seen.fua_writes), count(&seen.flushes)), (0, 0));
    file.sync_all().expect("synced");
    assert_eq!(count(&seen.flushes), 1);
    file.sync_data().expect("synced");
    assert_eq!(count(&seen.flushes), 2);

    for (flags, fua_writes) in [(libc::O_DSYNC, 1), (libc::O_SYNC, 2)] {
        let file = open(mount.file(), flags);
        file.write_all_at(&[7; 4096], 0).expect("written");
        assert_eq!(count(&seen.fua_writes), fua_writes);
    }

    let fallocate = |mode: i32, offset: i64, len: i64| {
        // SAFETY: the descriptor is open.
        match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    fallocate(punch, 100, 20_000).expect("punched");
    fallocate(libc::FALLOC_FL_ZERO_RANGE, 32 << 10, 8192).expect("zeroed");
    assert_eq!(count(&seen.unmapped_bytes), (20_100 - 20_100 % 512) - 512);
    assert_eq!(count(&seen.zeroed_bytes), 8192);
    let mut back = vec![0; 64 << 10];
    file.read_exact_at(&mut back, 0).expect("read");
    for (index, byte) in back.into_iter().enumerate() {
        let hole = (100..20_100).contains(&index) || (32 << 10..40 << 10).contains(&index);
        assert_eq!(byte, if hole { 0 } else { 7 }, "byte {index}");
    }
    let refused = fallocate(0, 0, 4096).expect_err("there is nothing to allocate");
    assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
}

/// A device that answers reads only when this many are in flight, or after a time limit.
struct Crowd {
    inner: Rc<dyn BlockDevice>,
    enough: usize,
    waiting: Rc<RefCell<Vec<(Request, Completion)>>>,
    /// Maximum number of reads that were in flight at a time.
    most: Arc<AtomicU64>,
}

impl Crowd {
    fn answer(inner: &dyn BlockDevice, waiting: &RefCell<Vec<(Request, Completion)>>) {
        for (request, done) in waiting.take() {
            inner.submit(request, done);
        }
    }
}

impl BlockDevice for Crowd {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        self.waiting.borrow_mut().push((request, done));
        let count = self.waiting.borrow().len();
        self.most.fetch_max(count as u64, Ordering::Relaxed);
        if count == self.enough {
            Self::answer(&*self.inner, &self.waiting);
        } else if count == 1 {
            let (inner, waiting) = (Rc::clone(&self.inner), Rc::clone(&self.waiting));
            rt::spawn(async move {
                rt::sleep(Duration::from_secs(30)).await;
                Self::answer(&*inner, &waiting);
            });
        }
    }
}

#[test]
fn many_requests_are_in_flight_at_once() {
    const READERS: usize = 32;
    if !can_mount() {
        return;
    }
    let dir = TempDir::new("many");
    let most = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&most);
    let served = serve("db", false, move || {
        Rc::new(Crowd {
            inner: MemDevice::new("m", 8 << 20),
            enough: READERS,
            waiting: Rc::default(),
            most: seen,
        })
    });
    let mount = mount(served.handle.clone(), &dir.0).expect("mounted");
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                let file = File::open(mount.file()).expect("opened");
                file.read_exact_at(&mut [0; 4096], 0).expect("read");
            });
        }
    });
    assert_eq!(most.load(Ordering::Relaxed), READERS as u64);
}

#[test]
fn a_read_only_volume_takes_no_writes() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new("read only");
    let served = serve("db", true, || MemDevice::new("m", 1 << 20));
    let mount = mount(served.handle.clone(), &dir.0).expect("mounted");
    assert_eq!(
        std::fs::metadata(mount.file()).expect("there").mode() & 0o777,
        0o400
    );
    let refused = OpenOptions::new()
        .write(true)
        .open(mount.file())
        .expect_err("read-only");
    assert_eq!(refused.kind(), IoErrorKind::ReadOnlyFilesystem);
    File::open(mount.file())
        .expect("readable")
        .read_exact(&mut [0; 100])
        .expect("read");
}

#[test]
fn a_mountpoint_shows_one_volume() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new("one");
    let served = serve("db", false, || MemDevice::new("m", 1 << 20));
    let first = mount(served.handle.clone(), &dir.0).expect("mounted");
    let error = mount(served.handle.clone(), &dir.0).expect_err("taken");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.report().contains("volume db"), "{}", error.report());
    drop(first);
    drop(mount(served.handle.clone(), &dir.0).expect("free again"));
    let bad = serve("a/b", false, || MemDevice::new("m", 1 << 20));
    let error = mount(bad.handle.clone(), &dir.0).expect_err("no file name");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn file_systems_live_on_a_loop_device() {
    if !can_loop(&["losetup", "mkfs.ext4", "e2fsck", "mkfs.xfs", "xfs_repair"]) {
        return;
    }
    let dir = TempDir::new("loop");
    let (export, tree) = (dir.0.join("export"), dir.0.join("tree"));
    std::fs::create_dir(&tree).expect("made");
    let tree_path = tree.to_str().expect("a plain path");
    for (make, check, sector_bytes) in [
        (["mkfs.ext4", "-qF"], ["e2fsck", "-fn"], 512),
        (["mkfs.ext4", "-qF"], ["e2fsck", "-fn"], 4096),
        (["mkfs.xfs", "-qf"], ["xfs_repair", "-n"], 512),
    ] {
        let seen = Arc::new(Seen::default());
        let spied = Arc::clone(&seen);
        let served = serve("db", false, || {
            Rc::new(Spy(MemDevice::new("m", 400 << 20), spied))
        });
        let mount = mount(served.handle.clone(), &export).expect("mounted");
        let device = Loop::attach(mount.file(), sector_bytes);
        let direct = run("losetup", &["--noheadings", "--output", "DIO", &device.0]);
        assert_eq!(direct, "1", "the loop device bypasses the page cache");

        run(make[0], &[make[1], &device.0]);
        let flushes = seen.flushes.load(Ordering::Relaxed);
        mount_device("discard", &device.0, tree_path);
        let mounted = Mounted(tree.clone());
        let text: Vec<u8> = (0..2_000_000u32).flat_map(u32::to_le_bytes).collect();
        for index in 0..8 {
            let mut file = File::create(tree.join(format!("file {index}"))).expect("made");
            file.write_all(&text).expect("written");
            file.sync_all().expect("synced");
        }
        assert!(
            seen.flushes.load(Ordering::Relaxed) > flushes,
            "fsync reaches the device"
        );
        std::fs::remove_file(tree.join("file 7")).expect("removed");
        drop(mounted);
        assert!(
            seen.unmapped_bytes.load(Ordering::Relaxed) > 0,
            "discards reach the device"
        );

        run(check[0], &[check[1], &device.0]);
        mount_device("ro", &device.0, tree_path);
        let mounted = Mounted(tree.clone());
        for index in 0..7 {
            let back = std::fs::read(tree.join(format!("file {index}"))).expect("read");
            assert!(back == text, "file {index} came back as it was written");
        }
        drop(mounted);
        drop(device);
        drop(mount);
    }
}

#[test]
fn a_file_in_use_is_unmounted_lazily_and_served_on() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new("busy");
    let served = serve("db", false, || MemDevice::new("m", 1 << 20));
    let mount = mount(served.handle.clone(), &dir.0).expect("mounted");
    let file = open(mount.file(), 0);
    assert!(!mount.unmount().expect("unmounted lazily"), "it is in use");
    assert!(!dir.0.join("db").exists(), "the name is gone");
    file.write_all_at(b"still here", 5000).expect("served");
    let mut back = [0; 10];
    file.read_exact_at(&mut back, 5000).expect("served");
    assert_eq!(&back, b"still here");
    drop(file);
    // A mount waits for one that is in use for a short time.
    let remounted = super::mount(served.handle.clone(), &dir.0).expect("the place is free");
    let file = open(remounted.file(), 0);
    let closing = std::thread::spawn(|| {
        std::thread::sleep(Duration::from_millis(50));
        drop(file);
    });
    assert!(remounted.unmount().expect("unmounted"), "nobody uses it");
    closing.join().expect("closed");
}

#[test]
fn errors_of_the_device_reach_the_program() {
    struct Broken(DeviceInfo);
    impl BlockDevice for Broken {
        fn info(&self) -> DeviceInfo {
            self.0.clone()
        }
        fn submit(&self, _: Request, done: Completion) {
            done.complete(Err(ErrorKind::Lost.into()));
        }
    }
    if !can_mount() {
        return;
    }
    let dir = TempDir::new("errors");
    let served = serve("db", false, || {
        Rc::new(Broken(DeviceInfo::new("b", 1 << 20)))
    });
    let mount = mount(served.handle.clone(), &dir.0).expect("mounted");
    let file = open(mount.file(), 0);
    let eio = |outcome: std::io::Result<()>| {
        assert_eq!(outcome.expect_err("broken").raw_os_error(), Some(libc::EIO));
    };
    eio(file.read_exact_at(&mut [0; 512], 0));
    eio(file.write_all_at(&[0; 512], 0));
    eio(file.write_all_at(&[0; 5], 0));
    eio(file.sync_all());
    drop(file);
    drop(mount);
}
