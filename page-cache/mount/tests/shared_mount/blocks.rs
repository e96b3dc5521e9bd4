//! Allocation, holes, and copies in the kernel.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cluster::{Cluster, MAPPED, can_mount};
use super::readers::Over;
use super::sources::{made, plain, sibling};
use super::{number, open};

const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;

pub(super) fn allocate(file: &File, mode: i32, range: Range<u64>) -> io::Result<()> {
    let (start, len) = (range.start as i64, (range.end - range.start) as i64);
    // SAFETY: a plain system call on an open file.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, start, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Copies once in the kernel. Returns the number of bytes.
pub(super) fn copy(from: (&File, u64), to: (&File, u64), len: usize) -> io::Result<usize> {
    let (mut source, mut target) = (from.1 as i64, to.1 as i64);
    // SAFETY: two open files, and two offsets that live through the call.
    let copied = unsafe {
        libc::copy_file_range(
            from.0.as_raw_fd(),
            &raw mut source,
            to.0.as_raw_fd(),
            &raw mut target,
            len,
            0,
        )
    };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

fn seek(file: &File, offset: i64, whence: i32) -> io::Result<i64> {
    // SAFETY: a plain system call on an open file.
    match unsafe { libc::lseek(file.as_raw_fd(), offset, whence) } {
        -1 => Err(io::Error::last_os_error()),
        found => Ok(found),
    }
}

fn size(file: &File) -> u64 {
    file.metadata().expect("answers").len()
}

fn content(file: &File, range: Range<u64>) -> Vec<u8> {
    let mut out = vec![0xEE; (range.end - range.start) as usize];
    file.read_exact_at(&mut out, range.start).expect("read");
    out
}

#[test]
fn blocks_are_allocated_in_the_source() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("allocated");
    let _nodes = [cluster.node(1), cluster.node(2)];
    for below in ["", MAPPED] {
        let [a, b] = [1, 2].map(|number| cluster.mountpoint(number).join(below).join("data"));
        let source = cluster.source().join(below).join("data");
        let blocks = || fs::metadata(&source).expect("there").blocks() * 512;
        fs::write(&a, vec![1; 5000]).expect("written");
        let (at_a, at_b) = (open(&a), open(&b));
        allocate(&at_a, 0, 4000..1 << 20).expect("allocated");
        assert_eq!(size(&at_b), 1 << 20);
        assert!(blocks() >= (1 << 20) - 4096, "{}", blocks());
        assert_eq!(content(&at_b, 0..5000), [1; 5000]);
        assert_eq!(content(&at_b, 5000..9000), [0; 4000]);
        allocate(&at_a, KEEP, 1 << 20..2 << 20).expect("allocated");
        assert_eq!(size(&at_b), 1 << 20);
        assert!(blocks() >= (2 << 20) - 4096, "{}", blocks());
        // Inside of the file, nothing changes.
        allocate(&at_b, 0, 0..100).expect("allocated");
        assert_eq!((size(&at_a), content(&at_a, 0..1)), (1 << 20, vec![1]));
        // SAFETY: a plain system call on an open file.
        let outcome = unsafe { libc::posix_fallocate(at_b.as_raw_fd(), 0, 3 << 20) };
        assert_eq!((outcome, size(&at_a)), (0, 3 << 20));
        at_a.write_all_at(b"end", (3 << 20) - 3).expect("written");
        assert_eq!(content(&at_b, (3 << 20) - 3..3 << 20), b"end");
        for mode in [libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE] {
            let refused = allocate(&at_a, mode, 0..4096);
            assert_eq!(number(refused), Some(libc::EOPNOTSUPP));
        }
        // A hole: outside of the mapped directory, its blocks stay.
        at_a.sync_all().expect("durable");
        let before = blocks();
        allocate(&at_a, PUNCH, 0..2 << 20).expect("zeroed");
        assert_eq!(content(&at_b, 0..5000), [0; 5000]);
        at_a.sync_all().expect("durable");
        assert_eq!(
            blocks() == before,
            below.is_empty(),
            "{} of {before}",
            blocks()
        );
        let reader = File::open(&a).expect("there");
        assert_eq!(number(allocate(&reader, 0, 0..1)), Some(libc::EBADF));
    }
}

#[test]
fn a_full_source_refuses_an_allocation() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::on("full", |source| {
        let image = sibling(source, "disk").join("image");
        File::create(&image)
            .and_then(|file| file.set_len(32 << 20))
            .expect("made");
        made("mkfs.ext4", &["-q", "-F", plain(&image)]);
        made("mount", &["-o", "loop", plain(&image), plain(source)]);
        vec![source.to_owned()]
    });
    let _nodes = [cluster.node(1), cluster.node(2)];
    for below in ["", MAPPED] {
        let path = cluster.mountpoint(1).join(below).join("data");
        fs::write(&path, vec![1; 5000]).expect("written");
        let file = open(&path);
        for mode in [0, KEEP, ZERO] {
            let refused = allocate(&file, mode, 0..64 << 20);
            assert_eq!(number(refused), Some(libc::ENOSPC));
            // By itself, ext4 extends a file by the part that it has allocated.
            if below.is_empty() || mode == KEEP {
                assert_eq!(size(&file), 5000);
            }
            file.set_len(5000).expect("cut");
        }
        // SAFETY: a plain system call on an open file.
        let outcome = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, 64 << 20) };
        assert_eq!(outcome, libc::ENOSPC);
        // The kernel reports the last close later, and the removed file has its blocks until then.
        file.set_len(5000).expect("cut");
        fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn zeroed_ranges_are_zeroes_on_all_nodes_and_in_the_source() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("zeroed");
    let (one, two) = (cluster.node(1), cluster.node(2));
    // More than the memory of the cluster: some pages are in the source only.
    const LEN: usize = 3 << 20;
    let mut all = Vec::new();
    for below in ["", MAPPED] {
        let [a, b] = [1, 2].map(|number| cluster.mountpoint(number).join(below).join("data"));
        let mut model: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8 | 1).collect();
        fs::write(&a, &model).expect("written");
        let files = [open(&a), open(&b)];
        let zeroed = |model: &mut Vec<u8>, range: Range<u64>| {
            let end = model.len().min(range.end as usize);
            model[range.start as usize..end].fill(0);
        };
        for (round, mode) in [PUNCH, ZERO | KEEP, ZERO].into_iter().enumerate() {
            let [here, there] = [&files[round % 2], &files[1 - round % 2]];
            let base = round as u64 * 600_000;
            for range in [
                base + 5..base + 50,
                base + 4096..base + 8192,
                base + 9000..base + 500_000,
            ] {
                // A page that is dirty, and not in the source.
                let dirty = range.start + (range.end - range.start) / 2;
                there.write_all_at(b"dirty", dirty).expect("written");
                model[dirty as usize..dirty as usize + 5].copy_from_slice(b"dirty");
                allocate(here, mode, range.clone()).expect("zeroed");
                zeroed(&mut model, range);
            }
            assert!(fs::read(&b).expect("read") == model, "mode {mode}");
        }
        // Beyond the end.
        let end = LEN as u64;
        allocate(&files[0], PUNCH, end - 5000..end + 5000).expect("zeroed");
        zeroed(&mut model, end - 5000..end);
        assert_eq!(size(&files[1]), end);
        allocate(&files[0], ZERO | KEEP, end - 6000..end + 6000).expect("zeroed");
        zeroed(&mut model, end - 6000..end);
        assert_eq!(size(&files[1]), end);
        allocate(&files[0], ZERO, end - 7000..end + 7000).expect("zeroed");
        zeroed(&mut model, end - 7000..end);
        model.resize(LEN + 7000, 0);
        assert!(fs::read(&b).expect("read") == model, "longer");
        all.push((cluster.source().join(below).join("data"), model));
        drop(files);
    }
    // A hole of any length costs nothing.
    let large = File::create_new(cluster.mountpoint(1).join("large")).expect("made");
    large.set_len(1 << 42).expect("sparse");
    large.write_all_at(b"here", 1 << 41).expect("written");
    allocate(&large, PUNCH, 0..1 << 42).expect("zeroed");
    drop(large);
    let large = open(&cluster.mountpoint(2).join("large"));
    assert_eq!(content(&large, 1 << 41..(1 << 41) + 4), [0; 4]);
    drop(large);
    one.end();
    two.end();
    for (path, model) in all {
        assert!(
            fs::read(&path).expect("there") == model,
            "{}",
            path.display()
        );
    }
}

#[test]
fn a_punched_range_stays_zeroes_while_pages_leave_memory() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("pressure");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    // More than the memory of the cluster.
    const LEN: u64 = 3 << 20;
    let at_a = File::create_new(a.join("data")).expect("made");
    at_a.set_len(LEN).expect("longer");
    let at_b = open(&b.join("data"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for mount in [&a, &b] {
            let (path, over) = (mount.join("other"), &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    fs::write(&path, vec![7; LEN as usize]).expect("written");
                    fs::read(&path).expect("read");
                }
            });
        }
        let _over = Over(&over);
        for round in 0..300_u64 {
            let [writer, puncher] = match round % 2 {
                0 => [&at_a, &at_b],
                _ => [&at_b, &at_a],
            };
            let start = round * 37_813 % (LEN - 80_000);
            let len = [100, 4096, 20_000, 70_000][(round % 4) as usize];
            let data = vec![round as u8 | 1; len as usize];
            writer.write_all_at(&data, start).expect("written");
            let mode = [PUNCH, ZERO | KEEP][(round / 2 % 2) as usize];
            allocate(puncher, mode, start..start + len).expect("zeroed");
            for file in [writer, puncher] {
                let seen = content(file, start..start + len);
                assert!(seen.iter().all(|byte| *byte == 0), "round {round}");
            }
            // A part is written, and the rest stays zeroes.
            writer
                .write_all_at(b"part", start + len / 2)
                .expect("written");
            let rest = content(puncher, start + len / 2 + 4..start + len);
            assert!(rest.iter().all(|byte| *byte == 0), "round {round}, rest");
            allocate(writer, PUNCH, start..start + len).expect("zeroed");
        }
    });
    let zeroes = fs::read(b.join("data")).expect("read");
    assert!(zeroes.len() == LEN as usize && zeroes.iter().all(|byte| *byte == 0));
}

#[test]
fn all_bytes_are_data_also_those_of_dirty_pages() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("holes");
    let _nodes = [cluster.node(1), cluster.node(2)];
    for below in ["", MAPPED] {
        let [a, b] = [1, 2].map(|number| cluster.mountpoint(number).join(below).join("data"));
        let file = File::create_new(&a).expect("made");
        let other = open(&b);
        file.set_len(100_000).expect("sparse");
        assert_eq!(seek(&other, 5000, libc::SEEK_DATA).expect("data"), 5000);
        assert_eq!(seek(&other, 5000, libc::SEEK_HOLE).expect("end"), 100_000);
        // The other node made the file longer, in memory only.
        file.write_all_at(b"dirty", 200_000).expect("written");
        assert_eq!(
            seek(&other, 150_000, libc::SEEK_DATA).expect("data"),
            150_000
        );
        assert_eq!(seek(&other, 0, libc::SEEK_HOLE).expect("end"), 200_005);
        file.set_len(1000).expect("cut");
        let beyond = seek(&other, 1000, libc::SEEK_DATA);
        assert_eq!(number(beyond), Some(libc::ENXIO));
    }
}

#[test]
fn a_copy_in_the_kernel_has_the_newest_data() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("copies");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    // From the cache and from a mapped directory, to either.
    for (from, to) in [("", ""), ("", MAPPED), (MAPPED, ""), (MAPPED, MAPPED)] {
        let name = format!("from-{from}-to-{to}");
        let from = Path::new(from).join(&name);
        let to = Path::new(to).join(format!("{name}-copy"));
        fs::write(a.join(&from), vec![1; 20_000]).expect("written");
        let (source, writer) = (open(&a.join(&from)), open(&b.join(&from)));
        let target = File::create_new(a.join(&to)).expect("made");
        let reader = open(&b.join(&to));
        for round in 2..20_u8 {
            writer
                .write_all_at(&[round; 10_000], 5000)
                .expect("written");
            let copied = copy((&source, 4000), (&target, 100), 12_000);
            assert_eq!(copied.expect("copied"), 12_000);
            assert_eq!(content(&reader, 1100..11_100), [round; 10_000]);
            assert_eq!(content(&reader, 100..1100), [1; 1000]);
        }
        assert_eq!(size(&reader), 12_100);
        // Up to the end, and there nothing.
        let copied = copy((&source, 15_000), (&target, 0), 1 << 20);
        assert_eq!(copied.expect("copied"), 5000);
        let copied = copy((&source, 20_000), (&target, 0), 1 << 20);
        assert_eq!(copied.expect("copied"), 0);
        // The kernel learns of a file that grew on the other node when it reads its size.
        writer.write_all_at(b"more", 20_000).expect("written");
        let copied = copy((&source, 20_000), (&target, 0), 1 << 20);
        assert_eq!(copied.expect("copied"), 0);
        assert_eq!(size(&source), 20_004);
        let copied = copy((&source, 20_000), (&target, 0), 1 << 20);
        assert_eq!(copied.expect("copied"), 4);
        // In one file.
        let copied = copy((&source, 5000), (&source, 30_000), 10_000);
        assert_eq!(copied.expect("copied"), 10_000);
        assert_eq!(content(&writer, 30_000..40_000), [19; 10_000]);
    }
    // A whole file, in as many steps as the system needs.
    let long: Vec<u8> = (0..5 << 20).map(|at: u32| (at % 253) as u8).collect();
    fs::write(a.join("long"), &long).expect("written");
    fs::copy(b.join("long"), b.join("long-copy")).expect("copied");
    assert!(fs::read(a.join("long-copy")).expect("there") == long);
}

/// Sends the start of a file into another one by sendfile(2).
fn sent(from: &File, to: &Path) -> Vec<u8> {
    let target = File::create(to).expect("made");
    let mut offset = 0;
    // SAFETY: two open files, and an offset that lives through the call.
    let count =
        unsafe { libc::sendfile(target.as_raw_fd(), from.as_raw_fd(), &raw mut offset, 4096) };
    assert_eq!(count, 4096, "{}", io::Error::last_os_error());
    fs::read(to).expect("there")
}

#[test]
fn sendfile_has_the_data_of_the_last_open_or_newer() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("sendfile");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    let to = sibling(&cluster.source(), "elsewhere").join("sent");
    fs::write(a.join("data"), [1; 4096]).expect("written");
    let (held, writer) = (open(&a.join("data")), open(&b.join("data")));
    assert_eq!(sent(&held, &to), [1; 4096]);
    for round in 2..50 {
        writer.write_all_at(&[round; 4096], 0).expect("written");
        assert_eq!(sent(&open(&a.join("data")), &to), [round; 4096]);
        // The kernel's copy is as new as that open, for all.
        assert_eq!(sent(&held, &to), [round; 4096]);
        held.write_all_at(&[100 + round; 4096], 0).expect("written");
        assert_eq!(sent(&held, &to), [100 + round; 4096]);
    }
    let mut options = OpenOptions::new();
    let direct = options
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(a.join("data"));
    let direct = direct.expect("there");
    for round in 2..50 {
        writer.write_all_at(&[round; 4096], 0).expect("written");
        assert_eq!(sent(&direct, &to), [round; 4096]);
    }
    // In a mapped directory there is no copy.
    fs::write(a.join(MAPPED).join("data"), [1; 4096]).expect("written");
    let (held, writer) = (
        open(&a.join(MAPPED).join("data")),
        open(&b.join(MAPPED).join("data")),
    );
    for round in 2..50 {
        writer.write_all_at(&[round; 4096], 0).expect("written");
        assert_eq!(sent(&held, &to), [round; 4096]);
    }
}
