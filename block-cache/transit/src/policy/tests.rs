//! The policies by themselves.

use super::{Admission, Decide, Policy, View};
use crate::comparators;
use crate::slots::{Slots, State};

/// A cache of which only decisions are looked at.
struct Cache {
    slots: Slots,
    policy: Box<dyn Decide>,
    waiting: usize,
    evicting: usize,
    idle: bool,
}

impl Cache {
    fn new(policy: Policy, slots: usize) -> Self {
        Self {
            slots: Slots::new(slots),
            policy: policy.decider(slots),
            waiting: 0,
            evicting: 0,
            idle: false,
        }
    }

    /// Writes a block that the policy admits; else says what becomes of it.
    fn write(&mut self, block: u64) -> Admission {
        let admission = match self.slots.find(block) {
            Some(_) => Admission::Slot,
            None => self.policy.admit(&self.slots, block),
        };
        match admission {
            Admission::Slot => (),
            Admission::Instead(copy) => {
                self.policy.dropped(copy);
                self.slots.release(copy);
            }
            other => return other,
        }
        let slot = self.slots.take().expect("admitted");
        if let Some((older, state)) = self.slots.publish(slot, block) {
            if state == State::Copy {
                self.policy.dropped(older);
            } else {
                self.policy.began(older);
                self.policy.left(older, false);
            }
        }
        self.policy.entered(slot, block);
        admission
    }

    /// The block that is evicted next.
    fn begin(&mut self) -> Option<u64> {
        let slot = self.policy.next(View {
            slots: &self.slots,
            waiting: self.waiting,
            evicting: self.evicting,
            idle: self.idle,
        })?;
        self.evicting += 1;
        self.policy.began(slot);
        Some(self.slots.begin(slot))
    }

    fn end(&mut self, block: u64) {
        let slot = self.slots.find(block).expect("it is evicting");
        let keep = self.policy.keeps();
        self.slots.end(slot, keep);
        self.policy.left(slot, keep);
        self.evicting -= 1;
    }

    fn evict_all(&mut self) -> Vec<u64> {
        let mut all = Vec::new();
        while let Some(block) = self.begin() {
            self.end(block);
            all.push(block);
        }
        all
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for policy in comparators::ALL {
        assert_eq!(comparators::named(policy.as_str()).ok(), Some(policy));
    }
    let error = comparators::named("fifo").expect_err("not one");
    assert!(error.report().contains("pmbd-70"), "{error:?}");
}

#[test]
fn caiti_evicts_at_once_and_bypasses_when_full() {
    let mut cache = Cache::new(Policy::CAITI, 4);
    for block in [7, 3, 5] {
        assert_eq!(cache.write(block), Admission::Slot);
    }
    assert_eq!(cache.write(9), Admission::Bypass);
    assert_eq!(cache.write(3), Admission::Slot, "a hit has room");
    assert_eq!(cache.evict_all(), [7, 3, 5], "in order of arrival");
    assert_eq!(cache.write(9), Admission::Slot);
}

#[test]
fn the_ablations_lack_one_thing_each() {
    let mut cache = Cache::new(comparators::CAITI_WITHOUT_EVICTION, 3);
    cache.write(1);
    cache.write(2);
    assert_eq!(cache.begin(), None);
    assert_eq!(cache.write(3), Admission::Bypass);
    let mut cache = Cache::new(comparators::CAITI_WITHOUT_BYPASS, 3);
    cache.write(1);
    cache.write(2);
    assert_eq!(cache.write(3), Admission::Wait);
    assert_eq!(cache.begin(), Some(1));
}

#[test]
fn lru_evicts_one_for_each_that_waits() {
    let mut cache = Cache::new(comparators::LRU, 4);
    for block in [1, 2, 3] {
        cache.write(block);
    }
    assert_eq!(cache.begin(), None, "nobody waits");
    let slot = cache.slots.find(1).expect("written");
    cache.policy.read(slot);
    cache.write(2);
    assert_eq!(cache.write(4), Admission::Wait);
    cache.waiting = 1;
    assert_eq!(cache.begin(), Some(3), "1 was read and 2 written since");
    assert_eq!(cache.begin(), None, "one is enough");
}

/// Blocks of the sub-buffer that block 0 belongs to.
fn same_buffer(policy: &dyn Decide) -> impl Iterator<Item = u64> + '_ {
    (0..).filter(|block| policy.line(*block) == policy.line(0))
}

#[test]
fn pmbd_empties_a_full_sub_buffer_before_it_takes_more() {
    let slots = 1 + 2 * 8;
    let mut cache = Cache::new(comparators::PMBD, slots);
    let blocks: Vec<u64> = same_buffer(&*cache.policy).take(9).collect();
    for block in &blocks[..8] {
        assert_eq!(cache.write(*block), Admission::Slot);
        assert_eq!(cache.begin(), None, "nothing before it is full");
    }
    assert_eq!(cache.write(blocks[8]), Admission::Wait);
    let other = (0..).find(|block| cache.policy.line(*block) != cache.policy.line(0));
    assert_eq!(cache.write(other.expect("two")), Admission::Slot);
    for block in &blocks[..7] {
        assert_eq!(cache.begin(), Some(*block));
        cache.end(*block);
        assert_eq!(cache.write(blocks[8]), Admission::Wait, "until it is empty");
    }
    assert_eq!(cache.begin(), Some(blocks[7]));
    assert_eq!(cache.begin(), None, "the other sub-buffer is not full");
    cache.end(blocks[7]);
    assert_eq!(cache.write(blocks[8]), Admission::Slot);
}

#[test]
fn pmbd_70_begins_at_its_watermark_and_takes_more_meanwhile() {
    let mut cache = Cache::new(comparators::PMBD_70, 11);
    for block in 0..6 {
        cache.write(block);
        assert_eq!(cache.begin(), None, "{block}");
    }
    for block in 6..10 {
        assert_eq!(cache.write(block), Admission::Slot);
    }
    assert_eq!(cache.write(10), Admission::Wait);
    let first = cache.begin().expect("above the watermark");
    assert_eq!(first, 0);
    cache.end(first);
    assert_eq!(cache.write(10), Admission::Slot, "one slot is enough");
    assert_eq!(cache.evict_all().len(), 10, "then all of it goes");
}

#[test]
fn co_active_evicts_cold_blocks_when_idle_and_reuses_their_copies() {
    let mut cache = Cache::new(comparators::CO_ACTIVE, 5);
    for block in [1, 2, 1, 3, 4] {
        assert_eq!(cache.write(block), Admission::Slot);
    }
    assert_eq!(cache.begin(), None, "there are requests");
    cache.idle = true;
    assert_eq!(cache.evict_all(), [2, 3, 4], "1 was written twice");
    cache.idle = false;
    let copy = cache.slots.find(2).expect("a copy");
    assert_eq!(cache.slots.state(copy), State::Copy);
    assert_eq!(
        cache.write(3),
        Admission::Slot,
        "the copy of 3 is superseded"
    );
    assert_eq!(
        cache.write(5),
        Admission::Instead(copy),
        "the oldest copy makes room"
    );
    assert!(matches!(cache.write(6), Admission::Instead(_)));
    assert_eq!(cache.write(7), Admission::Wait);
    cache.waiting = 1;
    assert_eq!(cache.begin(), Some(5), "cold ones first");
}
