//! Our way of adjusting: what to keep marked though it is clean, decided for all nodes at once by a price.
//!
//! Keeping a node marked costs what a crash then writes back in vain: the clean cached blocks beneath it, and
//! those that reads will bring in before the next round can unmark it. It saves a persist for each time that
//! something beneath it turns dirty. So a node is *held* while the persists that it saved lately, times a
//! price, are worth its clean blocks; of what is held and what is dirty, the highest nodes are marked.
//!
//! The price finds itself: each persist that a client waits for raises it, each client write lowers it, by so
//! much that it stands still when clients wait for half of the persists that the ratio allows. The other half
//! is for rounds nobody waits for, which unmark what is no longer worth it, as much as fits one unit at a time.
//! What nothing is cached beneath costs nothing to hold; so a tree begins as one mark on everything, and is
//! cut back where clean blocks come to lie.
//!
//! A leaf is judged by how often it turned dirty itself. How soon one that has not done so lately will,
//! nobody knows; the nodes above it are judged by how often that happened beneath them.

use super::bits::Bits;
use super::shape::Shape;
use super::summary::Summary;

/// Client waits for this part of the persists that the ratio allows.
const WAITED_FOR: f64 = 0.45;
/// What a persist that a client waits for adds to the logarithm of the price.
const STEP: f64 = 0.3;
/// Blocks that one saved persist of the window is worth, at first, at least and at most.
const PRICE: (f64, f64, f64) = (16.0, 1.0 / 64.0, 1e6);
/// The window in which persists count, in persists that the ratio allows.
const WINDOW_PERSISTS: f64 = 4.0;
/// A leaf that turned dirty less than this in the window tells nothing by itself.
const COLD: f32 = 0.25;
/// Less than this in the window is nothing.
const NOTHING: f32 = 1.0 / 64.0;

#[derive(Debug)]
pub(super) struct Priced {
    /// Blocks that one saved persist of the window is worth.
    price: f64,
    /// By node, how often a leaf beneath turned dirty that had not done so lately; of a leaf, how often it
    /// did. Fades by the window.
    turned: Vec<f32>,
    /// By node, clean blocks that came to lie beneath. Fades by the window.
    arrived: Vec<f32>,
    /// By node, clean cached blocks beneath leaves that are not dirty, as of the last decision.
    clean: Vec<u32>,
    /// What was wanted before the decision under way.
    before: Bits,
    writes: u64,
    /// Client writes at the last decision.
    decided: u64,
}

impl Priced {
    /// `bits` are as many as a summary has.
    pub(super) fn new(shape: Shape, bits: Bits) -> Self {
        let nodes = shape.nodes() as usize;
        Self {
            price: PRICE.0,
            turned: vec![0.0; nodes],
            arrived: vec![0.0; nodes],
            clean: vec![0; nodes],
            before: bits,
            writes: 0,
            decided: 0,
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let nodes = self.turned.capacity() + self.arrived.capacity() + self.clean.capacity();
        nodes * 4 + self.before.memory_bytes()
    }

    /// Clean blocks came to lie in a leaf.
    pub(super) fn arrived(&mut self, shape: Shape, leaf: u32, blocks: u32) {
        for node in shape.path(shape.node_of(leaf)) {
            self.arrived[node as usize] += blocks as f32;
        }
    }

    /// A leaf turned dirty.
    pub(super) fn turned(&mut self, shape: Shape, leaf: u32) {
        let node = shape.node_of(leaf);
        let cold = self.turned[node as usize] < COLD;
        self.turned[node as usize] += 1.0;
        if cold {
            for above in shape.path(node).skip(1) {
                self.turned[above as usize] += 1.0;
            }
        }
    }

    /// What holding a node is worth, and what it costs, blocks.
    fn worth(&self, node: u32) -> (f64, f64) {
        let node = node as usize;
        let cost = f64::from(self.clean[node]) + f64::from(self.arrived[node]);
        (self.price * f64::from(self.turned[node]), cost)
    }

    /// A leaf turned dirty and nothing that is wanted covers it: the highest node above it that is worth
    /// holding is to be marked. Whether somebody waits for a persist.
    pub(super) fn cover(&mut self, shape: Shape, leaf: u32, waits: bool, summary: &mut Summary) {
        if waits {
            self.price = (self.price * STEP.exp()).min(PRICE.2);
        }
        let node = shape.node_of(leaf);
        let held = shape.path(node).filter(|&node| {
            let (worth, cost) = self.worth(node);
            worth >= cost
        });
        summary.wanted.set(held.last().unwrap_or(node));
    }

    /// Time passes: `writes` is a total.
    pub(super) fn fade(&mut self, ratio: f64, writes: u64) {
        let passed = (writes - self.writes) as f64;
        self.writes = writes;
        let price = self.price * (-STEP * WAITED_FOR * ratio * passed).exp();
        self.price = price.max(PRICE.1);
    }

    /// Decides what is wanted. `cached` is by leaf.
    pub(super) fn decide(
        &mut self,
        shape: Shape,
        ratio: f64,
        cached: impl Fn(u32) -> u32,
        dirty: &Bits,
        summary: &mut Summary,
    ) {
        let passed = (self.writes - self.decided) as f64;
        self.decided = self.writes;
        let left = (-passed * ratio / WINDOW_PERSISTS).exp() as f32;
        for value in self.turned.iter_mut().chain(&mut self.arrived) {
            *value *= left;
            if *value < NOTHING {
                *value = 0.0;
            }
        }
        for node in (0..shape.nodes()).rev() {
            self.clean[node as usize] = if !shape.is_leaf(node) {
                let children = shape.children(node);
                children.map(|child| self.clean[child as usize]).sum()
            } else if dirty.get(node) {
                0
            } else {
                cached(node - shape.first_leaf())
            };
        }
        let wanted = summary.wanted.words_mut();
        self.before.words_mut().copy_from_slice(wanted);
        wanted.fill(0);
        if self.visit(shape, 0, false, dirty, summary) {
            summary.wanted.set(0);
        }
    }

    /// Whether all beneath a node is to be marked; if not, marks what is, as high as it can.
    fn visit(
        &self,
        shape: Shape,
        node: u32,
        marked: bool,
        dirty: &Bits,
        summary: &mut Summary,
    ) -> bool {
        let marked = marked || self.before.get(node);
        let (worth, cost) = self.worth(node);
        // What costs nothing stays as it is: changing it would be a write for nothing.
        let free = cost < 0.5 && (marked || worth > 0.0);
        if free || (cost >= 0.5 && worth >= cost) {
            return true;
        }
        if shape.is_leaf(node) {
            return dirty.get(node);
        }
        let mut full = true;
        let children = shape.children(node);
        let mut held = 0_u32;
        for (nth, child) in children.clone().enumerate() {
            let all = self.visit(shape, child, marked, dirty, summary);
            held |= u32::from(all) << nth;
            full &= all;
        }
        if !full {
            for (nth, child) in children.enumerate() {
                if held >> nth & 1 == 1 {
                    summary.wanted.set(child);
                }
            }
        }
        full
    }
}
