//! What keeps the processors' caches of different hosts in step.

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::pmem::{Writeback, drop_lines};
use forebay_pagecache::segment;

/// Who does it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coherence {
    /// The hardware: one host, or a fabric with back-invalidate.
    #[default]
    Hardware,
    /// Each copy: lines are dropped before they are loaded, and written back after they were stored. For fabrics that do
    /// not invalidate; all nodes of a pool are to do so.
    Software,
}

impl Coherence {
    /// For a segment.
    ///
    /// # Errors
    /// `Unsupported` on a processor that cannot drop lines.
    pub(crate) fn of_segment(self) -> Result<segment::Coherence> {
        match self {
            Self::Hardware => Ok(segment::Coherence::Hardware),
            Self::Software if drop_lines(&[]) == Writeback::None => Err(Error::new(
                ErrorKind::Unsupported,
                "coherence = \"software\": this processor has no instruction that drops a line of its cache: leave it \"hardware\"",
            )),
            Self::Software => Ok(segment::Coherence::Software(|words| {
                drop_lines(words);
            })),
        }
    }
}
