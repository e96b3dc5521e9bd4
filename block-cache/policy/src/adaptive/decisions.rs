//! Log of decisions, in order, so that a test can check that two users of this code decide the
//! same. Compiled with the feature `decisions`, which only the tests package enables.

use super::sizes::Span;

/// Something that was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A block was placed.
    Place {
        /// Volume.
        volume: u16,
        /// Region.
        region: u64,
        /// Where in the region, and its size.
        span: Span,
    },
    /// A block was chosen to go.
    Leave {
        /// Volume.
        volume: u16,
        /// Region.
        region: u64,
        /// Where in the region, and its size.
        span: Span,
    },
    /// A missed read fetches these granules of a volume.
    Fetch {
        /// Volume.
        volume: u16,
        /// The first.
        first: u64,
        /// One past the last.
        end: u64,
    },
}

#[cfg(feature = "decisions")]
mod log {
    use std::cell::RefCell;

    use super::Decision;

    thread_local! {
        static LOG: RefCell<Vec<Decision>> = const { RefCell::new(Vec::new()) };
    }

    /// Returns this thread's decisions since the last call.
    #[must_use]
    pub fn take_decisions() -> Vec<Decision> {
        LOG.take()
    }

    pub(in super::super) fn note(decision: impl FnOnce() -> Decision) {
        LOG.with_borrow_mut(|log| log.push(decision()));
    }
}

#[cfg(feature = "decisions")]
pub(super) use log::note;
#[cfg(feature = "decisions")]
pub use log::take_decisions;

#[cfg(not(feature = "decisions"))]
#[inline(always)]
pub(super) fn note(_: impl FnOnce() -> Decision) {}
