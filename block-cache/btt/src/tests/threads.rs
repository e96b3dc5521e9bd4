//! Several threads on one table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_block::Buf;
use forebay_io::pmem::PmemMapping;
use forebay_io::sim::{Rng, SimPmem};

use super::{SIZE, formatted, holds, options, read, stamp};
use crate::fault::{Fault, Faults};
use crate::open::OpenOptions;
use crate::{Btt, format};

/// A reader is in a block while a writer frees it and would reuse it. The reader stays for at most
/// `patience` after the block is free. Returns whether the reader found its data.
fn reader_is_left_in_peace(faults: Faults, patience: Duration) -> bool {
    let memory = formatted(SIZE, &options(4096));
    let options = OpenOptions {
        lanes: 2,
        faults,
        ..OpenOptions::default()
    };
    let table: Btt<SimPmem> = Btt::open_with(memory, options).expect("a table");
    let write = |block, version| {
        let mut lane = table.lanes.take_this(1);
        table
            .write_on(&mut lane, block, &stamp(block, version, 4096))
            .expect("written");
    };
    write(5, 1);
    let reader = table.lanes.take_this(0);
    let (arena, premap) = table.place(5);
    let entry = arena.entry(&*table.memory, premap).expect("sound");
    let pin = reader.pin(arena.index, entry.block());
    let (freed, written) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            write(5, 2);
            // The block of the reader is free now, and the next to be used.
            freed.store(true, Ordering::Release);
            write(6, 3);
            written.store(true, Ordering::Release);
        });
        assert!(becomes_true(&freed, Duration::from_secs(30)));
        let reused_too_soon = becomes_true(&written, patience);
        let buf = Buf::zeroed(4096);
        arena
            .read_internal(&*table.memory, entry.block(), &buf)
            .expect("sound");
        drop(pin);
        !reused_too_soon && holds(&buf, 5, 1)
    })
}

/// Returns whether `flag` is set within `patience`.
fn becomes_true(flag: &AtomicBool, patience: Duration) -> bool {
    let begin = Instant::now();
    while !flag.load(Ordering::Acquire) {
        if begin.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

#[test]
fn a_block_is_not_reused_before_its_readers_have_left() {
    let patience = Duration::from_millis(200);
    assert!(reader_is_left_in_peace(Faults::default(), patience));
}

#[test]
fn reuse_under_a_reader_is_found() {
    let faults = Faults::planted(Fault::ReuseUnderReader);
    assert!(!reader_is_left_in_peace(faults, Duration::from_secs(30)));
}

#[test]
fn threads_that_read_and_write_few_blocks_see_whole_versions() {
    const BLOCKS: u64 = 4;
    const WRITES: u64 = 3000;
    let path = std::env::temp_dir().join(format!("fb-btt-threads-{}", std::process::id()));
    let memory = PmemMapping::open(&path, Some(SIZE)).expect("a file");
    std::fs::remove_file(&path).expect("it is mapped");
    format(&memory, &options(4096)).expect("large enough");
    let options = OpenOptions {
        lanes: 2,
        ..OpenOptions::default()
    };
    let table = Arc::new(Btt::open_with(Arc::new(memory), options).expect("a table"));
    let done = AtomicBool::new(false);
    // The last writer is unknown, so each writer has versions of its own.
    let version = |writer: u64, number: u64| 1 + writer * WRITES + number;
    let known = |block: u64, buf: &Buf| {
        let word = buf.to_vec();
        let first = |version| stamp(block, version, 4096).slice(0..8).to_vec();
        let all = 0..=2 * WRITES;
        let candidates: Vec<u64> = all.filter(|v| first(*v) == word[..8]).collect();
        candidates
            .into_iter()
            .any(|version| holds(buf, block, version))
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let table = Arc::clone(&table);
                scope.spawn(move || {
                    let rng = Rng::new(writer);
                    for number in 0..WRITES {
                        let block = rng.below(BLOCKS);
                        let source = stamp(block, version(writer, number), 4096);
                        table.write(block, &source).expect("written");
                    }
                })
            })
            .collect();
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let (table, done) = (Arc::clone(&table), &done);
                scope.spawn(move || {
                    let rng = Rng::new(10 + reader);
                    let buf = Buf::zeroed(4096);
                    let mut samples: Vec<(u64, Buf)> = Vec::new();
                    while !done.load(Ordering::Acquire) {
                        let block = rng.below(BLOCKS);
                        table.read(block, &buf).expect("readable");
                        if samples.len() < 200 {
                            samples.push((block, Buf::copied(&buf.to_vec())));
                        } else if !samples.is_empty() {
                            samples[rng.index(200)] = (block, Buf::copied(&buf.to_vec()));
                        }
                    }
                    samples
                })
            })
            .collect();
        for writer in writers {
            writer.join().expect("no panic");
        }
        done.store(true, Ordering::Release);
        for reader in readers {
            for (block, buf) in reader.join().expect("no panic") {
                assert!(known(block, &buf), "block {block} is torn");
            }
        }
    });
    let usage = table.check().expect("sound");
    assert_eq!(usage.data, BLOCKS);
}

#[test]
fn more_threads_than_lanes_wait_for_each_other() {
    let memory = formatted(SIZE, &options(512));
    let options = OpenOptions {
        lanes: 1,
        ..OpenOptions::default()
    };
    let table = Btt::open_with(memory, options).expect("a table");
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let table = &table;
            scope.spawn(move || {
                for version in 1..=20 {
                    table
                        .write(thread, &stamp(thread, version, 512))
                        .expect("written");
                }
            });
        }
    });
    for block in 0..6 {
        assert!(holds(&read(&table, block), block, 20));
    }
    table.check().expect("sound");
}
