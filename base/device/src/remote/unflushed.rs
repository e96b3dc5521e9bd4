//! Copies of acknowledged changes that no flush has covered. After a loss they are sent again,
//! because the peer may have lost its volatile cache.
//!
//! The data is copied into a ring, in the order of acknowledgements. A successful flush frees the
//! copies that it covers. A change without room in the ring, or one that failed, cannot be sent
//! again. After a loss of the connection, its range counts as *lost*.
//!
//! A durable change shadows older changes of its range, which are not sent again there. It needs an
//! entry of its own in two cases. Either it lies within an older change, or it was in flight at the
//! same time as an overlapping one.
//!
//! If two changes of one range were in flight at once, their order is unknown. Neither is sent
//! again there: the resend might revert data that has been read since.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use forebay_block::{Buf, Op, Request};

/// Size of the ring, bytes: the usual amount that a cache writes back between two flushes.
const RING_BYTES: u64 = 64 << 20;
/// Maximum number of entries.
const MAX_ENTRIES: usize = 16 << 10;

/// Content of a recorded change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Data at this position of the ring.
    Data(u64),
    Zeroes {
        unmap: bool,
    },
    Discard,
    /// Durable, or already reported as lost.
    Done,
    /// The change failed. It may have reached the peer's cache.
    Failed,
    /// There was no room for a copy.
    NoRoom,
}

#[derive(Debug)]
struct Entry {
    /// Number of the acknowledgement, counted from one.
    number: u64,
    /// Number of the last change that was acknowledged when this one was submitted.
    before: u64,
    range: Range<u64>,
    change: Change,
    /// Number of losses before the change ended.
    losses: u64,
    /// Position in the ring of the first data of this and later changes.
    from: u64,
}

/// Outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A power loss may revert it.
    Volatile,
    /// No power loss reverts it.
    Durable {
        /// Whether an overlapping change is still in flight, which may land before or after this
        /// one.
        concurrent: bool,
    },
    /// It may have reached the peer's cache.
    Failed,
}

pub(crate) struct Unflushed {
    ring: Buf,
    room: u64,
    most: usize,
    /// Position in the ring of the next data, bytes since the start.
    head: u64,
    entries: VecDeque<Entry>,
    /// Number of the last acknowledgement.
    number: u64,
    /// Range of the changes for which there was no entry, and the number of the last of them.
    overflow: Option<(Range<u64>, u64)>,
}

/// Actions after a loss.
#[derive(Default)]
pub(crate) struct Plan {
    /// Changes to send again, in any order: their ranges are disjoint.
    pub(crate) resend: Vec<Request>,
    /// Ranges that cannot be sent again, in order.
    pub(crate) lost: Vec<Range<u64>>,
}

impl Unflushed {
    /// Allocates the ring for a peer with a `volatile` cache, since the data path must not
    /// allocate. Records nothing for other peers.
    pub(crate) fn new(volatile: bool) -> Self {
        match volatile {
            true => Self::with_room(RING_BYTES, MAX_ENTRIES),
            false => Self::with_room(0, 0),
        }
    }

    fn with_room(room: u64, most: usize) -> Self {
        Self {
            // A buffer has at least one byte.
            ring: Buf::scratch(usize::try_from(room.max(1)).expect("as long as a buffer")),
            room,
            most,
            head: 0,
            entries: VecDeque::with_capacity(most),
            number: 0,
            overflow: None,
        }
    }

    /// Returns the number of the last acknowledgement. A flush that is submitted now covers the
    /// changes up to it.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether no acknowledged change waits for a flush.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.overflow.is_none()
    }

    /// Records a change that has ended. `before` is [`Unflushed::number`] at its submission,
    /// `losses` the number of losses so far.
    pub(crate) fn record(&mut self, request: &Request, before: u64, ended: Ended, losses: u64) {
        self.number += 1;
        let range = request.offset..request.offset + request.len;
        if let Ended::Durable { concurrent } = ended
            && !self.shadow_older(&range, before)
            && !concurrent
        {
            return;
        }
        if self.entries.len() == self.most {
            if matches!(ended, Ended::Durable { .. }) {
                return self.drop_shadowed(&range);
            }
            let hull = match self.overflow.take() {
                Some((old, _)) => old.start.min(range.start)..old.end.max(range.end),
                None => range,
            };
            self.overflow = Some((hull, self.number));
            return;
        }
        let from = self.head;
        let change = match (request.op, &request.buf) {
            _ if ended == Ended::Failed => Change::Failed,
            _ if ended != Ended::Volatile => Change::Done,
            (Op::Write { .. }, Some(data)) => self.copy_to_ring(data),
            (Op::WriteZeroes { unmap, .. }, _) => Change::Zeroes { unmap },
            (Op::Discard, _) => Change::Discard,
            (op, _) => unreachable!("{op:?} changes nothing"),
        };
        self.entries.push_back(Entry {
            number: self.number,
            before,
            range,
            change,
            losses,
            from,
        });
    }

    /// Removes the range of a durable change from older changes. Returns whether the durable change
    /// needs an entry: an older change extends beyond it on both sides, or was in flight at the
    /// same time.
    fn shadow_older(&mut self, range: &Range<u64>, before: u64) -> bool {
        let mut needs_place = false;
        for entry in &mut self.entries {
            let own = &mut entry.range;
            if own.end <= range.start || range.end <= own.start {
                continue;
            }
            let covers = (range.start <= own.start, own.end <= range.end);
            // Of two durable changes that were in flight at once, either may be the last. Neither
            // is removed.
            let is_older = entry.number <= before || entry.change == Change::Done;
            match covers {
                (true, true) if is_older => own.start = own.end,
                (true, false) if is_older => {
                    if let Change::Data(at) = &mut entry.change {
                        *at += range.end - own.start;
                    }
                    own.start = range.end;
                }
                (false, true) if is_older => own.end = range.start,
                _ => needs_place |= entry.change != Change::Done,
            }
        }
        self.entries.retain(|entry| !entry.range.is_empty());
        needs_place
    }

    /// Marks older changes that overlap `range` as impossible to resend. The durable change of
    /// `range` has no entry, and a resend might overwrite it.
    fn drop_shadowed(&mut self, range: &Range<u64>) {
        let overlapping = (self.entries.iter_mut())
            .filter(|entry| entry.range.start < range.end && range.start < entry.range.end);
        for entry in overlapping.filter(|entry| entry.change != Change::Done) {
            entry.change = Change::NoRoom;
        }
    }

    fn copy_to_ring(&mut self, data: &Buf) -> Change {
        let len = data.len() as u64;
        let at = match self.head % self.room + len > self.room {
            true => self.head.next_multiple_of(self.room),
            false => self.head,
        };
        let tail = self.entries.front().map_or(self.head, |first| first.from);
        if at + len - tail > self.room {
            return Change::NoRoom;
        }
        self.piece(at..at + len).copy_from_buf(data);
        self.head = at + len;
        Change::Data(at)
    }

    /// Returns a piece of the ring.
    fn piece(&self, place: Range<u64>) -> Buf {
        let at = |bytes: u64| usize::try_from(bytes).expect("as long as a buffer");
        let from = at(place.start % self.room);
        self.ring.slice(from..from + at(place.end - place.start))
    }

    /// Frees the changes up to `number`, which a flush has covered.
    pub(crate) fn flushed(&mut self, number: u64) {
        while self
            .entries
            .pop_front_if(|entry| entry.number <= number)
            .is_some()
        {}
        self.overflow.take_if(|(_, last)| *last <= number);
    }

    /// Plans the resend after loss number `losses`, with the newest data of each byte. A lost range
    /// is planned once, not again after the next loss. Exception: ranges without an entry are
    /// planned each time.
    pub(crate) fn plan(&mut self, losses: u64) -> Plan {
        let mut plan = Plan::default();
        // Newer changes by the end of their range: start, number at submission, and whether the
        // change is durable.
        let mut newer: BTreeMap<u64, (u64, u64, bool)> = BTreeMap::new();
        if let Some((range, _)) = &mut self.overflow {
            plan.lost.push(range.clone());
            newer.insert(range.end, (range.start, 0, false));
        }
        for index in (0..self.entries.len()).rev() {
            let Entry {
                number,
                before,
                ref range,
                change,
                losses: ended,
                ..
            } = self.entries[index];
            // It failed in this loss, so its write was never acknowledged. Its state at the peer
            // is undetermined, and nothing is reverted.
            if change == Change::Failed && ended == losses {
                continue;
            }
            let range = range.clone();
            let is_done = change == Change::Done;
            let mut bare = Vec::new();
            let mut at = range.start;
            for (&end, &(start, submitted, is_durable)) in newer.range(range.start + 1..) {
                if start >= range.end {
                    break;
                }
                if at < start {
                    bare.push(at..start);
                }
                // Both were in flight at once. If one is not durable, the range is lost. Of two
                // durable changes neither is lost.
                if submitted < number && !(is_done && is_durable) {
                    plan.lost.push(start.max(range.start)..end.min(range.end));
                }
                at = end;
            }
            if at < range.end {
                bare.push(at..range.end);
            }
            for piece in bare {
                newer.insert(piece.end, (piece.start, before, is_done));
                self.plan_piece(&mut plan, change, range.start, piece);
            }
            if matches!(change, Change::Failed | Change::NoRoom) {
                self.entries[index].change = Change::Done;
            }
        }
        plan.lost = merged(plan.lost);
        plan
    }

    /// Plans a piece of a change at byte `from` that no newer change overlaps.
    fn plan_piece(&mut self, plan: &mut Plan, change: Change, from: u64, piece: Range<u64>) {
        let (offset, len) = (piece.start, piece.end - piece.start);
        plan.resend.push(match change {
            Change::Data(at) => {
                let start = at + (offset - from);
                Request::write(offset, self.piece(start..start + len), false)
            }
            Change::Zeroes { unmap } => Request::write_zeroes(offset, len, false, unmap),
            Change::Discard => Request::discard(offset, len),
            Change::Done => return,
            Change::Failed | Change::NoRoom => return plan.lost.push(piece),
        });
    }

    /// Drops all changes. Returns their ranges.
    pub(crate) fn give_up(&mut self, losses: u64) -> Vec<Range<u64>> {
        let Plan { resend, mut lost } = self.plan(losses);
        lost.extend(resend.iter().map(|one| one.offset..one.offset + one.len));
        self.entries.clear();
        self.overflow = None;
        merged(lost)
    }
}

/// Sorts ranges and merges those that touch.
pub(crate) fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut whole: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match whole.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => whole.push(range),
        }
    }
    whole
}

/// Formats the first few ranges for a message.
pub(crate) fn in_words(ranges: &[Range<u64>]) -> String {
    const SHOWN: usize = 8;
    let mut words: Vec<_> = (ranges.iter().take(SHOWN))
        .map(|range| format!("{}..{}", range.start, range.end))
        .collect();
    if let Some(more @ 1..) = ranges.len().checked_sub(SHOWN) {
        let end = ranges.last().expect("there are some").end;
        words.push(format!("{more} more ranges up to {end}"));
    }
    format!("bytes {}", words.join(", "))
}

#[cfg(test)]
mod tests;
