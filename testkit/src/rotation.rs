//! The part of the proof that one run takes: new random lives, and a slice of each sweep.
//!
//! The gate sets `FOREBAY_ROTATION` to a number that derives from the commit id. Gates of two
//! commits therefore take different random lives and, two times in three, different slices. Ten
//! gates all miss a given slice with a probability of 1.7%, and any of the three with 5%. The
//! nightly run sets the variable to `all`, which takes every slice. Without it the number is 0.
//!
//! `FOREBAY_SEED` and `FOREBAY_SEEDS` choose the random lives directly.

use std::fmt;
use std::ops::Range;

/// Number of slices of a sweep. Rotations of so many consecutive numbers cover the sweep.
pub const SLICES: u64 = 3;

/// First seed of rotation 0. The nightly run counts up from one million and stays below.
const FIRST_SEED: u64 = 1 << 32;

/// Distance between the first seeds of two rotations: more than any family of lives takes.
const SEEDS_APART: u64 = 10_000;

/// The part of the proof that one run takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// Every slice of every sweep.
    Whole,
    /// One slice of every sweep, and the seeds of this number.
    Number(u32),
}

impl Rotation {
    /// Returns the rotation that `FOREBAY_ROTATION` names.
    ///
    /// # Panics
    /// If the variable is neither a number below 2³² nor `all`.
    #[must_use]
    pub fn current() -> Self {
        match std::env::var("FOREBAY_ROTATION") {
            Err(_) => Self::Number(0),
            Ok(text) => Self::parse(&text).unwrap_or_else(|| {
                panic!(
                    "FOREBAY_ROTATION={text:?} is not a rotation\n\
                     help: set it to a number below 4294967296, or to all"
                )
            }),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "all" => Some(Self::Whole),
            number => number.parse().ok().map(Self::Number),
        }
    }

    /// Whether this run takes the item at `index` of a sweep.
    #[must_use]
    pub fn takes(self, index: u64) -> bool {
        match self {
            Self::Whole => true,
            Self::Number(number) => index % SLICES == u64::from(number) % SLICES,
        }
    }

    /// Returns the seeds of a family of random lives: `gate` new ones, or the first `whole` ones.
    #[must_use]
    pub fn lives(self, gate: u64, whole: u64) -> Range<u64> {
        debug_assert!(gate <= SEEDS_APART, "the seeds of two rotations overlap");
        match self {
            Self::Whole => 0..whole,
            Self::Number(number) => {
                let first = FIRST_SEED + u64::from(number) * SEEDS_APART;
                first..first + gate
            }
        }
    }
}

/// Number of random lives of one family.
#[derive(Clone, Copy, Debug)]
pub struct Lives {
    /// Seeds that every run takes: each finds a fault that few seeds find.
    pub pinned: &'static [u64],
    /// Number of new seeds in the gate.
    pub gate: u64,
    /// Number in the nightly run of all tests.
    pub whole: u64,
    /// The family takes one in so many of the seeds that `FOREBAY_SEEDS` asks for.
    pub share: u64,
}

impl Lives {
    /// Returns the seeds that a run of `rotation` takes: the pinned ones, then the others.
    #[must_use]
    pub fn of(self, rotation: Rotation) -> Vec<u64> {
        let others = rotation.lives(self.gate, self.whole);
        self.pinned.iter().copied().chain(others).collect()
    }

    /// Returns the seeds that this run takes.
    ///
    /// # Panics
    /// If `FOREBAY_ROTATION`, `FOREBAY_SEED` or `FOREBAY_SEEDS` is malformed.
    #[must_use]
    pub fn seeds(self) -> Vec<u64> {
        let (first, count) = (variable("FOREBAY_SEED"), variable("FOREBAY_SEEDS"));
        self.choose(Rotation::current(), first, count)
    }

    fn choose(self, rotation: Rotation, first: Option<u64>, count: Option<u64>) -> Vec<u64> {
        let count = match (first, count) {
            (None, None) => return self.of(rotation),
            // A seed alone replays one life.
            (Some(_), None) => 1,
            (_, Some(count)) => count.div_ceil(self.share),
        };
        let first = first.unwrap_or_else(|| rotation.lives(self.gate, self.whole).start);
        (first..first + count).collect()
    }
}

/// Returns the number that an environment variable holds.
///
/// # Panics
/// If it holds anything else.
#[must_use]
pub fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text:?} is not a number")))
}

/// Prints a count for programs: one line `ROW {json}`, if `FOREBAY_ROWS` is set.
///
/// `cargo xtask nightly` adds the lines up.
pub fn print_row(check: &str, seeds: u64, crashes: u64) {
    if std::env::var_os("FOREBAY_ROWS").is_some() {
        eprintln!(r#"ROW {{"check": "{check}", "seeds": {seeds}, "crashes": {crashes}}}"#);
    }
}

/// Checks that the gate finds a planted fault in each of ten consecutive rotations.
///
/// `find` returns the life of one rotation that finds the fault.
///
/// # Panics
/// If a rotation has no such life.
pub fn assert_found_by_each_rotation<L: fmt::Debug>(
    fault: &dyn fmt::Debug,
    find: impl Fn(Rotation) -> Option<L>,
) {
    let mut missed = Vec::new();
    for number in 0..10 {
        match find(Rotation::Number(number)) {
            Some(life) => eprintln!("{fault:?}, rotation {number}: found by {life:?}"),
            None => missed.push(number),
        }
    }
    assert!(
        missed.is_empty(),
        "{fault:?} is not found by the rotations {missed:?}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_rotations_cover_a_sweep_once() {
        for first in [0, 7, u32::MAX - 2] {
            for index in 0..40 {
                let takes = |number: &u32| Rotation::Number(*number).takes(index);
                let rotations = (first..=first + 2).filter(takes).count();
                assert_eq!(rotations, 1, "item {index} from rotation {first} on");
            }
        }
        assert!((0..40).all(|index| Rotation::Whole.takes(index)));
    }

    #[test]
    fn rotations_share_no_seeds() {
        let lives = |number| Rotation::Number(number).lives(500, 5000);
        assert_eq!(lives(3).end - lives(3).start, 500);
        assert!(lives(3).end <= lives(4).start);
        assert!(lives(u32::MAX).end > lives(u32::MAX).start);
        assert_eq!(Rotation::Whole.lives(500, 5000), 0..5000);
    }

    #[test]
    fn variables_choose_seeds() {
        let lives = Lives {
            pinned: &[77],
            gate: 2,
            whole: 3,
            share: 4,
        };
        let rotation = Rotation::Number(0);
        let new = lives.choose(rotation, None, None);
        assert_eq!(new, [77, FIRST_SEED, FIRST_SEED + 1]);
        assert_eq!(lives.choose(Rotation::Whole, None, None), [77, 0, 1, 2]);
        assert_eq!(lives.choose(rotation, Some(9), None), [9]);
        assert_eq!(lives.choose(rotation, Some(9), Some(5)), [9, 10]);
        assert_eq!(lives.choose(rotation, Some(9), Some(1)), [9]);
        assert_eq!(lives.choose(Rotation::Whole, None, Some(8)), [0, 1]);
    }

    #[test]
    fn a_rotation_is_a_number_or_all() {
        assert_eq!(Rotation::parse("all"), Some(Rotation::Whole));
        assert_eq!(Rotation::parse("17"), Some(Rotation::Number(17)));
        for text in ["", "-1", "4294967296", "nightly"] {
            assert_eq!(Rotation::parse(text), None, "{text:?}");
        }
    }
}
