//! What the model knows of damage: dirty data that rotted, and metadata that was lost.
//!
//! Dirty data that rotted is nowhere else: reading it is an error that names it, and stays one, until all of it is
//! rewritten. Where metadata was lost, what it spoke of may be as it ever was before; nothing else may have changed.

use std::ops::Range;

use forebay_block::{Error, ErrorKind};

use super::history::History;
use super::{Loss, Model, Ticket};
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
    /// When something was last being written there: what was asked before that tells of the past.
    written_at: u64,
    /// When all of it was first rewritten. Who asked before that may be told of it later.
    rewritten_at: Option<u64>,
    /// Power loss does not undo that.
    promised: bool,
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
            written_at: 0,
            rewritten_at: None,
            promised: false,
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
    pub fn has_rot(&self) -> bool {
        self.rot.iter().any(|rot| rot.rewritten_at.is_none())
    }

    /// Whether an operation may fail with `error`, because of rot that it names.
    pub fn names_rot(&mut self, ticket: &Ticket, error: &Error) -> bool {
        if error.kind() != ErrorKind::Corrupt {
            return false;
        }
        let report = error.report();
        let (volume, touched) = (ticket.volume, ticket.first..ticket.first + ticket.sectors);
        let histories = &self.volumes[volume];
        let mut named = false;
        for rot in &mut self.rot {
            let place = format!("{} bytes at {} ", rot.range.len, rot.range.offset);
            let may_be_there = rot.rewritten_at.is_none_or(|at| ticket.submitted < at);
            if may_be_there
                && rot.range.volume == volume
                && overlap(&sectors(&rot.range), &touched)
                && report.contains(&place)
            {
                // Who writes there just now may end that at any time.
                let mut there = histories[sectors(&rot.range)].iter();
                if !there.any(History::is_in_flight) && rot.written_at < ticket.submitted {
                    rot.told = true;
                }
                (rot.found, named) = (true, true);
            }
        }
        named
    }

    /// Rot of which no client was told yet.
    #[must_use]
    pub fn unfound_rot(&self) -> Vec<LostRange> {
        let unfound = self.rot.iter();
        let unfound = unfound.filter(|rot| !rot.found && rot.rewritten_at.is_none());
        unfound.map(|rot| rot.range).collect()
    }

    /// A write there begins, or has ended.
    pub(super) fn forget_told(&mut self, volume: usize, written: Range<usize>) {
        for rot in &mut self.rot {
            if rot.range.volume == volume && overlap(&sectors(&rot.range), &written) {
                rot.told = false;
                rot.written_at = self.now;
            }
        }
    }

    /// All of this was rewritten.
    pub(super) fn rewritten(&mut self, volume: usize, written: Range<usize>, promised: bool) {
        for rot in &mut self.rot {
            let lost = sectors(&rot.range);
            let whole = written.start <= lost.start && lost.end <= written.end;
            if rot.range.volume == volume && whole {
                rot.rewritten_at.get_or_insert(self.now);
                rot.promised |= promised;
            }
        }
    }

    /// What was rewritten before a flush was submitted is gone for good.
    pub(super) fn promise_rewritten(&mut self, volume: usize, flush_submitted: u64) {
        let of_volume = (self.rot.iter_mut()).filter(|rot| rot.range.volume == volume);
        for rot in of_volume {
            rot.promised |= rot.rewritten_at.is_some_and(|at| at < flush_submitted);
        }
    }

    /// Nothing is in flight. What was rewritten and not promised is back after power loss.
    pub(super) fn lose_rewritten(&mut self, loss: Loss) {
        self.rot.retain(|rot| !rot.promised);
        if loss == Loss::Power {
            for rot in &mut self.rot {
                rot.found |= rot.rewritten_at.take().is_some();
            }
        }
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
