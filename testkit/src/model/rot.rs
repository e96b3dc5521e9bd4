//! What the model knows of damage: dirty data that rotted, and metadata that was lost.
//!
//! Dirty data that rotted is nowhere else: reading it is an error that names it, and stays one, until all of it is
//! rewritten. Where metadata was lost, what it spoke of may be as it ever was before; nothing else may have changed.

use std::ops::Range;

use forebay_block::{Error, ErrorKind};

use super::Model;
use super::history::History;
use crate::stack::LostRange;
use crate::stamp::SECTOR_BYTES;

/// A range that rotted.
#[derive(Clone, Debug)]
pub(super) struct Rot {
    range: LostRange,
    /// A client was told, and nobody has written there since.
    told: bool,
    /// A client was told at least once.
    found: bool,
}

fn sectors(range: &LostRange) -> Range<usize> {
    let first = range.offset as usize / SECTOR_BYTES;
    first..first + (range.len as usize).div_ceil(SECTOR_BYTES)
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Model {
    /// Dirty data of this range rotted. Nothing is in flight.
    pub fn rot(&mut self, range: LostRange) {
        self.rot.push(Rot {
            range,
            told: false,
            found: false,
        });
    }

    /// Metadata that spoke of this range was lost: it may hold whatever it held once. Nothing is in flight.
    pub fn damage(&mut self, range: LostRange) {
        let number = self.number;
        for history in &mut self.volumes[range.volume][sectors(&range)] {
            history.damage(number);
        }
    }

    /// Whether there is dirty data that rotted.
    #[must_use]
    pub const fn has_rot(&self) -> bool {
        !self.rot.is_empty()
    }

    /// Whether an operation on these bytes may fail with `error`, because of rot that it names.
    pub fn names_rot(&mut self, volume: usize, bytes: Range<u64>, error: &Error) -> bool {
        if error.kind() != ErrorKind::Corrupt {
            return false;
        }
        let report = error.report();
        let touched = bytes.start as usize / SECTOR_BYTES..bytes.end as usize / SECTOR_BYTES;
        let histories = &self.volumes[volume];
        let mut named = false;
        for rot in &mut self.rot {
            let place = format!("{} bytes at {} ", rot.range.len, rot.range.offset);
            if rot.range.volume == volume
                && overlap(&sectors(&rot.range), &touched)
                && report.contains(&place)
            {
                // Who writes there just now may end that at any time.
                let mut there = histories[sectors(&rot.range)].iter();
                rot.told = !there.any(History::is_in_flight);
                (rot.found, named) = (true, true);
            }
        }
        named
    }

    /// Rot of which no client was told yet.
    #[must_use]
    pub fn unfound_rot(&self) -> Vec<LostRange> {
        let unfound = self.rot.iter().filter(|rot| !rot.found);
        unfound.map(|rot| rot.range).collect()
    }

    /// Something is being written there.
    pub(super) fn forget_told(&mut self, volume: usize, written: Range<usize>) {
        for rot in &mut self.rot {
            if rot.range.volume == volume && overlap(&sectors(&rot.range), &written) {
                rot.told = false;
            }
        }
    }

    /// All of this was rewritten.
    pub(super) fn rewritten(&mut self, volume: usize, written: Range<usize>) {
        self.rot.retain(|rot| {
            let lost = sectors(&rot.range);
            rot.range.volume != volume || lost.start < written.start || written.end < lost.end
        });
    }

    /// What was said to be lost is not read again.
    pub(super) fn check_told(&self, volume: usize, read: Range<usize>) -> Result<(), String> {
        let told = self.rot.iter().find(|rot| {
            rot.told && rot.range.volume == volume && overlap(&sectors(&rot.range), &read)
        });
        match told {
            None => Ok(()),
            Some(rot) => Err(format!("{:?} was said to be lost, and is read", rot.range)),
        }
    }
}
