//! The summary of the tree on media, and the order in which it may change.
//!
//! There are three arrays of bits, one bit a node. A set bit means "all beneath may be dirty":
//!
//! - `wanted`: the desired bits on media. They cover all dirty blocks, always.
//! - `media`: bits that are on media for certain, whatever happens.
//! - `written`: bits that the round in flight writes; otherwise equal to `media`.
//!
//! A round writes units. It writes the wanted bits, and the bits on media that may not be cleared
//! yet. *A bit is cleared only when all dirty blocks beneath it are covered by other bits that are
//! on media and stay there.* By this one rule, refining writes the children before it clears the
//! parent. Coarsening writes the parent before it clears the children. Bits of clean blocks are
//! cleared at once. The rule also makes any mixture of the old and the new contents of a round's
//! writes safe. So units, and the sectors in them, need not arrive together.

use super::bits::{Bits, ones};
use super::shape::Shape;
use crate::order::{Part, Site};

/// A round of writing: these units, all of them durable before it has ended.
#[derive(Debug)]
#[must_use = "a round that was begun is ended by finish_round"]
pub struct Round {
    pub(super) number: u64,
    pub(super) units: Vec<u32>,
}

impl Round {
    /// Its number; rounds count from one.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The units to write, from the first on.
    #[must_use]
    pub fn units(&self) -> &[u32] {
        &self.units
    }
}

#[derive(Debug)]
pub(super) struct Summary {
    shape: Shape,
    /// Words of bits in a unit.
    unit_words: usize,
    pub(super) wanted: Bits,
    pub(super) media: Bits,
    written: Bits,
    /// Leaves with waiting requests, to be covered by the next round.
    awaited: Vec<u32>,
    /// The last round begun, and the last one that is durable.
    pub(super) begun: u64,
    pub(super) durable: u64,
    failed: bool,
    /// First unit to visit when a round writes units without waiting requests.
    next: u32,
}

impl Summary {
    pub(super) fn new(shape: Shape, unit_words: usize) -> Self {
        let units = (shape.nodes() as usize).div_ceil(64 * unit_words);
        let bits = Bits::new(u32::try_from(units * unit_words * 64).expect("few nodes"));
        Self {
            shape,
            unit_words,
            wanted: bits.clone(),
            media: bits.clone(),
            written: bits,
            awaited: Vec::new(),
            begun: 0,
            durable: 0,
            failed: false,
            next: 0,
        }
    }

    pub(super) fn units(&self) -> u32 {
        (self.media.words().len() / self.unit_words) as u32
    }

    /// Restores the bits that were found on media.
    pub(super) fn restore(&mut self, words: &[u64]) {
        self.media.words_mut().copy_from_slice(words);
        // A unit that is lost has bits of no node, too.
        for beyond in self.shape.nodes()..words.len() as u32 * 64 {
            self.media.clear(beyond);
        }
        self.written = self.media.clone();
        self.wanted = self.media.clone();
    }

    fn unit_of(&self, node: u32) -> u32 {
        node / (64 * self.unit_words as u32)
    }

    /// Returns the content of a unit, or its new content if it is being written.
    pub(super) fn unit(&self, unit: u32) -> &[u64] {
        let first = unit as usize * self.unit_words;
        &self.written.words()[first..first + self.unit_words]
    }

    pub(super) const fn in_flight(&self) -> bool {
        self.begun > self.durable
    }

    pub(super) fn is_awaited(&self) -> bool {
        !self.awaited.is_empty()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        3 * self.media.memory_bytes() + self.awaited.capacity() * size_of::<u32>()
    }

    /// Whether a leaf counts as dirty if power is lost now.
    pub(super) fn covers(&self, leaf: u32) -> bool {
        let path = self.shape.path(self.shape.node_of(leaf));
        let mut path = path.map(|node| self.media.get(node) || self.written.get(node));
        path.any(|set| set)
    }

    /// Whether it does so for certain, and continues to do so when the round in flight has ended.
    pub(super) fn is_durable(&self, leaf: u32) -> bool {
        let mut path = self.shape.path(self.shape.node_of(leaf));
        path.any(|node| self.media.get(node) && self.written.get(node))
    }

    /// Whether a leaf is to be covered.
    pub(super) fn wants(&self, leaf: u32) -> bool {
        let mut path = self.shape.path(self.shape.node_of(leaf));
        path.any(|node| self.wanted.get(node))
    }

    /// The round after which a leaf that is wanted, and not durable, is covered.
    pub(super) fn await_leaf(&mut self, leaf: u32) -> u64 {
        let mut path = self.shape.path(self.shape.node_of(leaf));
        if self.in_flight() && path.any(|node| self.written.get(node)) {
            return self.begun;
        }
        self.awaited.push(leaf);
        self.begun + 1
    }

    /// Begins a round that covers what is awaited, with up to `spare` more units that differ from
    /// what is wanted. None while one is in flight, or if there is nothing to write. `dirty` is the
    /// complete tree.
    pub(super) fn begin(&mut self, dirty: &Bits, mut spare: u32) -> Option<Round> {
        if self.in_flight() || self.failed {
            return None;
        }
        let awaited = std::mem::take(&mut self.awaited);
        // Which bit covers a leaf may have changed since it was marked.
        let covering = |leaf: &u32| {
            let mut path = self.shape.path(self.shape.node_of(*leaf));
            path.find(|&node| self.wanted.get(node))
        };
        let covering = awaited.iter().filter_map(covering);
        let mut units: Vec<u32> = covering.map(|node| self.unit_of(node)).collect();
        units.sort_unstable();
        units.dedup();
        let all = self.units();
        for unit in (self.next..all).chain(0..self.next) {
            let forced = units.contains(&unit);
            if !forced && spare == 0 {
                continue;
            }
            let changes = self.compose(dirty, unit);
            if changes && !forced {
                units.push(unit);
                spare -= 1;
                self.next = (unit + 1) % all;
            }
        }
        if units.is_empty() && awaited.is_empty() {
            return None;
        }
        units.sort_unstable();
        self.begun = self.durable + 1;
        Some(Round {
            number: self.begun,
            units,
        })
    }

    /// Puts together what a unit should have; whether that differs from what it has.
    fn compose(&mut self, dirty: &Bits, unit: u32) -> bool {
        let first = unit as usize * self.unit_words;
        let mut changes = false;
        for word in first..first + self.unit_words {
            let (wanted, media) = (self.wanted.words()[word], self.media.words()[word]);
            let mut bits = wanted | media;
            for bit in ones(media & !wanted) {
                if self.may_go(dirty, word as u32 * 64 + bit) {
                    bits &= !(1 << bit);
                }
            }
            self.written.words_mut()[word] = bits;
            changes |= bits != media;
        }
        changes
    }

    /// Whether other bits, on media and wanted, cover all that is dirty beneath a node.
    fn may_go(&self, dirty: &Bits, node: u32) -> bool {
        // A parent that goes before its children are on media leaves them to chance.
        if !dirty.get(node) || Site::here().lacks(Part::Step) {
            return true;
        }
        let mut above = self.shape.path(node).skip(1);
        above.any(|node| self.stays(node)) || self.is_covered_below(dirty, node)
    }

    fn stays(&self, node: u32) -> bool {
        self.wanted.get(node) && self.media.get(node)
    }

    fn is_covered_below(&self, dirty: &Bits, node: u32) -> bool {
        if self.shape.is_leaf(node) {
            return false;
        }
        let mut children = self.shape.children(node);
        children.all(|child| {
            !dirty.get(child) || self.stays(child) || self.is_covered_below(dirty, child)
        })
    }

    /// Ends the round. After a failure the content of its units is unknown. Bits that are in both
    /// the old and the new content are still certain, and no round follows.
    pub(super) fn finish(&mut self, round: &Round, durable: bool) {
        debug_assert_eq!(round.number, self.begun, "one round at a time");
        if !durable {
            self.failed = true;
            return;
        }
        for &unit in &round.units {
            let first = unit as usize * self.unit_words;
            let words = first..first + self.unit_words;
            let written = &self.written.words()[words.clone()];
            self.media.words_mut()[words].copy_from_slice(written);
        }
        self.durable = round.number;
    }

    /// Whether media says anything else than what is wanted.
    pub(super) fn differs(&self) -> bool {
        !self.failed && self.wanted != self.media
    }
}
