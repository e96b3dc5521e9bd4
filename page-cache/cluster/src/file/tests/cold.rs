//! Reads of pages that are in no memory.

use forebay_pagecache::message::PageId;
use forebay_pagecache::store::Store as _;

use super::*;
use crate::pool::Pool;
use crate::tree::Tree;

/// More than the nodes have frames.
const PAGES: u64 = 600;
/// Part of a page at the end of the file.
const REST: usize = 100;

fn byte(index: u64) -> u8 {
    u8::try_from(index % 251).expect("it is less") + 1
}

/// Lets all later calls of io_uring_setup(2) of this thread and its future ones fail, as in a
/// container.
fn forbid_io_uring() {
    let step = |code: u32, jump: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).expect("a small constant"),
        jt: 0,
        jf: jump,
        k,
    };
    let number = u32::try_from(libc::SYS_io_uring_setup).expect("a small number");
    let denied = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).expect("a small constant");
    let mut filter = [
        // The first word of the filter's data is the call's number.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number),
        step(libc::BPF_RET | libc::BPF_K, 0, denied),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).expect("few"),
        filter: filter.as_mut_ptr(),
    };
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: plain numbers; the kernel copies the filter, which lives until then.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program) == 0
    };
    assert!(installed, "the kernel takes no filter");
}

/// Reads a large file on two nodes, of which one changes it. Returns whether its pages were read
/// directly.
fn read_cold(bed: &Bed) -> bool {
    let path = bed.source.join("data");
    let mut bytes: Vec<u8> = (0..PAGES)
        .flat_map(|index| [byte(index); PAGE_BYTES])
        .collect();
    bytes.extend([99; REST]);
    std::fs::write(&path, bytes).expect("written");
    let [reader, writer] = [1, 2].map(|number| bed.node(number));
    let [file, other] = [&reader, &writer].map(|node| node.open("data").expect("there"));
    let read = |index: u64| {
        let mut page = [0; PAGE_BYTES];
        let count = file.read_at(index * PAGE_BYTES as u64, &mut page);
        let count = count.expect("it is read");
        assert!(page[..count].iter().all(|byte| *byte == page[0]), "{index}");
        (page[0], count)
    };
    for round in 0..3 {
        for step in 0..PAGES {
            // No page follows the one before.
            let index = step * 7 % PAGES;
            let expected = byte(index + round);
            assert_eq!(read(index), (expected, PAGE_BYTES), "{round}, {index}");
        }
        assert_eq!(read(PAGES), (99, REST), "{round}");
        for index in 0..PAGES {
            let bytes = [byte(index + round + 1); PAGE_BYTES];
            let written = other.write_at(index * PAGE_BYTES as u64, &bytes);
            written.expect("it is written");
        }
    }
    let tree = file.node.client().store();
    tree.opened_direct(file.inode).is_some()
}

#[test]
fn direct_reads_return_writes_of_other_nodes() {
    let bed = Bed::of_pages("cold", &[], 256);
    if !read_cold(&bed) {
        eprintln!("SKIPPED: the source or the kernel has no direct reads by io_uring");
    }
    std::fs::remove_dir_all(&bed.source).expect("removed");
}

#[test]
fn threads_read_where_io_uring_is_forbidden() {
    let bed = Bed::of_pages("cold-forbidden", &[], 256);
    std::thread::scope(|scope| {
        let forbidden = scope.spawn(|| {
            forbid_io_uring();
            assert!(!read_cold(&bed), "there is no ring");
        });
        forbidden.join().expect("no panic");
    });
    std::fs::remove_dir_all(&bed.source).expect("removed");
}

#[test]
fn no_file_is_opened_for_direct_reads_before_there_are_any() {
    let bed = Bed::new("cold-first");
    std::fs::write(bed.source.join("data"), [1; PAGE_BYTES]).expect("written");
    let pool = Pool::new(&bed.pool).expect("a short path");
    let tree = Tree::new(&bed.source, &pool).expect("a directory");
    let inode = tree.open("data".as_ref(), false).expect("there");
    let read = || {
        let mut page = [0; PAGE_BYTES];
        for _ in 0..4 {
            let first = PageId { inode, index: 0 };
            tree.read_pages(first, &mut page).expect("it is read");
        }
        assert_eq!(page, [1; PAGE_BYTES]);
        tree.opened_direct(inode).is_some()
    };
    assert!(!read() && !tree.submits());
    let reads = tree.reads();
    if !read() {
        assert!(!tree.submits());
        eprintln!("SKIPPED: the source or the kernel has no direct reads by io_uring");
    }
    drop(reads);
    drop(tree);
}
