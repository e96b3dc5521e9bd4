//! A tree that nodes share, mounted on two of them at once, as processes. Needs root and
//! `/dev/fuse`, and prints a reason if it is skipped.

mod blocks;
mod cluster;
mod differences;
mod fsx;
mod git;
mod listing;
mod locks;
mod mapped;
mod outlive;
mod postgres;
mod programs;
mod readers;
mod relaxed;
mod replicas;
mod sources;
mod special;
mod sqlite;
mod stopped;
mod users;
mod written;
mod xattrs;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use cluster::{Cluster, MAPPED, WITHOUT_DIRECTORY, can_mount};

#[test]
fn role() {
    cluster::role();
}

fn open(path: &Path) -> File {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("a directory");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("text");
    let mut names: Vec<String> = entries.map(|entry| name(entry.expect("listed"))).collect();
    names.sort();
    names
}

fn number<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.expect_err("refused").raw_os_error()
}

#[test]
fn a_write_is_read_on_the_other_node_at_once() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("coherent");
    fs::write(cluster.source().join("old"), "from before").expect("written");
    let (one, two) = (cluster.node(1), cluster.node(2));
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    assert_eq!(names(&a), [MAPPED, "old"]);
    assert_eq!(text(&b.join("old")), "from before");
    fs::write(a.join("data"), vec![1; 10_000]).expect("written");
    let (at_a, at_b) = (open(&a.join("data")), open(&b.join("data")));
    let mut out = vec![0; 20_000];
    assert_eq!(at_b.read_at(&mut out, 0).expect("read"), 10_000);
    assert!(out[..10_000].iter().all(|byte| *byte == 1));
    for round in 2..100_u8 {
        let (from, to) = if round % 2 == 0 {
            (&at_a, &at_b)
        } else {
            (&at_b, &at_a)
        };
        from.write_all_at(&[round; 5000], 4000).expect("written");
        assert_eq!(to.read_at(&mut out[..5000], 4000).expect("read"), 5000);
        assert!(
            out[..5000].iter().all(|byte| *byte == round),
            "round {round}"
        );
    }
    let status = cluster.status();
    let copies = status.pages.owner + status.pages.shared;
    assert_eq!(copies, 1 + 3, "one copy of each page: {status:?}");
    // Extended on one node, and visible through the other's open file.
    at_a.write_all_at(b"end", 30_000).expect("written");
    assert_eq!(at_b.metadata().expect("answers").len(), 30_003);
    assert_eq!(at_b.read_at(&mut out, 29_000).expect("read"), 1003);
    assert!(out[..1000].iter().all(|byte| *byte == 0));
    // Truncated on the other node; the removed range is zeroes when the file is extended.
    at_b.set_len(4098).expect("cut");
    assert_eq!(at_a.metadata().expect("answers").len(), 4098);
    assert_eq!(at_a.read_at(&mut out, 4000).expect("read"), 98);
    at_a.set_len(12_000).expect("longer");
    assert_eq!(at_b.read_at(&mut out, 4096).expect("read"), 12_000 - 4096);
    assert_eq!(out[..2], [99; 2]);
    assert!(out[2..12_000 - 4096].iter().all(|byte| *byte == 0));
    // The same for one page, for which single lookups are used instead of a scan.
    at_a.write_all_at(&[8; 4096], 8192).expect("written");
    at_b.set_len(8192).expect("cut");
    at_a.set_len(12_288).expect("longer");
    at_b.read_exact_at(&mut out[..4096], 8192).expect("read");
    assert!(out[..4096].iter().all(|byte| *byte == 0));
    at_a.sync_all().expect("durable");
    fs::write(b.join("data"), "short").expect("rewritten");
    assert_eq!(text(&a.join("data")), "short");
    drop((at_a, at_b));
    one.end();
    two.end();
    assert_eq!(text(&cluster.source().join("data")), "short");
    assert_eq!(names(&a), [] as [&str; 0], "it is unmounted");
}

#[test]
fn appends_of_two_nodes_all_get_a_place() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("append");
    let _nodes = [cluster.node(1), cluster.node(2)];
    append_from_all(&[1, 2].map(|number| cluster.mountpoint(number).join("log")));
}

/// Programs append to one file by each of its paths.
fn append_from_all(paths: &[PathBuf]) {
    const EACH: usize = 300;
    fs::write(&paths[0], "").expect("made");
    std::thread::scope(|scope| {
        for (number, path) in paths.iter().enumerate() {
            scope.spawn(move || {
                let log = OpenOptions::new().append(true).open(path);
                let mut log = log.expect("there");
                for line in 0..EACH {
                    let text = format!("{number} {line} {}\n", "x".repeat(line));
                    log.write_all(text.as_bytes()).expect("appended");
                }
            });
        }
    });
    for path in paths {
        let log = text(path);
        assert_eq!(log.lines().count(), paths.len() * EACH);
        for writer in 0..paths.len() {
            let start = writer.to_string();
            let lines = log.lines().filter(|line| line.starts_with(&start));
            for (index, line) in lines.enumerate() {
                assert_eq!(line, format!("{writer} {index} {}", "x".repeat(index)));
            }
        }
    }
}

#[test]
fn names_are_the_same_everywhere_and_errors_are_the_systems() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("names");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    fs::create_dir(a.join("dir")).expect("made");
    fs::write(a.join("dir/one"), "one").expect("written");
    assert_eq!(names(&b.join("dir")), ["one"]);
    // An open file works under another name, below another directory.
    let held = open(&b.join("dir/one"));
    held.write_all_at(b"ONE", 0).expect("written");
    fs::rename(a.join("dir"), a.join("moved")).expect("renamed");
    fs::rename(a.join("moved/one"), a.join("two")).expect("renamed");
    held.write_all_at(b"!", 3).expect("written");
    held.sync_all().expect("durable");
    assert_eq!(text(&cluster.source().join("two")), "ONE!");
    assert_eq!(text(&a.join("two")), "ONE!");
    // A rename over an open file: its users keep the old one.
    fs::write(a.join("three"), "three").expect("written");
    fs::rename(a.join("three"), a.join("two")).expect("renamed");
    assert_eq!(text(&b.join("two")), "three");
    let mut out = [0; 4];
    held.read_exact_at(&mut out, 0).expect("it is still there");
    assert_eq!(&out, b"ONE!");
    let replaced = held.metadata().expect("answers");
    assert_eq!(replaced.nlink(), 0, "it has no name");
    let inode = replaced.ino();
    drop(held);
    // Its blocks are freed soon after the last close.
    let removed = cluster
        .source()
        .join(".forebay/removed")
        .join(inode.to_string());
    let begin = Instant::now();
    while !removed.exists() {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "it is not given up"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(fs::metadata(removed).expect("there").len(), 0);
    std::os::unix::fs::symlink("two", b.join("link")).expect("made");
    assert_eq!(
        fs::read_link(a.join("link")).expect("a link"),
        Path::new("two")
    );
    assert_eq!(text(&a.join("link")), "three");
    fs::hard_link(a.join("two"), b.join("moved/other")).expect_err("over two mounts");
    fs::hard_link(a.join("two"), a.join("moved/other")).expect("linked");
    assert_eq!(fs::metadata(b.join("two")).expect("there").nlink(), 2);
    let removed = open(&a.join("moved/other"));
    fs::remove_file(b.join("moved/other")).expect("removed");
    assert_eq!(removed.metadata().expect("answers").nlink(), 1);
    fs::hard_link(a.join("two"), a.join("moved/other")).expect("linked");
    fs::set_permissions(a.join("two"), fs::Permissions::from_mode(0o640)).expect("set");
    assert_eq!(
        fs::metadata(b.join("two")).expect("there").mode() & 0o7777,
        0o640
    );
    // An explicit time stays when pages are written back later.
    let two = open(&b.join("two"));
    two.write_all_at(b"T", 0).expect("written");
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    two.set_modified(time).expect("set");
    two.sync_all().expect("durable");
    let modified = fs::metadata(a.join("two")).expect("there").modified();
    assert_eq!(modified.expect("a time"), time);
    assert_eq!(text(&cluster.source().join("two")), "Three");
    assert_eq!(number(fs::read(a.join("nothing"))), Some(libc::ENOENT));
    assert_eq!(number(fs::create_dir(b.join("moved"))), Some(libc::EEXIST));
    assert_eq!(
        number(fs::remove_dir(b.join("moved"))),
        Some(libc::ENOTEMPTY)
    );
    assert_eq!(number(fs::remove_dir(b.join("two"))), Some(libc::ENOTDIR));
    assert_eq!(number(File::create_new(b.join("two"))), Some(libc::EEXIST));
    assert_eq!(
        number(fs::rename(a.join("two"), a.join("moved"))),
        Some(libc::EISDIR)
    );
    let long = "n".repeat(300);
    assert_eq!(
        number(File::create_new(a.join(long))),
        Some(libc::ENAMETOOLONG)
    );
    assert_eq!(
        number(fs::read(a.join(".forebay/files"))),
        Some(libc::ENOENT)
    );
    assert_eq!(
        number(fs::create_dir(a.join(".forebay"))),
        Some(libc::EPERM)
    );
    fs::remove_file(a.join("moved/other")).expect("removed");
    fs::remove_dir(b.join("moved")).expect("removed");
    assert_eq!(names(&b), ["link", MAPPED, "two"]);
}

#[test]
fn renames_refuse_to_replace_and_exchange() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("exchange");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    let renamed = |from: &str, to: &str, flags: u32| {
        let path = |name| std::ffi::CString::new(format!("{}/{name}", a.display()));
        let (from, to) = (path(from).expect("text"), path(to).expect("text"));
        let here = libc::AT_FDCWD;
        // SAFETY: two strings that live through the call.
        match unsafe { libc::renameat2(here, from.as_ptr(), here, to.as_ptr(), flags) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    fs::write(a.join("one"), "one").expect("written");
    fs::write(a.join("two"), "two").expect("written");
    let held = open(&b.join("one"));
    let refused = renamed("one", "two", libc::RENAME_NOREPLACE);
    assert_eq!(number(refused), Some(libc::EEXIST));
    renamed("one", "two", libc::RENAME_EXCHANGE).expect("exchanged");
    assert_eq!(
        (text(&b.join("one")), text(&b.join("two"))),
        ("two".into(), "one".into())
    );
    held.write_all_at(b"ONE", 0).expect("written");
    assert_eq!(text(&a.join("two")), "ONE");
    let missing = renamed("one", "none", libc::RENAME_EXCHANGE);
    assert_eq!(number(missing), Some(libc::ENOENT));
    renamed("one", "new", libc::RENAME_NOREPLACE).expect("renamed");
    assert_eq!(names(&b), [MAPPED, "new", "two"]);
    let across = renamed("new", MAPPED, libc::RENAME_EXCHANGE);
    assert_eq!(number(across), Some(libc::EBUSY));
    fs::write(a.join("db-wal"), "log").expect("written");
    for (from, to) in [("new", "db-wal"), ("db-wal", "new")] {
        let classes = renamed(from, to, libc::RENAME_EXCHANGE);
        assert_eq!(number(classes), Some(libc::EXDEV), "{from} {to}");
    }
    let whiteout = renamed("new", "other", libc::RENAME_WHITEOUT);
    assert_eq!(number(whiteout), Some(libc::EINVAL));
}

#[test]
fn a_file_that_is_removed_and_recreated_holds_no_old_data() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("again");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    // More than the interval of sweeps, and more than the cluster's memory.
    for round in 0..300_u32 {
        let (from, to) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        fs::write(from.join("file"), vec![7; 9000]).expect("written");
        fs::remove_file(to.join("file")).expect("removed");
        let file = File::create_new(to.join("file")).expect("made");
        file.write_all_at(b"x", 8999).expect("written");
        let seen = fs::read(from.join("file")).expect("read");
        let nothing = seen[..8999].iter().all(|byte| *byte == 0);
        assert!(nothing && seen.len() == 9000, "round {round}");
        drop(file);
        fs::remove_file(from.join("file")).expect("removed");
    }
    let removed = fs::read_dir(cluster.source().join(".forebay/removed"));
    let removed = removed.expect("there").count();
    assert!(
        removed < 512,
        "{removed} removed files are kept for 192 pages"
    );
    assert_eq!(cluster.status().lost_pages, 0);
}

#[test]
fn synced_data_outlives_a_killed_node() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("killed");
    let (mut one, _two) = (cluster.node(1), cluster.node(2));
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    let file = File::create_new(a.join("data")).expect("made");
    file.write_all_at(&[5; 50_000], 0).expect("written");
    file.sync_all().expect("durable");
    file.write_all_at(&[6; 10], 0).expect("written");
    one.kill();
    assert_eq!(number(file.sync_all()), Some(libc::ENOTCONN));
    cluster.wait(|status| status.nodes.len() == 1);
    let seen = fs::read(b.join("data")).expect("the others go on");
    assert_eq!(seen.len(), 50_000);
    assert!(seen[10..].iter().all(|byte| *byte == 5));
    assert!(matches!(seen[0], 5 | 6), "{}", seen[0]);
    drop(file);
    // The same node, on the mountpoint that it has left.
    let _one = cluster.node(1);
    fs::write(a.join("data"), "again").expect("written");
    assert_eq!(text(&b.join("data")), "again");
}

#[test]
fn without_a_directory_answers_come_in_time() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::new("alone");
    let _one = cluster.node(1);
    let path = cluster.mountpoint(1).join("data");
    fs::write(&path, vec![1; 3 * 4096]).expect("written");
    let mut file = open(&path);
    let mut page = [0; 4096];
    file.read_exact(&mut page).expect("read");
    cluster.kill_directory();
    let begin = Instant::now();
    // A mapped page needs no directory; a new one does.
    file.seek(SeekFrom::Start(0)).expect("moved");
    file.read_exact(&mut page).expect("it is mapped");
    let refused = file.write_all_at(&[2; 4096], 64 * 4096);
    assert_eq!(
        refused.expect_err("nobody answers").raw_os_error(),
        Some(libc::EIO)
    );
    assert!(
        begin.elapsed() < WITHOUT_DIRECTORY * 10,
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn a_shared_mapping_of_a_cached_file_is_refused_and_a_private_one_is_a_copy() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("mapping");
    let _one = cluster.node(1);
    let path = cluster.mountpoint(1).join("data");
    fs::write(&path, vec![3; 4096]).expect("written");
    let file = open(&path);
    let map = |flags| {
        let protection = libc::PROT_READ;
        // SAFETY: a new mapping at an address of the system's choice; no other code has an address
        // in it.
        unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                protection,
                flags,
                file.as_raw_fd(),
                0,
            )
        }
    };
    assert_eq!(map(libc::MAP_SHARED), libc::MAP_FAILED);
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::ENODEV)
    );
    let private = map(libc::MAP_PRIVATE);
    assert_ne!(private, libc::MAP_FAILED);
    // SAFETY: the page that was just mapped, within the file.
    let seen = unsafe { private.cast::<u8>().read_volatile() };
    assert_eq!(seen, 3);
    // SAFETY: the mapping from above; no code has an address in it any more.
    assert_eq!(unsafe { libc::munmap(private, 4096) }, 0);
    let missing = fs::read(cluster.mountpoint(1).join("none")).expect_err("none");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}
