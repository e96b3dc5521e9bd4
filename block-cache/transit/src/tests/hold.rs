//! Evictions that wait until they are allowed.

use std::cell::Cell;
use std::rc::Rc;

use forebay_block::{BlockDeviceExt, Buf, IoFuture, Op};
use forebay_io::rt::{Entered, Executor};

use super::block;
use super::gate::Gate;
use crate::comparators;
use crate::fault::{Fault, Faults};
use crate::{HEADER_BYTES, Policy, Transit, TransitOptions, memory_bytes};

const SLOTS: usize = 8;
/// Blocks that the earlier process left. One slot stays free for a new version.
const LEFT: u64 = SLOTS as u64 - 1;

/// A cache that holds evictions, over a gate, with an executor that is run by hand.
struct Scene {
    executor: Rc<Executor>,
    gate: Gate,
    cache: Rc<Transit>,
    _entered: Entered,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.executor.clear();
    }
}

impl Scene {
    /// Opens a cache with slots that an earlier process left: block `b` is full of bytes `b + 1`.
    /// `left_held` was held by a request at the device.
    fn new(policy: Policy, left_held: Option<u64>, faults: Faults) -> Self {
        let executor = Executor::simulated(1);
        let entered = executor.enter();
        let memory = Buf::zeroed(memory_bytes(SLOTS, 512));
        let options = |policy, hold_evictions| TransitOptions {
            policy,
            hold_evictions,
            ..TransitOptions::new("t", [1; 16])
        };
        let former = Gate::new(64);
        let (cache, _) = Transit::open(
            former.device(),
            former.device(),
            memory.clone(),
            options(comparators::CAITI_WITHOUT_EVICTION, false),
        )
        .expect("opens");
        for at in 0..LEFT {
            drop(cache.write(at * 512, block(at as u8 + 1)));
        }
        drop(cache);
        if let Some(at) = left_held {
            let header = |slot: usize| 4096 + slot * HEADER_BYTES;
            let slot = (0..SLOTS).find(|slot| {
                let mut words = [0; HEADER_BYTES];
                memory.copy_to(header(*slot), &mut words);
                words[..8] == at.to_le_bytes() && words[8..] != [0; 8]
            });
            let word = header(slot.expect("the block has a slot")) + 8;
            let mut version = [0; 8];
            memory.copy_to(word, &mut version);
            let held = u64::from_le_bytes(version) | 1 << 63;
            memory.copy_from(word, &held.to_le_bytes());
        }
        let gate = Gate::new(64);
        let (cache, found) = Transit::open_with(
            gate.device(),
            gate.device(),
            memory,
            options(policy, true),
            faults,
        )
        .expect("opens");
        assert_eq!(found.blocks, LEFT);
        let scene = Self {
            executor,
            gate,
            cache,
            _entered: entered,
        };
        scene.run();
        scene
    }

    fn run(&self) {
        while self.executor.collect() {
            self.executor.run_ready(1);
        }
    }

    /// Starts an operation. Returns whether it has been answered with success.
    fn start(&self, io: IoFuture) -> Rc<Cell<bool>> {
        let answered = Rc::new(Cell::new(false));
        let answer = Rc::clone(&answered);
        self.executor.spawn(async move {
            io.await.expect("the gate refuses nothing");
            answer.set(true);
        });
        self.run();
        answered
    }

    /// Releases all requests of the device.
    fn pass_all(&self) {
        while !self.gate.waiting().is_empty() {
            self.gate.pass(0);
            self.run();
        }
    }

    fn read_left(&self, at: u64) {
        let buf = block(0);
        let read = self.start(self.cache.read(at * 512, buf.clone()));
        assert!(read.get(), "block {at} is read from its slot");
        assert_eq!(buf.to_vec(), vec![at as u8 + 1; 512]);
    }

    fn durable(&self, at: u64) -> u8 {
        self.gate.durable()[at as usize * 512]
    }
}

#[test]
fn leftover_blocks_stay_in_their_slots_until_evictions_are_allowed() {
    for policy in comparators::ALL {
        for left_held in [None, Some(0), Some(3)] {
            let scene = Scene::new(policy, left_held, Faults::default());
            (0..LEFT).for_each(|at| scene.read_left(at));
            scene
                .executor
                .spawn(forebay_io::rt::sleep(crate::core::IDLE * 4));
            scene.run();
            assert!(scene.gate.waiting().is_empty(), "{policy} {left_held:?}");
            assert!(scene.cache.holds_evictions());
            scene.cache.allow_evictions();
            scene.run();
            assert!(!scene.cache.holds_evictions());
            if let Some(left_held) = left_held {
                // Durable before the next read of it.
                let waiting = scene.gate.waiting();
                let fua = waiting.iter().any(|op| matches!(op, Op::Write { .. }));
                assert!(fua, "{policy} {left_held}: {waiting:?}");
            }
            let flushed = scene.start(scene.cache.flush());
            scene.pass_all();
            assert!(flushed.get(), "{policy} {left_held:?}");
            for at in 0..LEFT {
                assert_eq!(scene.durable(at), at as u8 + 1, "{policy} {left_held:?}");
            }
        }
    }
}

#[test]
fn evictions_that_do_not_wait_are_found() {
    let faults = Faults::planted(Fault::EvictBeforeAllowed);
    let scene = Scene::new(Policy::CAITI, None, faults);
    assert!(!scene.gate.waiting().is_empty());
    let scene = Scene::new(comparators::LRU, Some(0), faults);
    assert!(!scene.gate.waiting().is_empty());
}

#[test]
fn a_write_that_finds_no_room_does_not_wait_for_the_end_of_the_start() {
    for policy in comparators::ALL {
        let scene = Scene::new(policy, None, Faults::default());
        for at in LEFT..LEFT + 3 * SLOTS as u64 {
            let written = scene.start(scene.cache.write(at * 512, block(99)));
            scene.pass_all();
            assert!(written.get(), "{policy}: block {at}");
        }
        // Writes that find room change nothing on the device.
        let scene = Scene::new(policy, None, Faults::default());
        let written = scene.start(scene.cache.write(0, block(99)));
        assert!(written.get() && scene.cache.holds_evictions(), "{policy}");
        assert!(scene.gate.waiting().is_empty(), "{policy}");
    }
}

#[test]
fn requests_that_would_wait_for_ever_end_the_hold() {
    type Start = fn(&Transit) -> IoFuture;
    let requests: [(&str, Start); 4] = [
        ("flush", |cache| cache.flush()),
        ("a write over what was held", |cache| {
            cache.write(512, block(99))
        }),
        ("a durable one", |cache| cache.write_fua(512, block(99))),
        ("a discard", |cache| cache.discard(0, 4096)),
    ];
    for policy in comparators::ALL {
        for (what, request) in requests {
            let scene = Scene::new(policy, Some(1), Faults::default());
            let answered = scene.start(request(&scene.cache));
            scene.pass_all();
            assert!(answered.get(), "{policy}: {what}");
            assert!(!scene.cache.holds_evictions(), "{policy}: {what}");
        }
    }
}
