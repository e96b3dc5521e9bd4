//! The MapperX paper's Algorithm 1: once a period, one parent loses its children or one leaf gets some.
//!
//! What the paper leaves open is decided in its favour: of leaves with equally few persists a dirty one is
//! refined before a clean one (nothing is gained by refining what is clean), and of those the one nearest to
//! the root; of parents with equally many, the one farthest from it goes.

use super::bits::Bits;
use super::shape::Shape;
use super::summary::Summary;

/// The adaptive tree: which nodes have children in it.
#[derive(Debug)]
pub(super) struct Paper {
    inner: Bits,
    /// Nodes that a persist was for in this period, one entry each.
    persisted: Vec<u32>,
    writes: u64,
    persists: u64,
}

impl Paper {
    pub(super) fn new(shape: Shape) -> Self {
        Self {
            inner: Bits::new(shape.nodes()),
            persisted: Vec::new(),
            writes: 0,
            persists: 0,
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.inner.memory_bytes() + self.persisted.capacity() * size_of::<u32>()
    }

    /// Takes over what was found on media: the highest bits that are set are leaves.
    pub(super) fn restore(&mut self, shape: Shape, summary: &mut Summary) {
        let found: Vec<u32> = summary.media.ones().collect();
        for node in found.into_iter().filter(|&node| node < shape.nodes()) {
            if shape
                .path(node)
                .skip(1)
                .any(|above| summary.wanted.get(above))
            {
                summary.wanted.clear(node);
            } else {
                for above in shape.path(node).skip(1) {
                    self.inner.set(above);
                }
            }
        }
    }

    /// The leaf of the adaptive tree that stands for a node of the complete one.
    fn leaf_over(&self, shape: Shape, node: u32) -> u32 {
        let mut path = shape.path(node);
        let leaf = path.find(|&node| node == 0 || self.inner.get(shape.parent(node)));
        leaf.unwrap_or(0)
    }

    /// A leaf of the complete tree turned dirty and nothing that is wanted covers it. Whether somebody waits
    /// for a persist.
    pub(super) fn cover(&mut self, shape: Shape, leaf: u32, waits: bool, summary: &mut Summary) {
        let over = self.leaf_over(shape, shape.node_of(leaf));
        summary.wanted.set(over);
        if waits {
            self.persisted.push(over);
        }
    }

    /// A leaf of the complete tree turned clean.
    pub(super) fn cleaned(&self, shape: Shape, leaf: u32, dirty: &Bits, summary: &mut Summary) {
        let over = self.leaf_over(shape, shape.node_of(leaf));
        summary.wanted.put(over, dirty.get(over));
    }

    /// Algorithm 1. `writes` and `persists` are totals.
    pub(super) fn adjust(
        &mut self,
        shape: Shape,
        ratio: f64,
        (writes, persists): (u64, u64),
        dirty: &Bits,
        summary: &mut Summary,
    ) {
        let (period_writes, period_persists) = (writes - self.writes, persists - self.persists);
        if period_writes == 0 {
            return;
        }
        (self.writes, self.persists) = (writes, persists);
        if period_persists as f64 / period_writes as f64 >= ratio {
            if let Some(parent) = self.busiest_parent(shape) {
                self.coarsen(shape, parent, dirty, summary);
            }
        } else if let Some(leaf) = self.quietest_leaf(shape, dirty) {
            self.refine(shape, leaf, dirty, summary);
        }
        self.persisted.clear();
    }

    fn persists_of(&self, node: u32) -> usize {
        self.persisted.iter().filter(|&&one| one == node).count()
    }

    fn busiest_parent(&self, shape: Shape) -> Option<u32> {
        let leaf = |node: u32| shape.is_leaf(node) || !self.inner.get(node);
        let parents = self.inner.ones().filter_map(|node| {
            let mut leaves = shape.children(node).filter(|&child| leaf(child)).peekable();
            leaves.peek()?;
            let persists: usize = leaves.map(|child| self.persists_of(child)).sum();
            Some((persists, node))
        });
        parents.max().map(|(_, node)| node)
    }

    fn quietest_leaf(&self, shape: Shape, dirty: &Bits) -> Option<u32> {
        let leaf = |node: u32| !shape.is_leaf(node) && !self.inner.get(node);
        let leaves = || {
            let root = leaf(0).then_some(0);
            let others = self.inner.ones().flat_map(|node| shape.children(node));
            root.into_iter().chain(others.filter(|&node| leaf(node)))
        };
        let key = |node: u32| (self.persists_of(node), !dirty.get(node), node);
        // They come row by row, so that the first one of the best kind is the best.
        let best = leaves().find(|&node| dirty.get(node) && self.persists_of(node) == 0);
        best.or_else(|| leaves().min_by_key(|&node| key(node)))
    }

    pub(super) fn refine(&mut self, shape: Shape, leaf: u32, dirty: &Bits, summary: &mut Summary) {
        self.inner.set(leaf);
        summary.wanted.clear(leaf);
        for child in shape.children(leaf) {
            summary.wanted.put(child, dirty.get(child));
        }
    }

    pub(super) fn coarsen(
        &mut self,
        shape: Shape,
        parent: u32,
        dirty: &Bits,
        summary: &mut Summary,
    ) {
        if !shape.is_leaf(parent) && self.inner.get(parent) {
            for child in shape.children(parent) {
                self.coarsen(shape, child, dirty, summary);
                summary.wanted.clear(child);
            }
            self.inner.clear(parent);
        }
        summary.wanted.put(parent, dirty.get(parent));
    }
}
