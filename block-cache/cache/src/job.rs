//! A part of a request: the bytes of a volume that it is about, and their buffer.

use std::ops::Range;

use forebay_block::Buf;
use forebay_policy::Span;

use crate::geometry::{Extent, Geometry, Piece};

/// A part of a request: an extent of a region, or the piece of that which lies in a block.
#[derive(Clone, Debug)]
pub(crate) struct Job<P> {
    /// The bytes of the volume.
    pub(crate) part: P,
    /// Their buffer.
    pub(crate) buf: Buf,
    /// Whether the write is durable before its answer: FUA, or every write under `sync`.
    pub(crate) durable: bool,
    /// Whether blocks that the cache does not hold are bypassed: the request belongs to a
    /// sequential stream, or the backing device is cheaper.
    pub(crate) bypass: bool,
}

impl Job<Extent> {
    /// Returns the job of a run of these bytes within the region.
    pub(crate) fn cut(&self, run: Range<u32>) -> Self {
        let at = (run.start - self.part.start) as usize;
        Self {
            part: Extent {
                start: run.start,
                end: run.end,
                ..self.part
            },
            buf: self.buf.slice(at..at + run.len()),
            ..*self
        }
    }

    /// Returns the job of the piece that lies in a block of the region.
    pub(crate) fn piece(&self, geometry: Geometry, span: Span) -> Job<Piece> {
        let part = geometry.piece(&self.part, span);
        let at = (geometry.block_start(span) + part.start - self.part.start) as usize;
        Job {
            buf: self.buf.slice(at..at + part.len()),
            part,
            durable: self.durable,
            bypass: self.bypass,
        }
    }
}
