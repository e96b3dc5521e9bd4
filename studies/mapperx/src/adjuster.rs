//! An adjuster that is chosen when the program runs.

use super::algorithm1::Algorithm1;
use crate::tree::{Adjust, Nodes, Priced, Shape, Totals};

/// An algorithm that adjusts a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjustment {
    /// The paper's: see [`Algorithm1`].
    Paper,
    /// Forebay's: see [`Priced`].
    Priced,
}

impl Adjustment {
    /// The algorithm at work on a tree of this shape.
    #[must_use]
    pub fn adjuster(self, shape: Shape) -> Adjuster {
        match self {
            Self::Paper => Adjuster::Paper(Algorithm1::new(shape)),
            Self::Priced => Adjuster::Priced(Priced::new(shape)),
        }
    }
}

/// An [`Adjustment`] at work.
#[derive(Debug)]
pub enum Adjuster {
    /// See [`Adjustment::Paper`].
    Paper(Algorithm1),
    /// See [`Adjustment::Priced`].
    Priced(Priced),
}

impl Adjuster {
    fn get(&self) -> &dyn Adjust {
        match self {
            Self::Paper(adjuster) => adjuster,
            Self::Priced(adjuster) => adjuster,
        }
    }

    fn get_mut(&mut self) -> &mut dyn Adjust {
        match self {
            Self::Paper(adjuster) => adjuster,
            Self::Priced(adjuster) => adjuster,
        }
    }
}

impl Adjust for Adjuster {
    fn restore(&mut self, nodes: Nodes<'_>) {
        self.get_mut().restore(nodes);
    }

    fn turned_dirty(&mut self, shape: Shape, leaf: u32) {
        self.get_mut().turned_dirty(shape, leaf);
    }

    fn cover(&mut self, nodes: Nodes<'_>, leaf: u32, waits: bool) {
        self.get_mut().cover(nodes, leaf, waits);
    }

    fn turned_clean(&mut self, nodes: Nodes<'_>, leaf: u32) {
        self.get_mut().turned_clean(nodes, leaf);
    }

    fn place(&mut self, shape: Shape, leaf: u32, blocks: u32, clean: bool) {
        self.get_mut().place(shape, leaf, blocks, clean);
    }

    fn remove(&mut self, shape: Shape, leaf: u32, blocks: u32) {
        self.get_mut().remove(shape, leaf, blocks);
    }

    fn adjust(&mut self, nodes: Nodes<'_>, totals: Totals, can_write: bool) {
        self.get_mut().adjust(nodes, totals, can_write);
    }

    fn memory_bytes(&self) -> usize {
        self.get().memory_bytes()
    }
}
