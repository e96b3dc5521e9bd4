//! The MapperX paper's Algorithm 1: once a period, one parent loses its children or one leaf gets
//! some.
//!
//! The paper leaves some choices open. They are made in its favour. Of leaves with equally few
//! persists, a dirty one is refined before a clean one, since refining a clean leaf gains nothing.
//! Of those, the leaf nearest to the root is refined. Of parents with equally many persists, the
//! farthest from the root goes.

use crate::tree::{Adjust, Bits, Nodes, Shape, Totals};

/// The adaptive tree: which nodes have children in it.
#[derive(Debug)]
pub struct Algorithm1 {
    inner: Bits,
    /// Nodes that a persist was for in this period, one entry each.
    persisted: Vec<u32>,
    /// Totals at the end of the last period.
    before: Totals,
}

impl Algorithm1 {
    /// An adaptive tree that is a root alone.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self {
            inner: Bits::new(shape.nodes()),
            persisted: Vec::new(),
            before: Totals {
                writes: 0,
                persists: 0,
            },
        }
    }

    /// The leaf of the adaptive tree that stands for a node of the complete one.
    fn leaf_over(&self, shape: Shape, node: u32) -> u32 {
        let mut path = shape.path(node);
        let leaf = path.find(|&node| node == 0 || self.inner.get(shape.parent(node)));
        leaf.unwrap_or(0)
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

    fn refine(&mut self, nodes: &mut Nodes<'_>, leaf: u32) {
        self.inner.set(leaf);
        nodes.wanted.clear(leaf);
        for child in nodes.shape.children(leaf) {
            nodes.wanted.put(child, nodes.dirty.get(child));
        }
    }

    fn coarsen(&mut self, nodes: &mut Nodes<'_>, parent: u32) {
        if !nodes.shape.is_leaf(parent) && self.inner.get(parent) {
            for child in nodes.shape.children(parent) {
                self.coarsen(nodes, child);
                nodes.wanted.clear(child);
            }
            self.inner.clear(parent);
        }
        nodes.wanted.put(parent, nodes.dirty.get(parent));
    }
}

impl Adjust for Algorithm1 {
    /// The highest nodes that are marked are leaves of the adaptive tree.
    fn restore(&mut self, nodes: Nodes<'_>) {
        let Nodes { shape, wanted, .. } = nodes;
        let found: Vec<u32> = wanted.ones().collect();
        for node in found.into_iter().filter(|&node| node < shape.nodes()) {
            if shape.path(node).skip(1).any(|above| wanted.get(above)) {
                wanted.clear(node);
            } else {
                for above in shape.path(node).skip(1) {
                    self.inner.set(above);
                }
            }
        }
    }

    fn cover(&mut self, nodes: Nodes<'_>, leaf: u32, waits: bool) {
        let over = self.leaf_over(nodes.shape, nodes.shape.node_of(leaf));
        nodes.wanted.set(over);
        if waits {
            self.persisted.push(over);
        }
    }

    fn turned_clean(&mut self, nodes: Nodes<'_>, leaf: u32) {
        let over = self.leaf_over(nodes.shape, nodes.shape.node_of(leaf));
        nodes.wanted.put(over, nodes.dirty.get(over));
    }

    fn adjust(&mut self, mut nodes: Nodes<'_>, totals: Totals, _can_write: bool) {
        let writes = totals.writes - self.before.writes;
        let persists = totals.persists - self.before.persists;
        if writes == 0 {
            return;
        }
        self.before = totals;
        if persists as f64 / writes as f64 >= nodes.ratio {
            if let Some(parent) = self.busiest_parent(nodes.shape) {
                self.coarsen(&mut nodes, parent);
            }
        } else if let Some(leaf) = self.quietest_leaf(nodes.shape, nodes.dirty) {
            self.refine(&mut nodes, leaf);
        }
        self.persisted.clear();
    }

    fn memory_bytes(&self) -> usize {
        self.inner.memory_bytes() + self.persisted.capacity() * size_of::<u32>()
    }
}
