//! Fits requests of a trace to their target.

use forebay_block::{DeviceInfo, Error, ErrorKind, Result};

use crate::{Op, Request};

/// Longest request that is issued in one piece, bytes.
const LONGEST_BYTES: u64 = 4 << 20;

/// Treatment of a request past the end of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PastEnd {
    /// Takes its offset modulo the target's size. Moves one that straddles the end before it.
    Fold,
    /// Skips it.
    Skip,
    /// Ends the replay with an error.
    Refuse,
}

/// Counts of changed requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fitted {
    /// Requests past the end that were folded into the target.
    pub folded: u64,
    /// Requests past the end that were skipped.
    pub left_out: u64,
    /// Requests that were extended to whole blocks of the target.
    pub widened: u64,
    /// Requests that were split, since they are too long for one piece.
    pub split: u64,
}

impl Fitted {
    pub(super) fn sum<'a>(parts: impl Iterator<Item = &'a Self>) -> Self {
        parts.fold(Self::default(), |sum, part| Self {
            folded: sum.folded + part.folded,
            left_out: sum.left_out + part.left_out,
            widened: sum.widened + part.widened,
            split: sum.split + part.split,
        })
    }
}

/// A range to issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
}

impl Piece {
    pub(super) fn len(self) -> usize {
        usize::try_from(self.len_bytes).expect("a piece is short")
    }
}

/// Pieces of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    offset_bytes: u64,
    left_bytes: u64,
    longest_bytes: u64,
    /// Whether it is a flush, which has no bytes.
    flush: bool,
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let len_bytes = self.left_bytes.min(self.longest_bytes);
        if len_bytes == 0 && !std::mem::take(&mut self.flush) {
            return None;
        }
        let offset_bytes = self.offset_bytes;
        self.offset_bytes += len_bytes;
        self.left_bytes -= len_bytes;
        Some(Piece {
            offset_bytes,
            len_bytes,
        })
    }
}

/// Fits requests to one target.
pub(super) struct Fit {
    size_bytes: u64,
    block_bytes: u64,
    past_end: PastEnd,
    pub(super) fitted: Fitted,
}

impl Fit {
    pub(super) fn new(device: &DeviceInfo, past_end: PastEnd) -> Self {
        Self {
            size_bytes: device.size_bytes,
            block_bytes: u64::from(device.logical_block_bytes),
            past_end,
            fitted: Fitted::default(),
        }
    }

    /// Returns the pieces to issue; none if the request is skipped.
    ///
    /// # Errors
    /// `OutOfRange` for a request past the end, if such are refused, or for a target without bytes.
    pub(super) fn fit(&mut self, request: &Request) -> Result<Pieces> {
        let none = |flush| Pieces {
            offset_bytes: 0,
            left_bytes: 0,
            longest_bytes: LONGEST_BYTES,
            flush,
        };
        if request.op == Op::Flush {
            return Ok(none(true));
        }
        let block = self.block_bytes;
        let end_bytes = request.end_bytes();
        let mut from = request.offset_bytes / block * block;
        let mut len = end_bytes.next_multiple_of(block) - from;
        if end_bytes > self.size_bytes {
            match self.past_end {
                PastEnd::Skip => {
                    self.fitted.left_out += 1;
                    return Ok(none(false));
                }
                // A target without bytes cannot be folded into.
                PastEnd::Fold if self.size_bytes > 0 => {
                    self.fitted.folded += 1;
                    len = len.min(self.size_bytes);
                    from = (from % self.size_bytes).min(self.size_bytes - len);
                }
                PastEnd::Refuse | PastEnd::Fold => {
                    let what = format!(
                        "a request of {} bytes at {} reaches past its end at {}",
                        request.len_bytes, request.offset_bytes, self.size_bytes
                    );
                    return Err(Error::new(ErrorKind::OutOfRange, what));
                }
            }
        } else if len > u64::from(request.len_bytes) {
            self.fitted.widened += 1;
        }
        let longest_bytes = match request.op {
            // A discard needs no memory.
            Op::Discard => u64::MAX,
            _ => LONGEST_BYTES,
        };
        self.fitted.split += u64::from(len > longest_bytes);
        Ok(Pieces {
            offset_bytes: from,
            left_bytes: len,
            longest_bytes,
            flush: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(
        past_end: PastEnd,
        op: Op,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> (Result<Vec<(u64, u64)>>, Fitted) {
        let device = DeviceInfo {
            logical_block_bytes: 4096,
            ..DeviceInfo::new("t", 10 << 20)
        };
        let mut fit = Fit::new(&device, past_end);
        let request = Request {
            time_ns: 0,
            offset_bytes,
            len_bytes,
            volume: 0,
            op,
        };
        let pieces = fit.fit(&request);
        let pieces = pieces.map(|all| all.map(|p| (p.offset_bytes, p.len_bytes)).collect());
        (pieces, fit.fitted)
    }

    #[test]
    fn requests_become_whole_blocks_within_the_target() {
        const END: u64 = 10 << 20;
        for (offset, len, pieces, changed) in [
            (4096, 8192, vec![(4096, 8192)], (0, 0, 0)),
            (512, 512, vec![(0, 4096)], (0, 1, 0)),
            (4095, 2, vec![(0, 8192)], (0, 1, 0)),
            (END - 4096, 4096, vec![(END - 4096, 4096)], (0, 0, 0)),
            (END - 4096, 8192, vec![(END - 8192, 8192)], (1, 0, 0)),
            (END + 4096, 4096, vec![(4096, 4096)], (1, 0, 0)),
            (7 * END + 512, 512, vec![(0, 4096)], (1, 0, 0)),
            (
                0,
                9 << 20,
                vec![(0, 4 << 20), (4 << 20, 4 << 20), (8 << 20, 1 << 20)],
                (0, 0, 1),
            ),
            (
                4096,
                1 << 30,
                vec![(0, 4 << 20), (4 << 20, 4 << 20), (8 << 20, 2 << 20)],
                (1, 0, 1),
            ),
        ] {
            let (found, fitted) = fit(PastEnd::Fold, Op::Write, offset, len);
            assert_eq!(found.expect("folded"), pieces, "{offset} {len}");
            let Fitted {
                folded,
                left_out,
                widened,
                split,
            } = fitted;
            assert_eq!((folded, widened, split), changed, "{offset} {len}");
            assert_eq!(left_out, 0);
        }
        assert_eq!(
            fit(PastEnd::Fold, Op::Discard, 0, 9 << 20).0.expect("one"),
            [(0, 9 << 20)]
        );
        assert_eq!(
            fit(PastEnd::Refuse, Op::Flush, 0, 0).0.expect("a flush"),
            [(0, 0)]
        );
    }

    #[test]
    fn past_the_end_is_left_out_or_refused_where_that_is_wished() {
        let beyond = (10 << 20) - 4096;
        let (found, fitted) = fit(PastEnd::Skip, Op::Read, beyond, 8192);
        assert_eq!((found.expect("skipped"), fitted.left_out), (vec![], 1));
        assert_eq!(fitted.folded, 0);
        let refused = fit(PastEnd::Refuse, Op::Read, beyond, 8192)
            .0
            .expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::OutOfRange);
        assert!(
            refused.report().contains("8192 bytes at 10481664"),
            "{refused}"
        );
    }
}
