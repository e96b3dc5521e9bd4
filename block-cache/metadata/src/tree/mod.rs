//! The adaptive bit-tree: ranges of blocks that may be dirty, recorded on media before they are
//! (MapperX, ATC'21).
//!
//! A *block* is what the tree counts. The engine has one tree over the slots of the cache, so a
//! block of the tree is a slot there. The paper has a tree over the blocks of each volume.
//!
//! Memory has the *complete* tree. A leaf has the number of its dirty blocks. A node above has one
//! bit, which is set if any block beneath is dirty. Media has its *summary*, one bit a node; a set
//! bit says that all blocks beneath may be dirty.
//!
//! Before a clean block may be written, a node above it must be durably set. Mostly one is set
//! already, and the write waits for nothing. After a crash, blocks under no set node are clean, and
//! blocks under a set node are written back. The coarseness of the summary decides how often a
//! write must wait, and how much is written back in vain. It is adjusted so that at most a given
//! ratio of client writes costs a write of metadata.
//!
//! A tree does no I/O and has no clock. [`Tree::begin_round`] says which units to write,
//! [`Tree::unit`] has the bits, and [`Tree::finish_round`] says that they are durable.
//! [`TreeWriter`] does that on a block device. Byte-addressable media would have units of one line
//! with two versions in place of two units: another writer and another `unit_words`, the same tree.
//!
//! An adjuster ([`Adjust`]) decides how coarse the summary is. Forebay's is [`Priced`].
//!
//! docs/internals/format/bit-tree.md has the bytes and the order.

mod adjust;
mod bits;
mod budget;
mod load;
mod priced;
mod sector;
mod shape;
mod summary;
mod writer;

use std::ops::Range;
use std::time::Duration;

use budget::Budget;
use summary::Summary;

pub use adjust::{Adjust, Nodes, Totals};
pub use bits::Bits;
pub use load::{LoadReport, Loaded, format, load, look};
pub use priced::Priced;
pub use sector::{Plane, TreeExtent};
pub use shape::{DEFAULT_DEGREE, DEFAULT_LEVELS, Shape};
pub use summary::Round;
pub use writer::TreeWriter;

/// How often a tree is adjusted; the paper's period.
const PERIOD: Duration = Duration::from_secs(1);
/// It is adjusted earlier, too, after as many client writes as allow this many persists.
const PERIOD_PERSISTS: f64 = 8.0;

/// Goals and shape of a tree.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// Writes of metadata a client write: 10 to the power of minus this many.
    pub sla_nines: f64,
}

impl Default for TreeOptions {
    fn default() -> Self {
        Self { sla_nines: 2.0 }
    }
}

impl TreeOptions {
    fn ratio(&self) -> f64 {
        10_f64.powf(-self.sla_nines)
    }
}

/// When a mark is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a write waits until its mark is durable"]
pub enum Marked {
    /// It is.
    Durable,
    /// When this round has ended.
    After(u64),
}

impl Marked {
    /// When both are.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Durable, marked) | (marked, Self::Durable) => marked,
            (Self::After(one), Self::After(other)) => Self::After(one.max(other)),
        }
    }
}

/// A bit-tree in memory, with the state of its copy on media.
#[derive(Debug)]
pub struct Tree<A = Priced> {
    shape: Shape,
    ratio: f64,
    /// Dirty blocks of each leaf.
    leaves: Vec<u32>,
    /// The complete tree: a node is set if any block beneath it is dirty.
    dirty: Bits,
    summary: Summary,
    adjuster: A,
    budget: Budget,
    adjusted: Duration,
    adjusted_writes: u64,
    persists: u64,
}

impl<A: Adjust> Tree<A> {
    /// A tree in which nothing is dirty, on media of which `unit_words` words of 64 bits are
    /// written at a time and say the same. The adjuster is new, and of the same shape.
    #[must_use]
    pub fn new(shape: Shape, unit_words: usize, options: TreeOptions, adjuster: A) -> Self {
        let summary = Summary::new(shape, unit_words);
        Self {
            shape,
            ratio: options.ratio(),
            leaves: vec![0; shape.leaves() as usize],
            dirty: Bits::new(shape.nodes()),
            summary,
            adjuster,
            budget: Budget::new(options.ratio()),
            adjusted: Duration::ZERO,
            adjusted_writes: 0,
            persists: 0,
        }
    }

    /// Restores a tree from media. Each block that it covers counts as dirty in
    /// [`Tree::may_be_dirty`] until the block has been marked and then cleared.
    pub(crate) fn restored(
        shape: Shape,
        unit_words: usize,
        options: TreeOptions,
        adjuster: A,
        words: &[u64],
    ) -> Self {
        let mut tree = Self::new(shape, unit_words, options, adjuster);
        tree.summary.restore(words);
        let (adjuster, nodes) = tree.parts();
        adjuster.restore(nodes);
        tree
    }

    /// The adjuster, and the nodes that it works on.
    fn parts(&mut self) -> (&mut A, Nodes<'_>) {
        let nodes = Nodes {
            shape: self.shape,
            ratio: self.ratio,
            dirty: &self.dirty,
            wanted: &mut self.summary.wanted,
        };
        (&mut self.adjuster, nodes)
    }

    /// Its shape.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// These clean blocks are about to become dirty. Called once for each block when it does; none
    /// of them may be written to before the mark is durable. A mark that is not needed after all is
    /// cleared.
    ///
    /// # Panics
    /// If a block lies beyond the tree.
    pub fn mark(&mut self, blocks: Range<u64>) -> Marked {
        let mut marked = Marked::Durable;
        for leaf in self.shape.leaves_of(&blocks) {
            self.leaves[leaf as usize] += self.shape.share(&blocks, leaf);
            self.turn_dirty(leaf);
            // Leaves that are covered on media only for now must be covered after that, too.
            let durable = self.summary.is_durable(leaf);
            if !self.summary.wants(leaf) {
                let (adjuster, nodes) = self.parts();
                adjuster.cover(nodes, leaf, !durable);
            }
            if !durable {
                marked = marked.and(Marked::After(self.summary.await_leaf(leaf)));
            }
        }
        marked
    }

    /// When these blocks, each of which is marked already, are durably so.
    ///
    /// # Panics
    /// If a block lies beyond the tree.
    pub fn marked(&mut self, blocks: Range<u64>) -> Marked {
        let mut marked = Marked::Durable;
        for leaf in self.shape.leaves_of(&blocks) {
            if !self.summary.is_durable(leaf) {
                marked = marked.and(Marked::After(self.summary.await_leaf(leaf)));
            }
        }
        marked
    }

    fn turn_dirty(&mut self, leaf: u32) {
        let node = self.shape.node_of(leaf);
        if self.dirty.get(node) {
            return;
        }
        for node in self.shape.path(node) {
            self.dirty.set(node);
        }
        self.adjuster.turned_dirty(self.shape, leaf);
    }

    /// Notes that these blocks are clean; each of them was marked. Their data was written back, and
    /// the backing device was flushed after that. Writes nothing: media follows with later rounds.
    ///
    /// # Panics
    /// If more blocks of a leaf are cleared than were marked.
    pub fn clear(&mut self, blocks: Range<u64>) {
        for leaf in self.shape.leaves_of(&blocks) {
            let share = self.shape.share(&blocks, leaf);
            let dirty = &mut self.leaves[leaf as usize];
            *dirty = dirty
                .checked_sub(share)
                .expect("a block is marked before it is cleared");
            if *dirty == 0 {
                self.turn_clean(leaf);
            }
        }
    }

    fn turn_clean(&mut self, leaf: u32) {
        let leaf_node = self.shape.node_of(leaf);
        self.dirty.clear(leaf_node);
        for node in self.shape.path(leaf_node).skip(1) {
            let mut children = self.shape.children(node);
            if children.any(|child| self.dirty.get(child)) {
                break;
            }
            self.dirty.clear(node);
        }
        let (adjuster, nodes) = self.parts();
        adjuster.turned_clean(nodes, leaf);
    }

    /// These blocks are cached from now on. (Those that are written to are marked first.)
    pub fn place(&mut self, blocks: Range<u64>) {
        for leaf in self.shape.leaves_of(&blocks) {
            let clean = self.leaves[leaf as usize] == 0;
            let share = self.shape.share(&blocks, leaf);
            self.adjuster.place(self.shape, leaf, share, clean);
        }
    }

    /// These cached blocks are gone.
    ///
    /// # Panics
    /// If more blocks of a leaf go than were placed.
    pub fn remove(&mut self, blocks: Range<u64>) {
        for leaf in self.shape.leaves_of(&blocks) {
            let share = self.shape.share(&blocks, leaf);
            self.adjuster.remove(self.shape, leaf, share);
        }
    }

    /// Whether any of these blocks counts as dirty if power is lost now.
    #[must_use]
    pub fn may_be_dirty(&self, blocks: Range<u64>) -> bool {
        let mut leaves = self.shape.leaves_of(&blocks);
        leaves.any(|leaf| self.summary.covers(leaf))
    }

    /// Whether all of these blocks count as dirty for certain, and will continue to do so.
    #[must_use]
    pub fn is_durably_marked(&self, blocks: Range<u64>) -> bool {
        let mut leaves = self.shape.leaves_of(&blocks);
        leaves.all(|leaf| self.summary.is_durable(leaf))
    }

    /// Adjusts the tree if its period is over. `now` is since any fixed moment. `writes` and
    /// `persists` are the client's writes and the unit writes of all that shares the ratio since
    /// the tree was made.
    pub fn adjust(&mut self, now: Duration, writes: u64, persists: u64) {
        let since = (writes - self.adjusted_writes) as f64;
        if now < self.adjusted + PERIOD && since * self.ratio < PERIOD_PERSISTS {
            return;
        }
        (self.adjusted, self.adjusted_writes) = (now, writes);
        self.budget.update(writes, persists);
        let can_write = self.budget.spare() > 0;
        let (adjuster, nodes) = self.parts();
        adjuster.adjust(nodes, Totals { writes, persists }, can_write);
    }

    /// For a clean end: from now on media says exactly what is dirty, at any cost. Rounds are due
    /// until it does.
    pub fn tighten(&mut self) {
        self.summary.wanted.clear_all();
        for leaf in 0..self.shape.leaves() {
            if self.leaves[leaf as usize] > 0 {
                self.summary.wanted.set(self.shape.node_of(leaf));
            }
        }
        let persists = u64::from(self.summary.units()) * 4;
        self.budget = Budget::new(0.0);
        self.budget.grant(persists);
    }

    /// Returns whether a round would write changes that a request waits for, or for which the ratio
    /// leaves room.
    #[must_use]
    pub fn is_due(&self) -> bool {
        !self.summary.in_flight()
            && (self.summary.is_awaited() || (self.budget.spare() > 0 && self.summary.differs()))
    }

    /// Begins a round of writing, if there is anything to write and none is under way.
    pub fn begin_round(&mut self) -> Option<Round> {
        let round = self.summary.begin(&self.dirty, self.budget.spare())?;
        let persists = round.units().len() as u64;
        self.persists += persists;
        self.budget.take(persists);
        Some(round)
    }

    /// The bits that a unit has on media, or gets in the round under way.
    ///
    /// # Panics
    /// If there is no such unit.
    #[must_use]
    pub fn unit(&self, unit: u32) -> &[u64] {
        self.summary.unit(unit)
    }

    /// Ends a round. Either all its units are durable, or their content is unknown. In the second
    /// case no later round begins, and durable marks stay.
    pub fn finish_round(&mut self, round: Round, durable: bool) {
        self.summary.finish(&round, durable);
    }

    /// The last round that is durable.
    #[must_use]
    pub const fn durable_round(&self) -> u64 {
        self.summary.durable
    }

    /// Units written since the tree was made.
    #[must_use]
    pub const fn persists(&self) -> u64 {
        self.persists
    }

    /// Units on media.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.summary.units()
    }

    /// Bytes of memory that it takes. It does not grow with what is cached or dirty.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let leaves = self.leaves.capacity() * size_of::<u32>();
        size_of::<Self>()
            + leaves
            + self.dirty.memory_bytes()
            + self.summary.memory_bytes()
            + self.adjuster.memory_bytes()
    }
}

#[cfg(test)]
mod tests;
