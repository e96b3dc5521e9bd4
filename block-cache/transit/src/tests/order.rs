//! The order of operations, step by step.

use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt, Error, ErrorKind, IoFuture, Op, Result};
use forebay_io::rt::Executor;

use super::gate::Gate;
use super::{block, over};
use crate::comparators;
use crate::{Policy, Transit};

/// A cache over a gate, and an executor that is run by hand.
struct Scene {
    executor: Rc<Executor>,
    gate: Gate,
    cache: Rc<Transit>,
    answers: Vec<Rc<std::cell::RefCell<Option<Result<()>>>>>,
}

impl Scene {
    fn run(&self) {
        while self.executor.collect() {
            self.executor.run_ready(1);
        }
    }

    /// Starts an operation; its answer has this number.
    fn start(&mut self, io: impl FnOnce(&Transit) -> IoFuture) -> usize {
        let answer: Rc<std::cell::RefCell<Option<Result<()>>>> = Rc::default();
        let slot = Rc::clone(&answer);
        let io = io(&self.cache);
        self.executor
            .spawn(async move { *slot.borrow_mut() = Some(io.await) });
        self.answers.push(answer);
        self.run();
        self.answers.len() - 1
    }

    fn write(&mut self, at: u64, what: u8) -> usize {
        self.start(|cache| cache.write(at * 512, block(what)))
    }

    fn flush(&mut self) -> usize {
        self.start(|cache| cache.flush())
    }

    fn pass(&self, index: usize) {
        self.gate.pass(index);
        self.run();
    }

    fn is_done(&self, answer: usize) -> bool {
        self.answers[answer].borrow().is_some()
    }

    fn answer(&self, answer: usize) -> Result<(), ErrorKind> {
        let answer = self.answers[answer].borrow();
        let answer = answer.as_ref().expect("it was answered");
        answer.as_ref().map_err(|error| error.kind()).copied()
    }

    fn failure(&self, answer: usize) -> Error {
        let answer = self.answers[answer].borrow().clone();
        let failed = answer.expect("it was answered");
        failed.expect_err("it failed")
    }

    fn read(&mut self, at: u64) -> Option<u8> {
        let buf = block(0xee);
        let target = buf.clone();
        let read = self.start(|cache| cache.read(at * 512, target));
        self.is_done(read).then(|| buf.to_vec()[0])
    }
}

fn scene(slots: usize, policy: Policy, test: impl FnOnce(&mut Scene)) {
    let executor = Executor::simulated(7);
    let entered = executor.enter();
    let gate = Gate::new(64);
    let cache = over(&gate.device(), slots, policy);
    let mut scene = Scene {
        executor,
        gate,
        cache,
        answers: Vec::new(),
    };
    test(&mut scene);
    // Waiting requests are released, so that every request gets an answer.
    while !scene.gate.waiting().is_empty() {
        scene.pass(0);
    }
    scene.run();
    scene.executor.clear();
    drop(entered);
}

#[test]
fn a_flush_drains_earlier_writes_and_no_later_ones() {
    scene(16, comparators::LRU, |it| {
        let first = it.write(0, 1);
        assert!(it.is_done(first), "it is in a slot");
        assert!(it.gate.waiting().is_empty(), "nobody needs room");
        let flush = it.flush();
        let later = it.write(1, 2);
        assert!(it.is_done(later) && !it.is_done(flush));
        it.pass(0);
        assert_eq!(
            it.gate.waiting(),
            [Op::Flush],
            "the later write is not waited for"
        );
        it.pass(0);
        assert_eq!(it.answer(flush), Ok(()));
        assert_eq!(it.gate.durable()[..2], [1, 1]);
        assert_eq!(it.cache.stats().owed, 1);
    });
}

#[test]
fn rewriting_a_block_does_not_put_a_flush_off() {
    scene(16, comparators::CAITI_WITHOUT_EVICTION, |it| {
        for round in 0..3 {
            it.write(round, 1);
        }
        let flush = it.flush();
        // All three are being evicted: a new version waits for the older one.
        let third = it.write(0, 2);
        assert!(!it.is_done(third), "one version is in flight");
        while !it.is_done(flush) {
            it.pass(0);
        }
        assert!(it.is_done(third));
        assert_eq!(it.read(0), Some(2));
        assert_eq!(it.gate.durable()[0], 1, "the flush was of the older one");
    });
    scene(16, comparators::CAITI_WITHOUT_EVICTION, |it| {
        it.write(0, 1);
        it.write(0, 2);
        let flush = it.flush();
        it.pass(0);
        it.pass(0);
        assert_eq!(it.answer(flush), Ok(()));
        assert_eq!(
            it.gate.durable()[0],
            2,
            "a version that was superseded is owed by the newer"
        );
    });
}

#[test]
fn a_flush_waits_for_evictions_in_flight() {
    scene(16, Policy::CAITI, |it| {
        it.write(0, 1);
        assert_eq!(
            it.gate.waiting(),
            [Op::Write { fua: false }],
            "evicted at once"
        );
        let flush = it.flush();
        assert_eq!(it.gate.waiting().len(), 1, "the device is not flushed yet");
        it.pass(0);
        it.pass(0);
        assert_eq!(it.answer(flush), Ok(()));
        assert_eq!(it.gate.durable()[0], 1);
    });
}

#[test]
fn fua_waits_for_media_and_for_the_older_version() {
    scene(16, Policy::CAITI, |it| {
        it.write(0, 1);
        let fua = it.start(|cache| cache.write_fua(0, block(2)));
        assert_eq!(it.gate.waiting(), [Op::Write { fua: false }]);
        it.pass(0);
        assert_eq!(it.gate.waiting(), [Op::Write { fua: true }]);
        assert!(!it.is_done(fua));
        assert_eq!(it.read(0), None, "a read waits for what is under way");
        it.pass(0);
        assert_eq!(it.answer(fua), Ok(()));
        assert_eq!(it.gate.durable()[0], 2);
    });
    scene(16, comparators::LRU, |it| {
        it.write(0, 1);
        let fua = it.start(|cache| cache.write_fua(0, block(2)));
        it.pass(0);
        assert_eq!(it.answer(fua), Ok(()));
        assert_eq!(
            it.cache.stats().owed,
            0,
            "the older version is not written after it"
        );
    });
}

#[test]
fn a_full_transit_cache_is_bypassed_and_a_staging_cache_is_waited_for() {
    scene(3, Policy::CAITI, |it| {
        it.write(0, 1);
        it.write(1, 1);
        let third = it.write(2, 3);
        assert!(!it.is_done(third));
        assert_eq!(it.cache.stats().bypassed, 1);
        assert_eq!(it.gate.waiting().len(), 3);
        assert_eq!(it.read(2), None, "what was read stays read");
        // A hit has its slot all the same, once the older version is out.
        let hit = it.write(0, 4);
        assert!(!it.is_done(hit));
        it.pass(0);
        assert!(it.is_done(hit));
        it.pass(1);
        assert_eq!(it.answer(third), Ok(()));
        assert_eq!(it.read(0), Some(4));
    });
    for policy in [
        comparators::CAITI_WITHOUT_BYPASS,
        comparators::LRU,
        comparators::CO_ACTIVE,
    ] {
        scene(3, policy, |it| {
            it.write(0, 1);
            it.write(1, 1);
            let third = it.write(2, 3);
            assert!(!it.is_done(third), "{policy}: two steps");
            it.pass(0);
            assert!(it.is_done(third), "{policy}");
            assert_eq!(it.cache.stats().bypassed, 0, "{policy}");
            assert_eq!(it.read(2), Some(3));
        });
    }
}

#[test]
fn reads_are_served_from_slots_in_flight_and_never_stored() {
    scene(16, Policy::CAITI, |it| {
        it.write(0, 1);
        assert_eq!(it.read(0), Some(1), "evicting, and read from its slot");
        it.pass(0);
        assert_eq!(it.cache.stats().used, 0);
        assert_eq!(it.read(0), None, "the device is asked");
        it.pass(0);
        assert_eq!(it.cache.stats().used, 0, "and nothing is filled");
        let stats = it.cache.stats();
        assert_eq!((stats.read_hits, stats.read_misses), (1, 1));
    });
}

#[test]
fn a_block_that_the_device_refuses_keeps_its_slot_and_fails_the_next_flush() {
    scene(16, Policy::CAITI, |it| {
        it.write(5, 1);
        it.gate.refuse(0);
        it.run();
        assert!(
            it.gate.waiting().is_empty(),
            "it is not tried again and again"
        );
        assert_eq!(it.read(5), Some(1), "its slot is kept");
        let flush = it.flush();
        let error = it.failure(flush);
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.report().contains("(5)"), "{}", error.report());
        it.pass(0);
        let flush = it.flush();
        it.pass(0);
        assert_eq!(it.answer(flush), Ok(()), "{:?}", it.cache);
        assert_eq!(it.gate.durable()[5 * 512], 1);
    });
}

#[test]
fn a_failed_flush_of_the_device_is_not_retried_into_success() {
    scene(16, Policy::CAITI, |it| {
        it.write(0, 1);
        let flush = it.flush();
        it.pass(0);
        it.gate.refuse(0);
        it.run();
        let error = it.failure(flush);
        assert_eq!(error.kind(), ErrorKind::Lost);
        let flush = it.flush();
        assert_eq!(it.answer(flush), Err(ErrorKind::Lost));
        assert!(
            it.gate.waiting().is_empty(),
            "the device is not asked again"
        );
    });
}

/// A remote device has what it acknowledged, while its peer is away.
#[test]
fn a_flush_without_the_peer_of_the_device_loses_nothing() {
    scene(16, Policy::CAITI, |it| {
        it.write(0, 1);
        let flush = it.flush();
        it.pass(0);
        it.gate.refuse_with(0, ErrorKind::Unreachable);
        it.run();
        assert_eq!(it.answer(flush), Err(ErrorKind::Unreachable));
        let flush = it.flush();
        it.pass(0);
        assert_eq!(it.answer(flush), Ok(()), "{:?}", it.cache);
        it.write(1, 2);
        let flush = it.flush();
        it.gate.refuse_with(0, ErrorKind::Unreachable);
        it.run();
        assert_eq!(it.answer(flush), Err(ErrorKind::Unreachable));
        assert_eq!(it.read(1), Some(2), "its slot is kept");
    });
}

#[test]
fn nobody_waits_for_slots_that_never_come_free() {
    for policy in [
        comparators::LRU,
        comparators::CAITI_WITHOUT_BYPASS,
        comparators::PMBD,
    ] {
        scene(3, policy, |it| {
            it.write(0, 1);
            it.write(1, 1);
            let third = it.write(2, 3);
            while !it.is_done(third) {
                let fails = it.gate.block_of(0) < 2;
                match fails {
                    true => it.gate.refuse(0),
                    false => it.gate.pass(0),
                }
                it.run();
            }
            assert_eq!(it.answer(third), Ok(()), "{policy}");
            assert_eq!(
                it.cache.stats().bypassed,
                1,
                "{policy}: everything else was refused"
            );
            assert_eq!(it.read(0), Some(1), "{policy}");
        });
    }
}

/// Truncated files are detected by their holes, through the cache, too. Blocks in slots are no
/// holes.
#[test]
fn holes_of_the_device_show_except_for_blocks_in_slots() {
    scene(16, comparators::LRU, |it| {
        let all = 0..64 * 512;
        let half = std::iter::once(0..32 * 512).collect::<Vec<_>>();
        assert_eq!(it.cache.holes(all.clone()), Some(half.clone()));
        assert_eq!(it.cache.allocated_bytes(), Some(32 * 512));
        for at in [5, 4, 31, 40] {
            it.write(at, 1);
        }
        let rest = [0..4 * 512, 6 * 512..31 * 512];
        assert_eq!(it.cache.holes(all.clone()), Some(rest.to_vec()));
        let flush = it.flush();
        while !it.is_done(flush) {
            it.pass(0);
        }
        assert_eq!(it.cache.holes(all), Some(half), "the device has them");
    });
}
