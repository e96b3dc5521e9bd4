//! Examples worked by hand, the models on random traces, and invariants under removals and
//! refusals.

use std::collections::{HashMap, VecDeque};

use forebay_policy::BlockKey;
use proptest::prelude::*;

use super::models::{self, Model, Outcome};
use super::sketch::Sketch;
use super::*;

/// A cache with the policy: the key of each slot.
struct Cache {
    policy: AnyPolicy,
    slots: HashMap<u64, SlotId>,
    keys: HashMap<SlotId, u64>,
    free: Vec<SlotId>,
}

impl Cache {
    fn new(policy: Policy, slots: usize) -> Self {
        Self {
            policy: policy.build(slots),
            slots: HashMap::new(),
            keys: HashMap::new(),
            free: (0..slots as SlotId).rev().collect(),
        }
    }

    /// Frees a slot, if one is evictable.
    fn evict(&mut self, incoming: Option<u64>, refused: impl Fn(u64) -> bool) -> Option<u64> {
        let keys = &self.keys;
        let incoming = incoming.map(|key| BlockKey::new(0, key));
        let victim = self.policy.victim(incoming, |slot| !refused(keys[&slot]))?;
        let key = self.keys.remove(&victim).expect("the victim is in use");
        assert!(!refused(key), "a refused slot was evicted");
        self.slots.remove(&key);
        self.free.push(victim);
        self.check();
        Some(key)
    }

    /// References a key. Returns `None` if it is not cached and no slot can be freed.
    fn reference(&mut self, key: u64, refused: impl Fn(u64) -> bool) -> Option<Outcome> {
        if let Some(&slot) = self.slots.get(&key) {
            self.policy.touch(slot);
            self.check();
            return Some(Outcome::Hit);
        }
        let victim = if self.free.is_empty() {
            Some(self.evict(Some(key), refused)?)
        } else {
            None
        };
        let slot = self.free.pop().expect("a free slot");
        self.policy.insert(slot, BlockKey::new(0, key));
        self.slots.insert(key, slot);
        self.keys.insert(slot, key);
        self.check();
        Some(Outcome::Miss { victim })
    }

    fn remove(&mut self, key: u64) {
        let slot = self.slots.remove(&key).expect("is cached");
        self.keys.remove(&slot);
        self.free.push(slot);
        self.policy.remove(slot, BlockKey::new(0, key));
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.policy.len(), self.slots.len());
    }
}

/// Plays a trace of one-letter keys. A hit is a capital; a victim follows the block that was
/// inserted.
fn play(policy: Policy, slots: usize, trace: &str) -> String {
    let mut cache = Cache::new(policy, slots);
    let letter = |key: u64| char::from(key as u8);
    let step = |key: u8| match cache.reference(key.into(), |_| false).expect("room") {
        Outcome::Hit => letter(key.into()).to_ascii_uppercase().to_string(),
        Outcome::Miss { victim: None } => letter(key.into()).to_string(),
        Outcome::Miss { victim: Some(old) } => format!("{}-{}", letter(key.into()), letter(old)),
    };
    let steps: Vec<String> = trace.bytes().map(step).collect();
    steps.join(" ")
}

#[test]
fn lru_fifo_and_clock_by_hand() {
    assert_eq!(play(Policy::Lru, 3, "abcabde"), "a b c A B d-c e-a");
    assert_eq!(play(Policy::Fifo, 3, "abcabde"), "a b c A B d-a e-b");
    // The hand clears a and b, takes c, and finds a without its bit then.
    assert_eq!(play(Policy::Clock, 3, "abcabdef"), "a b c A B d-c e-a f-b");
}

#[test]
fn sieve_by_hand() {
    // The hand stays after b. New blocks are evicted at once, while a, once used, is safe until the
    // hand returns.
    assert_eq!(play(Policy::Sieve, 3, "abcadefa"), "a b c A d-b e-c f-d A");
}

#[test]
fn s3fifo_by_hand() {
    // Block a fills the small queue; b and c fill the main one. Block a moves there, so b is
    // evicted. Block d is evicted, and returns as a ghost to the main queue. Block e finds the
    // small queue empty, so c is evicted. Block f finds e there.
    assert_eq!(
        play(Policy::S3Fifo, 3, "abcaadbddef"),
        "a b c A A d-b b-d d-b D e-c f-e"
    );
}

#[test]
fn arc_by_hand() {
    // Ghost b makes T1 longer, so a is evicted from T2. Ghost a makes it shorter, so c is evicted
    // from T1; and so on.
    assert_eq!(play(Policy::Arc, 2, "abacbac"), "a b A c-b b-a a-c c-b");
}

#[test]
fn lirs_by_hand() {
    // Ghost c returns as LIR, and a becomes HIR. Used twice, a becomes LIR and b is evicted. d's
    // ghost was pruned before.
    assert_eq!(
        play(Policy::Lirs, 3, "abcdcaaeda"),
        "a b c d-c c-d A A e-b d-e A"
    );
}

#[test]
fn wtinylfu_by_hand() {
    // d was used no more often than b and is evicted; e was used more often.
    assert_eq!(
        play(Policy::WTinyLfu, 4, "abcdaaeef"),
        "a b c d A A e-d E f-b"
    );
}

fn model(policy: Policy, slots: usize) -> Box<dyn Model> {
    let queue = |moves| models::Queue {
        slots,
        moves,
        keys: VecDeque::new(),
    };
    match policy {
        Policy::Lru => Box::new(queue(true)),
        Policy::Fifo => Box::new(queue(false)),
        Policy::Clock => Box::new(models::SecondChance {
            slots,
            keys: VecDeque::new(),
        }),
        Policy::Sieve => Box::new(models::Sieve {
            slots,
            keys: Vec::new(),
            hand: 0,
        }),
        Policy::S3Fifo => Box::new(models::S3Fifo {
            slots,
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            warm: false,
        }),
        Policy::Arc => Box::new(models::Arc {
            slots,
            ..Default::default()
        }),
        Policy::Lirs => Box::new(models::Lirs {
            slots,
            ..Default::default()
        }),
        Policy::WTinyLfu => Box::new(models::WTinyLfu {
            slots,
            sketch: Sketch::new(slots),
            window: VecDeque::new(),
            probation: VecDeque::new(),
            protected: VecDeque::new(),
        }),
    }
}

/// One step of a random trace.
#[derive(Clone, Copy, Debug)]
enum Step {
    Reference(u64),
    /// Removes the n-th cached key, from the smallest.
    Remove(usize),
    /// Reclaims this many slots ahead of need.
    Reclaim(usize),
}

/// Runs steps against the model. The papers have no reclaiming, which another test covers.
fn compare(policy: Policy, slots: usize, steps: &[Step]) {
    let mut cache = Cache::new(policy, slots);
    let mut model = model(policy, slots);
    for (at, &step) in steps.iter().enumerate() {
        match step {
            Step::Reference(key) => {
                let found = cache.reference(key, |_| false).expect("nothing is refused");
                let expected = model.reference(key);
                assert_eq!(found, expected, "{policy}, {slots} slots, step {at}");
            }
            // The slot of a removed block is not at the end in the model of CLOCK.
            Step::Remove(_) if policy == Policy::Clock => {}
            Step::Remove(nth) => {
                if let Some(key) = nth_key(&cache, nth) {
                    cache.remove(key);
                    model.remove(key);
                }
            }
            Step::Reclaim(_) => {}
        }
    }
}

fn nth_key(cache: &Cache, nth: usize) -> Option<u64> {
    let mut keys: Vec<u64> = cache.slots.keys().copied().collect();
    keys.sort_unstable();
    (!keys.is_empty()).then(|| keys[nth % keys.len()])
}

/// Runs steps while keys with these remainders are refused.
fn disturb(policy: Policy, slots: usize, steps: &[Step], refused: u64) {
    let mut cache = Cache::new(policy, slots);
    let memory = cache.policy.memory_bytes();
    for &step in steps {
        // The refused keys change during the run.
        let shift = cache.slots.len() as u64;
        let refuses = |key: u64| refused >> ((key + shift) % 64) & 1 == 1;
        match step {
            Step::Reference(key) => {
                let done = cache.reference(key, refuses);
                let stuck = cache.free.is_empty() && cache.slots.keys().all(|&key| refuses(key));
                assert!(done.is_some() || stuck, "{policy}: one could have gone");
            }
            Step::Remove(nth) => {
                if let Some(key) = nth_key(&cache, nth) {
                    cache.remove(key);
                }
            }
            Step::Reclaim(count) => {
                for _ in 0..count {
                    let may_go = cache.slots.keys().any(|&key| !refuses(key));
                    assert_eq!(cache.evict(None, refuses).is_some(), may_go, "{policy}");
                }
            }
        }
    }
    assert_eq!(cache.policy.memory_bytes(), memory, "{policy} grew");
    let mut left = cache.slots.len();
    while cache.evict(None, |_| false).is_some() {
        left -= 1;
    }
    assert_eq!(left, 0, "{policy}: every slot can be evicted once");
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..20_u64).prop_map(Step::Reference),
        12 => (0..6_u64).prop_map(Step::Reference),
        1 => (0..20_usize).prop_map(Step::Remove),
        1 => (1..4_usize).prop_map(Step::Reclaim),
    ];
    prop::collection::vec(step, 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn victims_are_those_of_the_models(slots in 1..14_usize, steps in steps()) {
        for &policy in Policy::ALL {
            compare(policy, slots, &steps);
        }
    }

    #[test]
    fn removals_and_refusals_break_nothing(slots in 1..14_usize, steps in steps(), refused: u64) {
        for &policy in Policy::ALL {
            disturb(policy, slots, &steps, refused);
        }
    }
}

/// Skewed keys, a loop longer than the cache, and occasional removals.
fn long_trace(slots: usize, steps: usize, seed: u64) -> Vec<Step> {
    let mut state = seed;
    let mut draw = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let slots = slots as u64;
    let mut looped = 0;
    let step = |_| match draw(100) {
        0 => Step::Remove(draw(slots) as usize),
        1..=30 => {
            looped += 1;
            Step::Reference(10_000 + looped % (slots + slots / 4))
        }
        _ => {
            let wide = draw(4 * slots) + 1;
            Step::Reference(draw(wide))
        }
    };
    (0..steps).map(step).collect()
}

#[test]
fn long_traces_have_the_victims_of_the_models() {
    for (slots, seed) in [(40, 1), (100, 2), (250, 3), (620, 4)] {
        let trace = long_trace(slots, 30_000, seed);
        let without_removals: Vec<Step> = trace
            .iter()
            .copied()
            .filter(|step| matches!(step, Step::Reference(_)))
            .collect();
        for &policy in Policy::ALL {
            compare(policy, slots, &without_removals);
            compare(policy, slots, &trace);
        }
    }
}

#[test]
fn one_call_asks_about_so_many_slots_and_no_more() {
    for &policy in Policy::ALL {
        let mut cache = policy.build(10 * LOOK_AT);
        for slot in 0..10 * LOOK_AT as u32 {
            cache.insert(slot, BlockKey::new(0, slot.into()));
        }
        let mut asked = 0;
        let victim = cache.victim(None, |_| {
            asked += 1;
            false
        });
        assert_eq!(victim, None);
        // Policies with several lists check each.
        assert!(
            (LOOK_AT..=3 * LOOK_AT).contains(&asked),
            "{policy}: {asked}"
        );
        assert_eq!(cache.len(), 10 * LOOK_AT);
    }
}

#[test]
fn a_block_that_is_evicted_ahead_of_need_is_remembered() {
    let key = |key| BlockKey::new(0, key);
    for (policy, expected) in [
        // The ghost's return frees one block in T1, so 0 is evicted before 3.
        (Policy::Arc, [1, 2, 0, 3]),
        // 0 is the last in main; it was the first and only one in the small queue.
        (Policy::S3Fifo, [1, 2, 3, 0]),
        // 0 returns as LIR, 1 becomes HIR, 2 and 3 are LIR.
        (Policy::Lirs, [1, 2, 3, 0]),
    ] {
        let mut cache = policy.build(4);
        let evicted = if policy == Policy::Lirs { 3 } else { 0 };
        for nth in 0..4 {
            cache.insert((nth + 4 - evicted) % 4, key(u64::from(nth)));
        }
        assert_eq!(cache.victim(None, |_| true), Some(0), "{policy}");
        cache.insert(0, key(u64::from(evicted)));
        let victims = [0; 4].map(|_: u32| cache.victim(None, |_| true).expect("in use"));
        assert_eq!(victims, expected, "{policy}");
    }
}

#[test]
fn frequency_decides_about_blocks_that_go_ahead_of_need_too() {
    let mut cache = Policy::WTinyLfu.build(300);
    for slot in 0..300 {
        cache.insert(slot, BlockKey::new(0, slot.into()));
    }
    for slot in 0..297 {
        cache.touch(slot);
    }
    // The window's three were used once; after them, the oldest on probation is evicted.
    let victims = [0; 4].map(|_: u32| cache.victim(None, |_| true).expect("in use"));
    assert_eq!(victims[..3], [297, 298, 299]);
    assert!(victims[3] < 297);
}

#[test]
fn policies_are_found_by_name() {
    for &policy in Policy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert_eq!("S3-FIFO".parse(), Ok(Policy::S3Fifo));
    assert_eq!("W-TinyLFU".parse(), Ok(Policy::WTinyLfu));
    let error = "mru".parse::<Policy>().expect_err("there is none");
    assert!(error.to_string().contains("\"mru\""), "{error}");
    assert!(error.to_string().contains("wtinylfu"), "{error}");
}

#[test]
fn memory_per_slot_matches_the_documentation() {
    // The sizes of tables are powers of two, so the memory for each slot depends on the number of
    // slots.
    for slots in [100_000, 115_000, 131_072, 150_000, 200_000] {
        for (policy, least, most) in [
            (Policy::Lru, 8, 8),
            (Policy::Fifo, 8, 8),
            (Policy::Clock, 1, 1),
            (Policy::Arc, 49, 61),
            (Policy::Lirs, 64, 76),
            (Policy::S3Fifo, 47, 58),
            (Policy::Sieve, 9, 9),
            (Policy::WTinyLfu, 25, 33),
        ] {
            let bytes = policy.build(slots).memory_bytes() as f64 / slots as f64;
            let measured = bytes.round() as i32;
            assert!(
                (least..=most).contains(&measured),
                "{policy}: {bytes:.1} with {slots} slots"
            );
        }
    }
}
