//! What was acknowledged and no flush has covered, kept to be sent again after a loss: the target may have lost its volatile
//! cache.
//!
//! Data is copied into a ring, in the order of acknowledgements; a flush that succeeds frees what it covers. What the ring has no
//! room for, and what failed, is *gone* if the association is lost: nobody can send it again.
//!
//! A change that is durable by itself takes away from what older changes have to send again. It needs a place of its own only
//! where it lies within an older change, or where an overlapping change was in flight at the same time.
//!
//! Of two changes of one place that were in flight at once nobody knows which came last. They are not sent again there: it
//! might not be the one that has been read since.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use forebay_block::{Buf, Op, Request};

/// Data that is kept, bytes: as much as a cache writes back between two flushes.
const ROOM_BYTES: u64 = 64 << 20;
/// Changes that are kept.
const MOST: usize = 16 << 10;

/// What is known of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Its data is here in the ring.
    Data(u64),
    Zeroes {
        unmap: bool,
    },
    Discard,
    /// Durable by itself, or told to be gone.
    Settled,
    /// It failed, so that it may have got as far as the target's cache.
    Failed,
    /// There was no room for it.
    TooMany,
}

#[derive(Debug)]
struct Entry {
    /// Its acknowledgement, counted from one.
    number: u64,
    /// How many others were acknowledged when it was asked.
    before: u64,
    range: Range<u64>,
    what: What,
    /// Losses before its end.
    losses: u64,
    /// Where the ring's data of this and of later changes begins.
    from: u64,
}

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// A power loss may take it back.
    Volatile,
    /// No power loss takes it back.
    Durable {
        /// An overlapping change is in flight still, which may have landed before it or after it.
        beside: bool,
    },
    /// It may have got as far as the target's cache.
    Failed,
}

pub(super) struct Kept {
    ring: Buf,
    room: u64,
    most: usize,
    /// Where the next data goes: bytes since the start.
    head: u64,
    entries: VecDeque<Entry>,
    /// The last acknowledgement.
    number: u64,
    /// What more changes than are kept were in, and the number of the last.
    beyond: Option<(Range<u64>, u64)>,
}

/// What is to be done after a loss.
#[derive(Default)]
pub(super) struct Plan {
    /// To be sent again, in any order: no two touch.
    pub(super) again: Vec<Request>,
    /// What cannot be, in order.
    pub(super) gone: Vec<Range<u64>>,
}

impl Kept {
    /// Room for what is kept of a target with a `volatile` cache, taken now: the data path takes none. Of another target
    /// nothing is kept.
    pub(super) fn new(volatile: bool) -> Self {
        match volatile {
            true => Self::with_room(ROOM_BYTES, MOST),
            false => Self::with_room(0, 0),
        }
    }

    fn with_room(room: u64, most: usize) -> Self {
        Self {
            ring: Buf::scratch(usize::try_from(room).expect("as long as a buffer")),
            room,
            most,
            head: 0,
            entries: VecDeque::with_capacity(most),
            number: 0,
            beyond: None,
        }
    }

    /// The last acknowledgement: what a flush that is asked now covers.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Whether no acknowledged change waits for a flush.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.beyond.is_none()
    }

    /// Notes a change that has ended. `before` is [`Kept::number`] when it was asked, `losses` counts the losses so far.
    pub(super) fn note(&mut self, request: &Request, before: u64, ended: Ended, losses: u64) {
        self.number += 1;
        let range = request.offset..request.offset + request.len;
        if let Ended::Durable { beside } = ended
            && !self.settle(&range, before)
            && !beside
        {
            return;
        }
        if self.entries.len() == self.most {
            if matches!(ended, Ended::Durable { .. }) {
                return self.lose_under(&range);
            }
            let hull = match self.beyond.take() {
                Some((old, _)) => old.start.min(range.start)..old.end.max(range.end),
                None => range,
            };
            self.beyond = Some((hull, self.number));
            return;
        }
        let from = self.head;
        let what = match (request.op, &request.buf) {
            _ if ended == Ended::Failed => What::Failed,
            _ if ended != Ended::Volatile => What::Settled,
            (Op::Write { .. }, Some(data)) => self.keep(data),
            (Op::WriteZeroes { unmap, .. }, _) => What::Zeroes { unmap },
            (Op::Discard, _) => What::Discard,
            (op, _) => unreachable!("{op:?} changes nothing"),
        };
        self.entries.push_back(Entry {
            number: self.number,
            before,
            range,
            what,
            losses,
            from,
        });
    }

    /// A change of `range` is durable: what older changes have there is not sent again. Whether it needs a place, since an older
    /// change reaches beyond it on both sides, or was in flight at the same time.
    fn settle(&mut self, range: &Range<u64>, before: u64) -> bool {
        let mut needs_place = false;
        for entry in &mut self.entries {
            let own = &mut entry.range;
            if own.end <= range.start || range.end <= own.start {
                continue;
            }
            let covers = (range.start <= own.start, own.end <= range.end);
            // Of two durable changes that were in flight at once either may be there, and stays.
            let is_older = entry.number <= before || entry.what == What::Settled;
            match covers {
                (true, true) if is_older => own.start = own.end,
                (true, false) if is_older => {
                    if let What::Data(at) = &mut entry.what {
                        *at += range.end - own.start;
                    }
                    own.start = range.end;
                }
                (false, true) if is_older => own.end = range.start,
                _ => needs_place |= entry.what != What::Settled,
            }
        }
        self.entries.retain(|entry| !entry.range.is_empty());
        needs_place
    }

    /// A durable change of `range` has no place: older changes that overlap it cannot be sent again, or might land on it.
    fn lose_under(&mut self, range: &Range<u64>) {
        let overlapping = (self.entries.iter_mut())
            .filter(|entry| entry.range.start < range.end && range.start < entry.range.end);
        for entry in overlapping.filter(|entry| entry.what != What::Settled) {
            entry.what = What::TooMany;
        }
    }

    fn keep(&mut self, data: &Buf) -> What {
        let len = data.len() as u64;
        let at = match self.head % self.room + len > self.room {
            true => self.head.next_multiple_of(self.room),
            false => self.head,
        };
        let tail = self.entries.front().map_or(self.head, |first| first.from);
        if at + len - tail > self.room {
            return What::TooMany;
        }
        self.piece(at..at + len).copy_from_buf(data);
        self.head = at + len;
        What::Data(at)
    }

    /// A piece of the ring.
    fn piece(&self, place: Range<u64>) -> Buf {
        let at = |bytes: u64| usize::try_from(bytes).expect("as long as a buffer");
        let from = at(place.start % self.room);
        self.ring.slice(from..from + at(place.end - place.start))
    }

    /// A flush has covered what was acknowledged up to this number.
    pub(super) fn flushed(&mut self, number: u64) {
        while self
            .entries
            .pop_front_if(|entry| entry.number <= number)
            .is_some()
        {}
        self.beyond.take_if(|(_, last)| *last <= number);
    }

    /// What is to be done after loss number `losses`, the newest of each place. What is gone is told now, and not again of the
    /// next one (where there were more changes than are kept, it is).
    pub(super) fn plan(&mut self, losses: u64) -> Plan {
        let mut plan = Plan::default();
        // By its end: the begin, how many were acknowledged when it was asked, and whether it is durable.
        let mut newer: BTreeMap<u64, (u64, u64, bool)> = BTreeMap::new();
        if let Some((range, _)) = &mut self.beyond {
            plan.gone.push(range.clone());
            newer.insert(range.end, (range.start, 0, false));
        }
        for index in (0..self.entries.len()).rev() {
            let Entry {
                number,
                before,
                ref range,
                what,
                losses: ended,
                ..
            } = self.entries[index];
            // What failed since then was not acknowledged before, and is at the target or not: nothing is taken back.
            if what == What::Failed && ended == losses {
                continue;
            }
            let range = range.clone();
            let is_settled = what == What::Settled;
            let mut bare = Vec::new();
            let mut at = range.start;
            for (&end, &(start, asked, is_durable)) in newer.range(range.start + 1..) {
                if start >= range.end {
                    break;
                }
                if at < start {
                    bare.push(at..start);
                }
                // In flight at once: of a failed or lost one both are gone anyway, of two durable ones neither.
                if asked < number && !(is_settled && is_durable) {
                    plan.gone.push(start.max(range.start)..end.min(range.end));
                }
                at = end;
            }
            if at < range.end {
                bare.push(at..range.end);
            }
            for piece in bare {
                newer.insert(piece.end, (piece.start, before, is_settled));
                self.plan_piece(&mut plan, what, range.start, piece);
            }
            if matches!(what, What::Failed | What::TooMany) {
                self.entries[index].what = What::Settled;
            }
        }
        plan.gone = merged(plan.gone);
        plan
    }

    /// Plans a piece of a change at byte `from` that nothing newer is in.
    fn plan_piece(&mut self, plan: &mut Plan, what: What, from: u64, piece: Range<u64>) {
        let (offset, len) = (piece.start, piece.end - piece.start);
        plan.again.push(match what {
            What::Data(at) => {
                let start = at + (offset - from);
                Request::write(offset, self.piece(start..start + len), false)
            }
            What::Zeroes { unmap } => Request::write_zeroes(offset, len, false, unmap),
            What::Discard => Request::discard(offset, len),
            What::Settled => return,
            What::Failed | What::TooMany => return plan.gone.push(piece),
        });
    }

    /// Gives up what is kept; where that was.
    pub(super) fn give_up(&mut self, losses: u64) -> Vec<Range<u64>> {
        let Plan { again, mut gone } = self.plan(losses);
        gone.extend(again.iter().map(|one| one.offset..one.offset + one.len));
        self.entries.clear();
        self.beyond = None;
        merged(gone)
    }
}

/// Ranges in order, those that touch as one.
pub(super) fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
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

/// Ranges in words: the first few of them.
pub(super) fn in_words(ranges: &[Range<u64>]) -> String {
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
