use std::path::PathBuf;

use forebay_block::{Buf, completion_pair};

use super::*;
use crate::engine::FileStep;
use crate::reactor::FileOp;
use crate::testing::{Scratch, Thread, engines};
use crate::{Engine, Reactor};

const MIB: u64 = 1 << 20;

fn on_both(test: impl AsyncFn(&Scratch) + Copy + 'static) {
    for engine in engines() {
        on(engine, test);
    }
}

fn on(engine: Engine, test: impl AsyncFn(&Scratch) + Copy + 'static) {
    let reactor = Reactor::new(engine).expect("this engine works here");
    reactor.run(async move { test(&Scratch::new()).await });
}

fn options() -> FileOptions {
    FileOptions {
        direct: true,
        exclusive: true,
        create_bytes: Some(4 * MIB),
        ..FileOptions::default()
    }
}

async fn request(file: &File, request: Request) -> Result<()> {
    let (done, future) = completion_pair();
    file.submit(request, done);
    future.await
}

async fn read(file: &File, offset: u64, len: usize) -> Buf {
    let buf = Buf::scratch(len);
    buf.fill(0xEE);
    let read = request(file, Request::read(offset, buf.clone())).await;
    read.expect("reads");
    buf
}

fn pattern(len: usize, seed: u8) -> Buf {
    let bytes: Vec<u8> = (0..len).map(|at| (at / 7 % 251) as u8 ^ seed).collect();
    Buf::copied(&bytes)
}

#[test]
fn written_data_is_read_back() {
    on_both(async |scratch| {
        let file = File::open(scratch.path("f"), &options()).expect("new");
        let geometry = file.geometry();
        assert_eq!(geometry.size_bytes, 4 * MIB);
        assert!(geometry.physical_block_bytes >= geometry.logical_block_bytes);
        assert!(!geometry.block_device);
        assert!(
            read(&file, MIB, 8192).await.is_zero(),
            "a new file is zeroes"
        );
        for (offset, len, fua) in [(0, 4096, false), (MIB, 1 << 20, true), (8192, 12288, true)] {
            let data = pattern(len, 7);
            let write = Request::write(offset, data.clone(), fua);
            request(&file, write).await.expect("writes");
            assert_eq!(read(&file, offset, len).await.to_vec(), data.to_vec());
        }
        request(&file, Request::flush()).await.expect("flushes");
        let path = scratch.path("f");
        drop(file);
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 4 * MIB);
        let bytes = std::fs::read(&path).expect("readable");
        assert_eq!(&bytes[8192..8192 + 12288], &pattern(12288, 7).to_vec()[..]);
    });
}

#[test]
fn a_reopened_file_keeps_its_contents_and_size() {
    on_both(async |scratch| {
        let file = File::open(scratch.path("f"), &options()).expect("new");
        let data = pattern(4096, 3);
        let write = Request::write(4096, data.clone(), true);
        request(&file, write).await.expect("writes");
        drop(file);
        let other_size = FileOptions {
            create_bytes: Some(MIB),
            ..options()
        };
        let file = File::open(scratch.path("f"), &other_size).expect("there");
        assert_eq!(file.geometry().size_bytes, 4 * MIB);
        assert_eq!(read(&file, 4096, 4096).await.to_vec(), data.to_vec());
    });
}

#[test]
fn many_requests_at_once() {
    on_both(async |scratch| {
        let file = File::open(scratch.path("f"), &options()).expect("new");
        // More than the submission queue holds.
        let writes: Vec<_> = (0..1000u64)
            .map(|block| {
                let (done, future) = completion_pair();
                let data = pattern(4096, (block % 256) as u8);
                file.submit(Request::write(block * 4096, data, false), done);
                future
            })
            .collect();
        for write in writes {
            write.await.expect("writes");
        }
        for block in (0..1000u64).step_by(37) {
            let expected = pattern(4096, (block % 256) as u8);
            let got = read(&file, block * 4096, 4096).await;
            assert_eq!(got.to_vec(), expected.to_vec(), "block {block}");
        }
    });
}

#[test]
fn requests_outside_the_file_or_misaligned_fail() {
    on_both(async |scratch| {
        let file = File::open(scratch.path("f"), &options()).expect("new");
        let kind = async |it: Request| request(&file, it).await.map_err(|error| error.kind());
        let buf = || Buf::zeroed(8192);
        let end = 4 * MIB;
        let past = Err(ErrorKind::OutOfRange);
        assert_eq!(kind(Request::write(end - 4096, buf(), false)).await, past);
        assert_eq!(kind(Request::read(end, buf())).await, past);
        assert_eq!(kind(Request::discard(end, 4096)).await, past);
        assert_eq!(
            kind(Request::write_zeroes(end, 4096, true, true)).await,
            past
        );
        let odd = Err(ErrorKind::InvalidInput);
        assert_eq!(kind(Request::read(100, buf())).await, odd);
        let size = std::fs::metadata(file.path()).expect("there").len();
        assert_eq!(size, end, "nothing grew");
    });
}

/// A partial transfer continues from the start of a block. A transfer of nothing is an error.
#[test]
fn short_reads_and_writes_go_on_where_they_ended() {
    on_both(async |scratch| {
        let file = File::open(scratch.path("f"), &options()).expect("new");
        let block = u64::from(file.geometry().logical_block_bytes);
        let left = |op: &FileOp| match op.step() {
            FileStep::Read { len, offset, .. } | FileStep::Write { len, offset, .. } => {
                (offset, u64::from(len))
            }
            step => panic!("{step:?}"),
        };
        for request in [
            Request::read(8192, Buf::zeroed(16384)),
            Request::write(8192, Buf::zeroed(16384), true),
        ] {
            let start = || FileOp::new(&file.open, request.clone(), completion_pair().0);
            let mut op = start();
            assert_eq!(left(&op), (8192, 16384));
            assert!(op.advance(4196).is_none(), "a part is not all");
            let moved = 4196 - 4196 % block;
            assert_eq!(left(&op), (8192 + moved, 16384 - moved));
            assert!(op.advance(-libc::EINTR).is_none(), "nothing happened");
            assert_eq!(left(&op), (8192 + moved, 16384 - moved));
            let rest = i32::try_from(16384 - moved).expect("small");
            assert!(matches!(op.advance(rest), Some(Ok(()))));
            for stuck in [0, 100] {
                let error = start()
                    .advance(stuck)
                    .expect("it ends")
                    .expect_err("as an error");
                assert_eq!(error.kind(), ErrorKind::Io, "{stuck} bytes are no block");
            }
        }
    });
}

#[test]
fn a_read_of_a_truncated_file_is_an_error_and_not_zeroes() {
    on_both(async |scratch| {
        let file = File::open(scratch.path("f"), &options()).expect("new");
        let outside = std::fs::OpenOptions::new().write(true).open(file.path());
        outside.expect("there").set_len(MIB).expect("shorter");
        let whole = request(&file, Request::read(2 * MIB, Buf::scratch(4096))).await;
        let error = whole.expect_err("nothing is there");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.report().contains("truncated"), "{error:?}");
        let half = request(&file, Request::read(MIB - 4096, Buf::scratch(8192))).await;
        assert_eq!(half.expect_err("half is there").kind(), ErrorKind::Io);
        assert_eq!(file.faults().count(), 2);
        let last = file.faults().last().expect("two");
        assert!(last.report().contains("read of 8192"), "{last:?}");
    });
}

#[test]
fn a_file_that_is_removed_in_use_is_logged_once() {
    on_both(async |scratch| {
        let file = File::open(scratch.path("f"), &options()).expect("new");
        let _ = file.size_bytes();
        assert!(file.faults().removed().is_none());
        std::fs::remove_file(file.path()).expect("there");
        for _ in 0..2 {
            assert!(file.size_bytes() > 0, "it goes on");
        }
        assert_eq!(file.faults().count(), 1);
        let error = file.faults().removed().expect("seen");
        assert!(error.report().contains("REMOVED"), "{error:?}");
        assert!(
            error.report().contains("/proc/"),
            "how to save it: {error:?}"
        );
    });
}

#[test]
fn requests_within_a_truncated_file_succeed_and_beyond_it_fail() {
    on_both(async |scratch| {
        let file = File::open(scratch.path("f"), &options()).expect("new");
        let set_len = |bytes| {
            let outside = std::fs::OpenOptions::new().write(true).open(file.path());
            outside.expect("there").set_len(bytes).expect("set");
        };
        let write = async |at| {
            let done = request(&file, Request::write(at, Buf::zeroed(4096), false)).await;
            done.map_err(|error| error.kind())
        };
        set_len(MIB);
        assert_eq!(file.size_bytes(), MIB);
        assert_eq!(write(0).await, Ok(()));
        assert_eq!(write(2 * MIB).await, Err(ErrorKind::Io), "no hole is made");
        let read = request(&file, Request::read(2 * MIB, Buf::scratch(4096))).await;
        assert!(read.expect_err("gone").report().contains("truncated"));
        let size = std::fs::metadata(file.path()).expect("there").len();
        assert_eq!(size, MIB);
        // Requests succeed as soon as it has its size back, without a notification.
        set_len(4 * MIB);
        assert_eq!(write(2 * MIB).await, Ok(()));
        assert_eq!(write(4 * MIB).await, Err(ErrorKind::OutOfRange));
    });
}

#[test]
fn a_file_that_keeps_its_size_gets_it_back_by_a_look_or_a_write() {
    on_both(async |scratch| {
        let file = File::open(scratch.path("f"), &options()).expect("new");
        let size = || std::fs::metadata(file.path()).expect("there").len();
        let cut = || {
            let outside = std::fs::OpenOptions::new().write(true).open(file.path());
            outside.expect("there").set_len(MIB).expect("cut");
            assert_eq!(file.size_bytes(), MIB);
        };
        let keeps = |least| file.keep_size(least).expect("its size is set");
        let write = async |at| {
            let done = request(&file, Request::write(at, pattern(4096, 5), false)).await;
            done.map_err(|error| error.kind())
        };
        assert!(!keeps(3 * MIB));
        cut();
        assert!(keeps(3 * MIB));
        assert_eq!((size(), file.size_bytes()), (4 * MIB, 4 * MIB));
        assert!(!keeps(3 * MIB), "once for each cut");
        cut();
        let gone = request(&file, Request::read(2 * MIB, Buf::scratch(4096))).await;
        assert!(gone.expect_err("gone").report().contains("truncated"));
        assert_eq!(write(3 * MIB).await, Err(ErrorKind::Io), "it may be gone");
        assert_eq!(size(), MIB);
        assert_eq!(write(2 * MIB).await, Ok(()));
        assert_eq!(size(), 4 * MIB);
        assert_eq!(
            read(&file, 2 * MIB, 4096).await.to_vec(),
            pattern(4096, 5).to_vec()
        );
        assert!(keeps(3 * MIB), "the write noticed it");
        // Longer than it must be: nothing is missing.
        assert!(!keeps(MIB));
        cut();
        assert!(!keeps(MIB));
        assert_eq!(size(), MIB);
    });
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeroes() {
    on_both(async |scratch| {
        let file = File::open(scratch.path("f"), &options()).expect("new");
        assert!(
            file.geometry().discard,
            "the temporary directory punches holes"
        );
        let fill = Request::write(0, pattern(1 << 20, 9), true);
        request(&file, fill).await.expect("writes");
        let blocks = |path: &Path| std::fs::metadata(path).expect("there").blocks();
        let full = blocks(file.path());
        let zeroed = [
            Request::discard(0, 128 << 10),
            Request::write_zeroes(256 << 10, 65536, false, true),
            Request::write_zeroes(512 << 10, 65536, true, false),
        ];
        for zeroing in zeroed {
            let (offset, len) = (zeroing.offset, zeroing.len);
            request(&file, zeroing).await.expect("zeroes");
            let got = read(&file, offset, len as usize + 4096).await;
            assert!(got.slice(0..len as usize).is_zero(), "at {offset}");
            assert!(
                !got.slice(len as usize..got.len()).is_zero(),
                "only the range"
            );
        }
        assert!(blocks(file.path()) < full, "space was given back");
        // Where the file system has no way to zero a range, zeroes are written.
        file.open.refuse_zeroing();
        let written = Request::write_zeroes(640 << 10, 300 << 10, true, true);
        request(&file, written).await.expect("zeroes");
        let got = read(&file, 640 << 10, 384 << 10).await;
        assert!(got.slice(0..300 << 10).is_zero());
        assert!(!got.slice(300 << 10..384 << 10).is_zero());
    });
}

#[test]
fn a_second_opener_gets_an_error_that_names_the_holder() {
    on_both(async |scratch| {
        let path = scratch.path("held.img");
        let first = File::open(&path, &options()).expect("new");
        let refused = File::open(&path, &options()).expect_err("it is held");
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(refused.report().contains("held.img"), "{refused:?}");
        drop(first);
        File::open(&path, &options()).expect("free again");
    });
}

/// The ring of a killed process holds its file until its I/O has ended. A program that locks the
/// file for us and ends stands for it.
#[test]
fn an_opener_waits_longer_for_a_holder_that_has_ended() {
    on_both(async |scratch| {
        let path = scratch.path("held.img");
        let mut options_of_holder = std::fs::File::options();
        let holder = options_of_holder.read(true).write(true).create_new(true);
        let holder = holder.open(&path).expect("new");
        let mut flock = std::process::Command::new("flock");
        let shared = holder.try_clone().expect("another descriptor");
        let status = flock.args(["-n", "0"]).stdin(shared).status();
        assert!(status.expect("flock of util-linux").success());
        // The command holds a descriptor.
        drop(flock);
        let leaving = std::thread::spawn(move || {
            std::thread::sleep(RELEASE_TIME + Duration::from_secs(1));
            drop(holder);
        });
        File::open(&path, &options()).expect("free after a while");
        assert!(leaving.is_finished(), "the opener waited");
        leaving.join().expect("it left");
    });
}

#[test]
fn a_holder_that_has_ended_is_remembered() {
    let mut child = std::process::Command::new("true").spawn().expect("starts");
    let (ended, living) = (Holder::new(child.id()), Holder::new(std::process::id()));
    child.wait().expect("it ended");
    let mut wait = Wait::default();
    assert_eq!(wait.limit(Some(living)), RELEASE_TIME);
    assert_eq!(wait.limit(None), RELEASE_TIME);
    assert_eq!(wait.limit(Some(ended)), RELEASE_TIME_OF_DEAD);
    assert_eq!(wait.limit(None), RELEASE_TIME_OF_DEAD, "a skipped line");
    assert_eq!(wait.limit(Some(living)), RELEASE_TIME, "the next holder");
    // The number of the ended process belongs to a living one now.
    let mut wait = Wait {
        ended: Some(living),
    };
    assert_eq!(wait.limit(Some(living)), RELEASE_TIME_OF_DEAD);
}

#[test]
fn an_opener_waits_for_a_holder_that_is_on_its_way_out() {
    on_both(async |scratch| {
        let path = scratch.path("held.img");
        let mut options_of_holder = std::fs::File::options();
        let holder = options_of_holder.read(true).write(true).create_new(true);
        let holder = holder.open(&path).expect("new");
        lock(&holder, false).expect("locked");
        let opener = Thread::current();
        let sleeps = opener.sleeps();
        let leaving = std::thread::spawn(move || {
            // An opener sleeps between two attempts. Few sleeps keep the test below `RELEASE_TIME`.
            opener.wait_for_sleeps(sleeps, 5);
            drop(holder);
        });
        File::open(&path, &options()).expect("free after a while");
        leaving.join().expect("it left");
    });
}

#[test]
fn read_only_files_take_no_writes() {
    on_both(async |scratch| {
        let path = scratch.path("f");
        std::fs::write(&path, vec![5; 8192]).expect("a file");
        let file = File::open(
            &path,
            &FileOptions {
                read_only: true,
                direct: true,
                ..FileOptions::default()
            },
        )
        .expect("there");
        assert_eq!(read(&file, 4096, 4096).await.to_vec(), vec![5; 4096]);
        for write in [
            Request::write(0, Buf::zeroed(4096), false),
            Request::discard(0, 4096),
            Request::write_zeroes(0, 4096, false, false),
        ] {
            let refused = request(&file, write).await.expect_err("read-only");
            assert_eq!(refused.kind(), ErrorKind::ReadOnly);
        }
    });
}

#[test]
fn missing_files_character_devices_and_directories_are_refused() {
    on_both(async |scratch| {
        let kind = |path: PathBuf| {
            let opened = File::open(path, &FileOptions::default());
            opened.expect_err("refused").kind()
        };
        assert_eq!(kind(scratch.path("none")), ErrorKind::NotFound);
        assert_eq!(kind("/dev/null".into()), ErrorKind::InvalidInput);
        assert_eq!(kind(scratch.path("")), ErrorKind::InvalidInput);
    });
}

#[test]
fn buffers_at_odd_addresses_are_bounced() {
    on_both(async |scratch| {
        let mut file = File::open(scratch.path("f"), &options()).expect("new");
        let handle = Rc::get_mut(&mut file.open).expect("nothing is in flight");
        handle.set_memory_align(4096); // As on a device with 4096-byte blocks.
        let whole = pattern(8192, 1);
        let odd = whole.slice(512..512 + 4096);
        let write = Request::write(4096, odd.clone(), false);
        request(&file, write).await.expect("writes");
        let target = Buf::zeroed(8192);
        let part = target.slice(1024..1024 + 4096);
        let back = Request::read(4096, part.clone());
        request(&file, back).await.expect("reads");
        assert_eq!(part.to_vec(), odd.to_vec());
        assert!(target.slice(0..1024).is_zero());
    });
}

#[test]
fn a_reactor_ends_only_after_its_writes() {
    for engine in engines() {
        let scratch = Scratch::new();
        let path = scratch.path("f");
        let reactor = Reactor::new(engine).expect("this engine works here");
        let opened = path.clone();
        reactor.run(async move {
            let file = File::open(opened, &options()).expect("new");
            for block in 0..64u64 {
                let (done, future) = completion_pair();
                file.submit(Request::write(block * 4096, pattern(4096, 2), false), done);
                drop(future);
            }
        });
        drop(reactor);
        let bytes = std::fs::read(&path).expect("readable");
        let expected = pattern(4096, 2).to_vec();
        assert!(
            bytes[..64 * 4096]
                .chunks(4096)
                .all(|block| block == expected)
        );
    }
}

#[test]
fn without_direct_io_it_is_the_same_file() {
    on_both(async |scratch| {
        let buffered = FileOptions {
            direct: false,
            ..options()
        };
        let file = File::open(scratch.path("f"), &buffered).expect("new");
        let data = pattern(1536, 4);
        let write = Request::write(512, data.clone(), true);
        request(&file, write).await.expect("writes");
        assert_eq!(read(&file, 512, 1536).await.to_vec(), data.to_vec());
    });
}
