//! Mapping between nodes of the tree and blocks.
//!
//! Nodes are numbered breadth first from the root, 0. So parents and children are found by
//! arithmetic, and the whole tree is one flat array of bits. *Levels* are counted below the root: a
//! tree of degree `d` with `m` levels has `d^m` leaves. The MapperX paper counts differently in two
//! places. Its figure of the flat array counts rows with the root: 4 rows of degree 2 are 8 leaves,
//! 3 levels here. Its evaluation counts without the root: `max_level = 7` of degree 4 are 16,384
//! leaves, 7 levels here.

use std::ops::Range;

use forebay_block::{Error, ErrorKind, Result};

/// Degree that the paper takes.
pub const DEFAULT_DEGREE: u32 = 4;
/// Levels below the root that the paper takes.
pub const DEFAULT_LEVELS: u8 = 7;
/// Nodes that a tree has at most: 2 MiB of bits.
const MAX_NODES: u64 = 1 << 24;

/// Degree, levels, and how many blocks a leaf stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    degree_shift: u8,
    levels: u8,
    leaf_shift: u8,
}

impl Shape {
    /// Returns a tree over `blocks` blocks. Each leaf stands for as few blocks as `levels` allows,
    /// a power of two. A tree over few blocks has fewer levels.
    ///
    /// # Errors
    /// `InvalidInput` for a degree that is not 2, 4, 8 or 16, and for zero levels. Also for more
    /// than 2^24 nodes, and for more than 2^56 blocks.
    pub fn covering(blocks: u64, degree: u32, levels: u8) -> Result<Self> {
        let bad = |what: String| Err(Error::new(ErrorKind::InvalidInput, what));
        if !matches!(degree, 2 | 4 | 8 | 16) {
            return bad(format!(
                "a tree of degree {degree} is not supported\n\
                 help: choose 2, 4, 8 or 16 (the default is {DEFAULT_DEGREE})"
            ));
        }
        if blocks > 1 << 56 {
            return bad(format!(
                "a tree over {blocks} blocks is not supported: the limit is 2^56"
            ));
        }
        let degree_shift = degree.ilog2() as u8;
        let bits = u64::from(degree_shift) * u64::from(levels);
        if levels == 0 || bits >= 24 || nodes(degree_shift, levels) > MAX_NODES {
            return bad(format!(
                "a tree of degree {degree} with {levels} levels is not supported\n\
                 help: choose from one level to {MAX_NODES} nodes (the default is {DEFAULT_LEVELS})"
            ));
        }
        let mut shape = Self {
            degree_shift,
            levels,
            leaf_shift: 0,
        };
        while shape.levels > 1 && u64::from(shape.leaves()) >> degree_shift >= blocks {
            shape.levels -= 1;
        }
        while u64::from(shape.leaves()) << shape.leaf_shift < blocks {
            shape.leaf_shift += 1;
        }
        Ok(shape)
    }

    /// Children of a node.
    #[must_use]
    pub const fn degree(&self) -> u32 {
        1 << self.degree_shift
    }

    /// Levels below the root.
    #[must_use]
    pub const fn levels(&self) -> u8 {
        self.levels
    }

    /// Blocks that a leaf stands for, as a power of two.
    #[must_use]
    pub const fn leaf_shift(&self) -> u8 {
        self.leaf_shift
    }

    pub(super) const fn degree_shift(&self) -> u8 {
        self.degree_shift
    }

    /// Nodes of the whole tree.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        nodes(self.degree_shift, self.levels) as u32
    }

    /// Leaves of the whole tree.
    #[must_use]
    pub const fn leaves(&self) -> u32 {
        1 << (self.degree_shift as u32 * self.levels as u32)
    }

    /// The leaf that a block belongs to, counted from the first.
    ///
    /// # Panics
    /// If the block lies beyond what the tree covers.
    #[must_use]
    pub fn leaf_of(&self, block: u64) -> u32 {
        let leaf = block >> self.leaf_shift;
        assert!(
            leaf < u64::from(self.leaves()),
            "block {block} is beyond the tree"
        );
        leaf as u32
    }

    /// The leaves that these blocks touch.
    pub(super) fn leaves_of(&self, blocks: &Range<u64>) -> Range<u32> {
        if blocks.is_empty() {
            return 0..0;
        }
        self.leaf_of(blocks.start)..self.leaf_of(blocks.end - 1) + 1
    }

    /// How many of these blocks lie in a leaf that they touch.
    pub(super) fn share(&self, blocks: &Range<u64>, leaf: u32) -> u32 {
        let first = u64::from(leaf) << self.leaf_shift;
        let end = first + (1 << self.leaf_shift);
        u32::try_from(blocks.end.min(end) - blocks.start.max(first)).unwrap_or(u32::MAX)
    }

    /// The number of a leaf's node.
    #[must_use]
    pub fn node_of(&self, leaf: u32) -> u32 {
        self.first_leaf() + leaf
    }

    /// The node of the first leaf; those before it are inner nodes.
    pub(super) fn first_leaf(&self) -> u32 {
        nodes(self.degree_shift, self.levels - 1) as u32
    }

    /// Whether a node is a leaf.
    #[must_use]
    pub fn is_leaf(&self, node: u32) -> bool {
        node >= self.first_leaf()
    }

    /// The parent of a node that is not the root.
    #[must_use]
    pub const fn parent(&self, node: u32) -> u32 {
        (node - 1) >> self.degree_shift
    }

    /// The children of a node that is not a leaf.
    #[must_use]
    pub const fn children(&self, node: u32) -> Range<u32> {
        let first = (node << self.degree_shift) + 1;
        first..first + self.degree()
    }

    /// A node and all above it, up to the root.
    pub fn path(self, node: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(node), move |&node| {
            (node > 0).then(|| self.parent(node))
        })
    }
}

const fn nodes(degree_shift: u8, levels: u8) -> u64 {
    // d^0 + ... + d^m = (d^(m + 1) - 1) / (d - 1)
    let all = 1_u64 << (degree_shift as u32 * (levels as u32 + 1));
    (all - 1) / ((1 << degree_shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_trees_have_the_papers_numbers() {
        let figure = Shape::covering(8, 2, 3).expect("valid");
        assert_eq!((figure.nodes(), figure.leaves()), (15, 8));
        // 1 TB in blocks of 64, 128 and 256 KiB: 1024, 512 and 256 blocks a leaf.
        for (shift, blocks) in [(16, 1024), (17, 512), (18, 256)] {
            let shape = Shape::covering((1 << 40) >> shift, DEFAULT_DEGREE, DEFAULT_LEVELS);
            let shape = shape.expect("valid");
            assert_eq!((shape.leaves(), 1 << shape.leaf_shift()), (16384, blocks));
            assert_eq!(shape.nodes(), 21_845);
        }
    }

    #[test]
    fn parents_children_and_leaves_agree() {
        for degree in [2, 4, 8, 16] {
            let shape = Shape::covering(1000, degree, 3).expect("valid");
            for node in 0..shape.first_leaf() {
                for child in shape.children(node) {
                    assert_eq!(shape.parent(child), node);
                }
            }
            let last = shape.node_of(shape.leaves() - 1);
            assert_eq!(last + 1, shape.nodes());
            assert_eq!(shape.path(last).count(), 4);
            assert_eq!(shape.path(last).last(), Some(0));
            assert!(shape.is_leaf(shape.first_leaf()) && !shape.is_leaf(shape.first_leaf() - 1));
        }
    }

    #[test]
    fn a_small_volume_has_fewer_levels_and_a_large_one_larger_leaves() {
        let small = Shape::covering(60, 4, 7).expect("valid");
        assert_eq!((small.levels(), small.leaf_shift()), (3, 0));
        let one = Shape::covering(1, 4, 7).expect("valid");
        assert_eq!(one.levels(), 1);
        let large = Shape::covering(100_000, 4, 7).expect("valid");
        assert_eq!((large.levels(), large.leaf_shift()), (7, 3));
        assert_eq!(large.leaves_of(&(7..17)), 0..3);
        assert_eq!([0, 1, 2].map(|leaf| large.share(&(7..17), leaf)), [1, 8, 1]);
    }

    #[test]
    fn invalid_tree_shapes_are_refused() {
        assert!(Shape::covering(1, 3, 7).is_err());
        assert!(Shape::covering(1, 4, 0).is_err());
        assert!(Shape::covering(1, 4, 12).is_err());
        assert!(Shape::covering(1 << 57, 4, 7).is_err());
    }
}
