//! Seeded draws.

use std::cell::Cell;

use crate::rt::split_mix;

/// A seeded generator. Everything random in a simulated run comes from one of these, so that a seed
/// replays the run exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: Cell<u64>,
}

impl Rng {
    /// A generator that starts at `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            state: Cell::new(seed),
        }
    }

    /// A generator for a part of a run: the same seed and label give the same draws, whatever else
    /// is drawn elsewhere.
    #[must_use]
    pub fn labelled(seed: u64, label: u64) -> Self {
        let mixer = Self::new(seed ^ label.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self::new(mixer.draw())
    }

    /// The next 64 bits.
    #[must_use]
    pub fn draw(&self) -> u64 {
        split_mix(&self.state)
    }

    /// A number below `bound`.
    ///
    /// # Panics
    /// If `bound` is zero.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        self.draw() % bound
    }

    /// An index into something of `len` elements.
    ///
    /// # Panics
    /// If `len` is zero.
    #[must_use]
    pub fn index(&self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// True `part` times in `whole`.
    #[must_use]
    pub fn chance(&self, part: u64, whole: u64) -> bool {
        self.below(whole) < part
    }
}
