//! Possible contents of the disk's blocks, according to the hosts' requests and the answers.

use std::ops::Range;

/// Order of requests and answers.
type Moment = u64;

/// A write that may be the last one of a block.
#[derive(Clone, Copy)]
struct Candidate {
    write: Moment,
    value: u8,
    /// Moment at which its host got the success.
    acknowledged: Option<Moment>,
    /// Moment at which a later one had certainly replaced it.
    gone: Option<Moment>,
}

/// A requested write.
#[derive(Clone)]
pub(crate) struct Write {
    blocks: Range<u64>,
    begun: Moment,
}

/// Candidates of each block. An unanswered or failed write stays one for ever: it may be half done,
/// or land late.
pub(crate) struct Model {
    blocks: Vec<Vec<Candidate>>,
    now: Moment,
    /// Whether a host has sent raw bytes: anything may have been written.
    pub(crate) anything: bool,
}

impl Model {
    /// Creates the model of a disk of `blocks` blocks of zeroes.
    pub(crate) fn new(blocks: usize) -> Self {
        let zeroes = Candidate {
            write: 0,
            value: 0,
            acknowledged: Some(0),
            gone: None,
        };
        Self {
            blocks: vec![vec![zeroes]; blocks],
            now: 0,
            anything: false,
        }
    }

    /// Returns the current moment.
    pub(crate) fn moment(&self) -> Moment {
        self.now
    }

    /// Notes that a host requests to fill blocks with a value.
    pub(crate) fn begin(&mut self, first: u64, count: u64, value: u8) -> Write {
        self.now += 1;
        let size = self.blocks.len() as u64;
        let blocks = first.min(size)..first.saturating_add(count).min(size);
        for block in blocks.clone() {
            self.blocks[block as usize].push(Candidate {
                write: self.now,
                value,
                acknowledged: None,
                gone: None,
            });
        }
        Write {
            blocks,
            begun: self.now,
        }
    }

    /// Notes that the host got the success.
    pub(crate) fn succeeded(&mut self, write: &Write) {
        self.now += 1;
        for block in write.blocks.clone() {
            for candidate in &mut self.blocks[block as usize] {
                if candidate.write == write.begun {
                    candidate.acknowledged = Some(self.now);
                } else if candidate
                    .acknowledged
                    .is_some_and(|acknowledged| acknowledged < write.begun)
                {
                    candidate.gone.get_or_insert(self.now);
                }
            }
        }
    }

    /// Returns whether a read that was requested at `since` or later may return these bytes for a
    /// block.
    pub(crate) fn may_be(&self, block: u64, bytes: &[u8], since: Moment) -> bool {
        let Some(candidates) = self.blocks.get(block as usize) else {
            return false;
        };
        self.anything
            || candidates.iter().any(|candidate| {
                candidate.gone.is_none_or(|gone| gone > since)
                    && bytes.iter().all(|byte| *byte == candidate.value)
            })
    }
}
