//! The choice of the nodes that media marks.

use std::fmt;

use super::bits::Bits;
use super::shape::Shape;

/// The nodes of a tree, as an adjuster sees them.
#[derive(Debug)]
pub struct Nodes<'a> {
    /// Shape of the tree.
    pub shape: Shape,
    /// Unit writes that the tree may cost for each client write.
    pub ratio: f64,
    /// The complete tree: a node is set if any block beneath it is dirty.
    pub dirty: &'a Bits,
    /// Nodes that media is to mark. They cover every dirty leaf before and after each call.
    pub wanted: &'a mut Bits,
}

/// Totals since the tree was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Writes of clients.
    pub writes: u64,
    /// Unit writes of everything that shares the ratio.
    pub persists: u64,
}

/// Chooses how coarse the marks on media are.
///
/// The tree calls it when leaves turn dirty or clean, and once a period. It changes
/// [`Nodes::wanted`]. The order in which media follows is the tree's.
pub trait Adjust: fmt::Debug {
    /// Takes over the nodes that media marks at a load: they are wanted.
    fn restore(&mut self, nodes: Nodes<'_>) {
        _ = nodes;
    }

    /// Notes that a clean leaf turned dirty.
    fn turned_dirty(&mut self, shape: Shape, leaf: u32) {
        _ = (shape, leaf);
    }

    /// Covers a dirty leaf that no wanted node covers. `waits` says whether a client waits for it.
    fn cover(&mut self, nodes: Nodes<'_>, leaf: u32, waits: bool);

    /// Notes that a dirty leaf turned clean.
    fn turned_clean(&mut self, nodes: Nodes<'_>, leaf: u32) {
        _ = (nodes, leaf);
    }

    /// Notes that so many blocks of a leaf are cached from now on. `clean` says whether the leaf
    /// is.
    fn place(&mut self, shape: Shape, leaf: u32, blocks: u32, clean: bool) {
        _ = (shape, leaf, blocks, clean);
    }

    /// Notes that so many blocks of a leaf are not cached any more.
    ///
    /// # Panics
    /// May panic if more blocks are removed than were placed.
    fn remove(&mut self, shape: Shape, leaf: u32, blocks: u32) {
        _ = (shape, leaf, blocks);
    }

    /// Adjusts the wanted nodes at the end of a period. `can_write` says whether the ratio leaves
    /// room for a write that no client waits for.
    fn adjust(&mut self, nodes: Nodes<'_>, totals: Totals, can_write: bool);

    /// Bytes of memory that the adjuster holds.
    fn memory_bytes(&self) -> usize;
}
