//! Forebay's adjuster: a price decides for all leaves at once which ones stay marked while they are
//! clean.
//!
//! A marked clean leaf has a cost: after a crash its clean cached blocks are written back in vain.
//! So are those that reads will fill before the next round can unmark it. The mark saves a persist
//! each time that the leaf turns dirty. So a leaf is *held* while its expected saved persists,
//! times a price, are worth its clean blocks. Of the held and dirty leaves, the highest nodes are
//! marked.
//!
//! The price adjusts itself. Each persist that a client waits for raises it, and each client write
//! lowers it. It stands still when clients wait for most of the persists that the ratio allows. A
//! round with waiting clients also writes all other pending changes of its units; the rest is for
//! rounds without.
//!
//! Expectations of a leaf are learned from the whole tree. A node's recent count of leaves that
//! turned dirty is shared among its children. The shares follow their own counts, plus a half for
//! each, and so on down. A leaf that is written often has its own count. A leaf that was never
//! written has a share of its neighbourhood's count. New clean blocks are predicted in the same
//! way. A leaf without cached blocks costs next to nothing to hold. So a tree begins as one mark on
//! everything, and is cut back where clean blocks are placed.

use super::adjust::{Adjust, Nodes, Totals};
use super::bits::Bits;
use super::shape::Shape;

/// Clients wait for this part of the persists that the ratio allows.
const WAITED_FOR: f64 = 0.8;
/// Amount by which a persist that a client waits for raises the logarithm of the price.
const STEP: f64 = 1.0;
/// The price at first, at least and at most: clean blocks for one persist saved in the window.
const PRICE: (f64, f64, f64) = (16.0, 1e-3, 1e6);
/// The window in which things count, in persists that the ratio allows.
const WINDOW_PERSISTS: f64 = 16.0;
/// Initial share of each child when a count is divided.
const ADVANCE: f32 = 0.5;
/// Part of the blocks arriving in a window that are in a marked leaf in vain at a time. There is
/// about one round a persist, and a block waits for half of the time between two.
const IN_VAIN: f32 = 0.5 / WINDOW_PERSISTS as f32;
/// Less than this in the window is nothing.
const NOTHING: f32 = 1.0 / 64.0;

/// Forebay's adjuster: nodes are held by a price.
#[derive(Debug)]
pub struct Priced {
    price: f64,
    /// By node, how often a leaf beneath turned dirty. Fades by the window.
    turned: Vec<f32>,
    /// By node, clean blocks that came to lie beneath. Fades by the window.
    arrived: Vec<f32>,
    /// By node, cached blocks beneath.
    cached: Vec<u32>,
    writes: u64,
    /// Client writes when what fades last did so.
    faded: u64,
}

/// Expected events beneath a node within the window.
#[derive(Clone, Copy)]
struct Expected {
    turns: f32,
    arrivals: f32,
}

impl Priced {
    /// The adjuster of a tree of this shape, in which nothing is cached.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        let nodes = shape.nodes() as usize;
        Self {
            price: PRICE.0,
            turned: vec![0.0; nodes],
            arrived: vec![0.0; nodes],
            cached: vec![0; nodes],
            writes: 0,
            faded: 0,
        }
    }

    /// A client waits for a persist.
    fn waited(&mut self) {
        self.price = (self.price * STEP.exp()).min(PRICE.2);
    }

    /// Time passes: `writes` is a total.
    fn pass(&mut self, ratio: f64, writes: u64) {
        let passed = (writes - self.writes) as f64;
        self.writes = writes;
        let price = self.price * (-STEP * WAITED_FOR * ratio * passed).exp();
        self.price = price.max(PRICE.1);
    }

    /// Decides which nodes are wanted.
    fn decide(&mut self, nodes: Nodes<'_>) {
        let Nodes {
            shape,
            ratio,
            dirty,
            wanted,
        } = nodes;
        let passed = (self.writes - self.faded) as f64;
        self.faded = self.writes;
        if passed > 0.0 {
            let left = (-passed * ratio / WINDOW_PERSISTS).exp() as f32;
            for value in self.turned.iter_mut().chain(&mut self.arrived) {
                *value *= left;
                if *value < NOTHING {
                    *value = 0.0;
                }
            }
        }
        wanted.clear_all();
        let expected = Expected {
            turns: self.turned[0],
            arrivals: self.arrived[0],
        };
        if self.visit(shape, 0, expected, dirty, wanted) {
            wanted.set(0);
        }
    }

    /// Whether all beneath a node is to be marked; if not, marks what is, as high as it can.
    fn visit(
        &self,
        shape: Shape,
        node: u32,
        expected: Expected,
        dirty: &Bits,
        wanted: &mut Bits,
    ) -> bool {
        let is_leaf = shape.is_leaf(node);
        let at = node as usize;
        // Without cached blocks and without past writes, all leaves are equal: each has the same
        // share of the expectation, so one decision holds for all.
        let is_similar = self.cached[at] == 0
            && self.turned[at] == 0.0
            && self.arrived[at] == 0.0
            && !dirty.get(node);
        if is_leaf || is_similar {
            let cost = self.cached[at] as f32 + IN_VAIN * expected.arrivals;
            let held = expected.turns > 0.0 && self.price as f32 * expected.turns >= cost;
            return held || (is_leaf && dirty.get(node));
        }
        let degree = shape.degree() as f32;
        let share = |all: f32, seen: &[f32], child: u32| {
            all * (seen[child as usize] + ADVANCE) / (seen[node as usize] + degree * ADVANCE)
        };
        let children = shape.children(node);
        let mut held = 0_u32;
        for (nth, child) in children.clone().enumerate() {
            let expected = Expected {
                turns: share(expected.turns, &self.turned, child),
                arrivals: share(expected.arrivals, &self.arrived, child),
            };
            held |= u32::from(self.visit(shape, child, expected, dirty, wanted)) << nth;
        }
        if held.count_ones() == shape.degree() {
            return true;
        }
        for (nth, child) in children.enumerate() {
            if held >> nth & 1 == 1 {
                wanted.set(child);
            }
        }
        false
    }
}

impl Adjust for Priced {
    fn turned_dirty(&mut self, shape: Shape, leaf: u32) {
        for node in shape.path(shape.node_of(leaf)) {
            self.turned[node as usize] += 1.0;
        }
    }

    fn cover(&mut self, nodes: Nodes<'_>, leaf: u32, waits: bool) {
        if waits {
            // A round must be written, and includes all other worthwhile changes.
            self.waited();
            self.decide(nodes);
        } else {
            nodes.wanted.set(nodes.shape.node_of(leaf));
        }
    }

    /// The blocks are clean unless the leaf has dirty ones. A dirty leaf is marked anyway.
    fn place(&mut self, shape: Shape, leaf: u32, blocks: u32, clean: bool) {
        for node in shape.path(shape.node_of(leaf)) {
            self.cached[node as usize] += blocks;
            if clean {
                self.arrived[node as usize] += blocks as f32;
            }
        }
    }

    fn remove(&mut self, shape: Shape, leaf: u32, blocks: u32) {
        for node in shape.path(shape.node_of(leaf)) {
            let left = self.cached[node as usize].checked_sub(blocks);
            self.cached[node as usize] = left.expect("a block is placed before it is removed");
        }
    }

    fn adjust(&mut self, nodes: Nodes<'_>, totals: Totals, can_write: bool) {
        self.pass(nodes.ratio, totals.writes);
        // Changes that cannot be written are not decided either.
        if can_write {
            self.decide(nodes);
        }
    }

    fn memory_bytes(&self) -> usize {
        let shares = self.turned.capacity() + self.arrived.capacity();
        shares * size_of::<f32>() + self.cached.capacity() * size_of::<u32>()
    }
}
