//! Coherence of the processors' caches of different hosts.

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::pmem::{Writeback, drop_lines};
use forebay_pagecache::segment;

/// Mechanism of the coherence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coherence {
    /// Hardware: one host, or a fabric with back-invalidate.
    #[default]
    Hardware,
    /// Software: lines are dropped before each load by a copy, and written back after each store.
    /// For fabrics that do not invalidate; all nodes of a pool must use it.
    Software,
}

impl Coherence {
    /// Returns the coherence of a segment.
    ///
    /// # Errors
    /// `Unsupported` on a processor that cannot drop lines.
    pub(crate) fn of_segment(self) -> Result<segment::Coherence> {
        match self {
            Self::Hardware => Ok(segment::Coherence::Hardware),
            Self::Software if drop_lines(&[]) == Writeback::None => Err(Error::new(
                ErrorKind::Unsupported,
                "coherence = \"software\": this processor has no instruction that drops a line of \
                 its cache\n\
                 help: leave it \"hardware\"",
            )),
            Self::Software => Ok(segment::Coherence::Software(|words| {
                drop_lines(words);
            })),
        }
    }
}
