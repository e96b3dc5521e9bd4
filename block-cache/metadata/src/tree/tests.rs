//! The tree against a naive model: a set of dirty blocks, and media. Every bit that a round in
//! flight changes may be old or new on media.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use adjuster::{Adjuster, Adjustment};

// The study's sources: a crate that uses this one has other types than its unit tests.
#[expect(unreachable_pub, reason = "they are public in their own crate")]
#[path = "../../../../studies/mapperx/src/adjuster.rs"]
mod adjuster;
#[expect(unreachable_pub, reason = "they are public in their own crate")]
#[path = "../../../../studies/mapperx/src/algorithm1.rs"]
mod algorithm1;

/// Blocks of the volume that is tried.
const BLOCKS: u64 = 300;

/// A step of a run. Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Mark { first: u64, blocks: u64 },
    Clear { nth: usize },
    Place { first: u64, blocks: u64 },
    Remove { nth: usize },
    Adjust { writes: u64 },
    Begin,
    Finish,
    Tighten,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..BLOCKS, 1..12_u64).prop_map(|(first, blocks)| Step::Mark { first, blocks }),
        4 => any::<usize>().prop_map(|nth| Step::Clear { nth }),
        2 => (0..BLOCKS, 1..12_u64).prop_map(|(first, blocks)| Step::Place { first, blocks }),
        1 => any::<usize>().prop_map(|nth| Step::Remove { nth }),
        4 => (1..40_u64).prop_map(|writes| Step::Adjust { writes }),
        4 => Just(Step::Begin),
        4 => Just(Step::Finish),
        1 => Just(Step::Tighten),
    ]
}

/// A tree, media as bits, and a model of the blocks.
struct Trial {
    tree: Tree<Adjuster>,
    /// Content of media before the round in flight.
    media: Vec<u64>,
    round: Option<Round>,
    /// Blocks that are marked, and after which round the mark is durable.
    marked: Vec<(u64, u64)>,
    cached: BTreeSet<u64>,
    now: Duration,
    writes: u64,
}

impl Trial {
    fn new(adjustment: Adjustment, degree: u32, levels: u8) -> Self {
        let shape = Shape::covering(BLOCKS, degree, levels).expect("valid");
        let options = TreeOptions { sla_nines: 0.5 };
        // One word a unit, so that a tree of a few hundred nodes has several.
        let tree = Tree::new(shape, 1, options, adjustment.adjuster(shape));
        Self {
            media: vec![0; tree.units() as usize],
            tree,
            round: None,
            marked: Vec::new(),
            cached: BTreeSet::new(),
            now: Duration::ZERO,
            writes: 0,
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Mark { first, blocks } => {
                let wanted = first..(first + blocks).min(BLOCKS);
                for block in wanted {
                    if self.marked.iter().all(|(other, _)| *other != block) {
                        let round = match self.tree.mark(block..block + 1) {
                            Marked::Durable => 0,
                            Marked::After(round) => round,
                        };
                        self.marked.push((block, round));
                        self.writes += 1;
                    }
                }
            }
            Step::Clear { nth } if !self.marked.is_empty() => {
                let (block, _) = self.marked.swap_remove(nth % self.marked.len());
                self.tree.clear(block..block + 1);
            }
            Step::Place { first, blocks } => {
                for block in first..(first + blocks).min(BLOCKS) {
                    if self.cached.insert(block) {
                        self.tree.place(block..block + 1);
                    }
                }
            }
            Step::Remove { nth } if !self.cached.is_empty() => {
                let nth = nth % self.cached.len();
                let block = *self.cached.iter().nth(nth).expect("there are as many");
                self.cached.remove(&block);
                self.tree.remove(block..block + 1);
            }
            Step::Adjust { writes } => {
                self.now += Duration::from_secs(1);
                self.writes += writes;
                let persists = self.tree.persists();
                self.tree.adjust(self.now, self.writes, persists);
            }
            Step::Begin if self.round.is_none() => self.round = self.tree.begin_round(),
            Step::Finish => self.finish(),
            Step::Tighten => self.tree.tighten(),
            Step::Clear { .. } | Step::Remove { .. } | Step::Begin => {}
        }
    }

    fn finish(&mut self) {
        if let Some(round) = self.round.take() {
            for &unit in round.units() {
                self.media[unit as usize] = self.tree.unit(unit)[0];
            }
            self.tree.finish_round(round, true);
        }
    }

    /// Returns whether a node's bit is set, whichever writes of the round in flight arrive.
    fn is_certain(&self, node: u32) -> bool {
        let unit = node / 64;
        let bit = |words: u64| words >> (node % 64) & 1 == 1;
        let arriving = match &self.round {
            Some(round) if round.units().contains(&unit) => self.tree.unit(unit)[0],
            _ => self.media[unit as usize],
        };
        bit(self.media[unit as usize]) && bit(arriving)
    }

    fn check(&self) {
        let shape = self.tree.shape();
        for &(block, round) in &self.marked {
            if self.tree.durable_round() < round {
                continue;
            }
            let leaf = shape.node_of(shape.leaf_of(block));
            assert!(
                shape.path(leaf).any(|node| self.is_certain(node)),
                "block {block} is dirty, and a crash may forget it"
            );
            assert!(self.tree.is_durably_marked(block..block + 1));
            assert!(self.tree.may_be_dirty(block..block + 1));
        }
        let above = |&(block, _): &(u64, u64)| shape.path(shape.node_of(shape.leaf_of(block)));
        let dirty: BTreeSet<u32> = self.marked.iter().flat_map(above).collect();
        assert!(
            self.tree.dirty.ones().eq(dirty),
            "the complete tree has a node for each that is above a dirty block"
        );
    }

    /// Rounds until nothing is due; how many.
    fn finish_rounds(&mut self) -> u32 {
        self.finish();
        for rounds in 0..100 {
            if !self.tree.is_due() {
                return rounds;
            }
            self.round = self.tree.begin_round();
            self.check();
            self.finish();
        }
        panic!("rounds go on and on");
    }
}

fn adjustments() -> impl Strategy<Value = Adjustment> {
    prop_oneof![Just(Adjustment::Paper), Just(Adjustment::Priced)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn dirty_blocks_are_covered_whatever_part_of_a_round_arrives(
        adjustment in adjustments(),
        degree in prop_oneof![Just(2_u32), Just(4), Just(16)],
        levels in 1..5_u8,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut trial = Trial::new(adjustment, degree, levels);
        for step in &steps {
            trial.take(step);
            trial.check();
        }
        // A clean end says exactly what is dirty.
        trial.finish_rounds();
        trial.tree.tighten();
        trial.finish_rounds();
        trial.check();
        let shape = trial.tree.shape();
        let leaves = trial.marked.iter().map(|(block, _)| shape.leaf_of(*block));
        let dirty: BTreeSet<u32> = leaves.collect();
        for leaf in 0..shape.leaves() {
            prop_assert_eq!(trial.tree.summary.covers(leaf), dirty.contains(&leaf));
        }
    }

    #[test]
    fn a_restored_tree_keeps_the_coverage_on_media(
        adjustment in adjustments(),
        bits in prop::collection::vec(any::<u64>(), 2),
        sparse in prop::collection::vec(any::<u64>(), 2),
    ) {
        let options = TreeOptions { sla_nines: 0.5 };
        let shape = Shape::covering(64, 4, 3).expect("valid");
        let words: Vec<u64> = bits.iter().zip(&sparse).map(|(one, other)| one & other).collect();
        let mut tree = Tree::restored(shape, 1, options, adjustment.adjuster(shape), &words);
        let covered = (0..64).filter(|&block| tree.may_be_dirty(block..block + 1));
        let covered: Vec<u64> = covered.collect();
        for &block in &covered {
            prop_assert_eq!(tree.mark(block..block + 1), Marked::Durable);
        }
        // The first half is written back, the tree settles, and the others are still covered.
        for &block in &covered[..covered.len() / 2] {
            tree.clear(block..block + 1);
        }
        tree.tighten();
        while let Some(round) = tree.begin_round() {
            tree.finish_round(round, true);
        }
        for block in 0..64 {
            let dirty = covered[covered.len() / 2..].contains(&block);
            prop_assert_eq!(tree.may_be_dirty(block..block + 1), dirty, "block {}", block);
        }
    }
}

fn trial(adjustment: Adjustment) -> Trial {
    Trial::new(adjustment, 4, 4)
}

#[test]
fn marks_share_a_round_and_those_that_come_later_wait_for_the_next() {
    let mut trial = trial(Adjustment::Paper);
    assert_eq!(trial.tree.mark(0..1), Marked::After(1));
    assert_eq!(trial.tree.mark(299..300), Marked::After(1));
    let round = trial.tree.begin_round().expect("two wait");
    assert_eq!(round.units(), [0], "the root stands for all at first");
    assert_eq!(trial.tree.mark(7..8), Marked::After(1), "it is on its way");
    assert!(trial.tree.begin_round().is_none(), "one at a time");
    trial.tree.finish_round(round, true);
    assert_eq!(trial.tree.mark(100..110), Marked::Durable);
    assert_eq!(trial.tree.persists(), 1);
}

#[test]
fn a_parent_goes_after_its_children_are_there() {
    let mut trial = trial(Adjustment::Paper);
    trial.take(&Step::Mark {
        first: 0,
        blocks: 1,
    });
    trial.finish_rounds();
    assert!(trial.tree.may_be_dirty(299..300));
    trial.take(&Step::Adjust { writes: 1000 });
    let round = trial.tree.begin_round().expect("a leaf is refined");
    assert_eq!(trial.tree.unit(0)[0], 0b11, "the child beside the root");
    trial.tree.finish_round(round, true);
    let round = trial.tree.begin_round().expect("the root goes");
    assert_eq!(trial.tree.unit(0)[0], 0b10);
    trial.tree.finish_round(round, true);
    assert!(!trial.tree.may_be_dirty(299..300));
    assert!(trial.tree.may_be_dirty(0..1));
}

#[test]
fn children_go_after_their_parent_is_there() {
    let mut trial = trial(Adjustment::Paper);
    trial.take(&Step::Mark {
        first: 0,
        blocks: 1,
    });
    trial.finish_rounds();
    trial.take(&Step::Adjust { writes: 1000 });
    trial.finish_rounds();
    // A persist for each write is too many.
    trial.take(&Step::Mark {
        first: 299,
        blocks: 1,
    });
    trial.finish_rounds();
    trial
        .tree
        .adjust(trial.now + PERIOD, trial.writes, trial.tree.persists());
    trial.tree.budget.grant(10);
    trial.take(&Step::Begin);
    assert!(trial.round.is_some(), "the children are deleted");
    assert_eq!(trial.tree.unit(0)[0] & 1, 1, "the root is there again");
    assert_ne!(trial.tree.unit(0)[0], 1, "and its children still are");
    trial.finish();
    trial.finish_rounds();
    assert_eq!(trial.tree.unit(0)[0], 1);
}

#[test]
fn a_failed_round_keeps_durable_marks_and_promises_no_others() {
    let mut trial = trial(Adjustment::Paper);
    trial.take(&Step::Mark {
        first: 0,
        blocks: 1,
    });
    trial.finish_rounds();
    trial.take(&Step::Adjust { writes: 1000 });
    trial.finish_rounds();
    let Marked::After(number) = trial.tree.mark(299..300) else {
        panic!("nothing covers it");
    };
    let round = trial.tree.begin_round().expect("it waits");
    trial.tree.finish_round(round, false);
    assert!(trial.tree.durable_round() < number);
    assert!(trial.tree.begin_round().is_none() && !trial.tree.is_due());
    assert!(trial.tree.is_durably_marked(0..1));
    assert!(!trial.tree.is_durably_marked(299..300));
    assert!(trial.tree.may_be_dirty(299..300), "it may have arrived");
    assert_eq!(trial.tree.mark(1..2), Marked::Durable);
}

#[test]
fn ranges_without_cached_blocks_stay_covered_and_clean_blocks_are_cut_out() {
    let mut trial = trial(Adjustment::Priced);
    trial.take(&Step::Mark {
        first: 0,
        blocks: 1,
    });
    trial.finish_rounds();
    assert!(
        trial.tree.may_be_dirty(200..300),
        "holding it costs nothing"
    );
    trial.take(&Step::Place {
        first: 250,
        blocks: 50,
    });
    trial.tree.adjust(Duration::from_secs(1), 20, 1);
    trial.finish_rounds();
    assert!(!trial.tree.may_be_dirty(256..300), "now it would");
    assert!(trial.tree.may_be_dirty(0..1) && trial.tree.may_be_dirty(100..110));
    let memory = trial.tree.memory_bytes();
    trial.take(&Step::Place {
        first: 0,
        blocks: 250,
    });
    trial.take(&Step::Mark {
        first: 0,
        blocks: 300,
    });
    trial.finish_rounds();
    assert!(trial.tree.memory_bytes() <= memory + 4096, "it is bounded");
}

#[test]
fn the_papers_tree_takes_so_much_memory() {
    let shape = Shape::covering(1 << 30, DEFAULT_DEGREE, DEFAULT_LEVELS).expect("valid");
    for (adjustment, most_kib) in [(Adjustment::Paper, 150), (Adjustment::Priced, 340)] {
        let (options, adjuster) = (TreeOptions::default(), adjustment.adjuster(shape));
        let bytes = Tree::new(shape, 8 * 61, options, adjuster).memory_bytes();
        assert!(bytes <= most_kib << 10, "{adjustment:?}: {bytes}");
    }
}
