//! The model of damage: dirty data that rotted, and metadata that was lost.
//!
//! Dirty data that rotted has no other copy. A read of it is an error that names it, until all of
//! it is rewritten. Where metadata was lost, its ranges may hold any earlier contents. All else
//! stays as it was.

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
    /// A client got the error, and no write followed.
    reported: bool,
    /// A client got the error at least once.
    found: bool,
    /// Time of the last write there. Requests submitted before it describe the past.
    written_at: u64,
    /// Time at which all of it was first rewritten. Requests submitted before may still get the
    /// error.
    rewritten_at: Option<u64>,
    /// Whether the rewrite survives power loss.
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
    /// Notes that dirty data of this range rotted. No operation is in flight.
    pub fn rot(&mut self, range: LostRange) {
        self.rot.push(Rot {
            range,
            reported: false,
            found: false,
            written_at: 0,
            rewritten_at: None,
            promised: false,
        });
    }

    /// Notes that metadata of this range was lost, so it may hold any earlier contents. No
    /// operation is in flight.
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

    /// Whether an operation may fail with `error`, because of rot that the error names.
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
                // A write in flight may end the rot at any time.
                let mut there = histories[sectors(&rot.range)].iter();
                if !there.any(History::is_in_flight) && rot.written_at < ticket.submitted {
                    rot.reported = true;
                }
                (rot.found, named) = (true, true);
            }
        }
        named
    }

    /// Returns rot that no client got an error for.
    #[must_use]
    pub fn unfound_rot(&self) -> Vec<LostRange> {
        let unfound = self.rot.iter();
        let unfound = unfound.filter(|rot| !rot.found && rot.rewritten_at.is_none());
        unfound.map(|rot| rot.range).collect()
    }

    /// Notes that a write to the range begins, or has ended.
    pub(super) fn note_write(&mut self, volume: usize, written: Range<usize>) {
        for rot in &mut self.rot {
            if rot.range.volume == volume && overlap(&sectors(&rot.range), &written) {
                rot.reported = false;
                rot.written_at = self.now;
            }
        }
    }

    /// Notes that the whole range was rewritten.
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

    /// A flush promises ranges that were rewritten before its submission. Their rot is over.
    pub(super) fn promise_rewritten(&mut self, volume: usize, flush_submitted: u64) {
        let of_volume = (self.rot.iter_mut()).filter(|rot| rot.range.volume == volume);
        for rot in of_volume {
            rot.promised |= rot.rewritten_at.is_some_and(|at| at < flush_submitted);
        }
    }

    /// Power loss undoes rewrites that are not promised. No operation is in flight.
    pub(super) fn lose_rewritten(&mut self, loss: Loss) {
        self.rot.retain(|rot| !rot.promised);
        if loss == Loss::Power {
            for rot in &mut self.rot {
                rot.found |= rot.rewritten_at.take().is_some();
            }
        }
    }

    /// Returns an error for a read of data that was reported lost.
    pub(super) fn check_reported(&self, volume: usize, read: Range<usize>) -> Result<(), String> {
        let reported = self.rot.iter().find(|rot| {
            rot.reported && rot.range.volume == volume && overlap(&sectors(&rot.range), &read)
        });
        match reported {
            None => Ok(()),
            Some(rot) => Err(format!(
                "{:?} was reported lost, and a read returns data",
                rot.range
            )),
        }
    }
}
