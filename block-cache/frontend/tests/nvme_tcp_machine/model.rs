//! What the blocks of the disk may hold, by what hosts have asked for and what they were answered.

use std::ops::Range;

/// The number of a write, in the order in which hosts ask and are answered.
type Moment = u64;

/// A write that may have been the last one of a block.
#[derive(Clone, Copy)]
struct Candidate {
    write: Moment,
    value: u8,
    /// When its host was told that it succeeded.
    acknowledged: Option<Moment>,
    /// When a later one had certainly taken its place.
    gone: Option<Moment>,
}

/// A write that a host has asked for.
#[derive(Clone)]
pub(crate) struct Write {
    blocks: Range<u64>,
    begun: Moment,
}

/// The candidates of each block. A write that was not answered, or failed, is one for ever: it may
/// be half done, or land late.
pub(crate) struct Model {
    blocks: Vec<Vec<Candidate>>,
    now: Moment,
    /// A host has said bytes that nobody has looked at: anything may have been in them.
    pub(crate) anything: bool,
}

impl Model {
    /// Of a disk of so many blocks of zeroes.
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

    /// The present moment.
    pub(crate) fn moment(&self) -> Moment {
        self.now
    }

    /// A host asks for blocks to be filled with a value.
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

    /// It was told that they are.
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

    /// Whether a block may hold this, for who has asked at that moment or later.
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
