//! What was acknowledged and no flush has covered, kept to be sent again after a loss: the target may have lost its volatile
//! cache.
//!
//! Data is copied into a ring, in the order of acknowledgements; a flush that succeeds frees what it covers. What the ring has no
//! room for, and what failed, is *gone* if the association is lost: nobody can send it again. A change that is durable by itself
//! is noted while others are not, since none of them may land on it.
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

    /// Notes a change that has ended. `before` is [`Kept::number`] when it was asked, `durable` says that no power loss takes it
    /// back, `losses` counts the losses so far.
    pub(super) fn note(
        &mut self,
        request: &Request,
        before: u64,
        durable: bool,
        failed: bool,
        losses: u64,
    ) {
        self.number += 1;
        let range = request.offset..request.offset + request.len;
        if self.entries.len() == self.most {
            let hull = match self.beyond.take() {
                Some((old, _)) => old.start.min(range.start)..old.end.max(range.end),
                None => range,
            };
            self.beyond = Some((hull, self.number));
            return;
        }
        let from = self.head;
        let what = match (request.op, &request.buf) {
            _ if failed => What::Failed,
            _ if durable => What::Settled,
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
        // By its end: the begin, and how many were acknowledged when it was asked.
        let mut newer: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        if let Some((range, _)) = &mut self.beyond {
            plan.gone.push(range.clone());
            newer.insert(range.end, (range.start, 0));
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
            let mut bare = Vec::new();
            let mut at = range.start;
            for (&end, &(start, asked)) in newer.range(range.start + 1..) {
                if start >= range.end {
                    break;
                }
                if at < start {
                    bare.push(at..start);
                }
                // In flight at once: of a failed or lost one both are gone anyway.
                if asked < number {
                    plan.gone.push(start.max(range.start)..end.min(range.end));
                }
                at = end;
            }
            if at < range.end {
                bare.push(at..range.end);
            }
            for piece in bare {
                newer.insert(piece.end, (piece.start, before));
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
mod tests {
    use super::*;

    const BLOCK: u64 = 512;

    fn write(kept: &mut Kept, blocks: Range<u64>, byte: u8) {
        let before = kept.number();
        note(kept, blocks, byte, before);
    }

    fn note(kept: &mut Kept, blocks: Range<u64>, byte: u8, before: u64) {
        let len = usize::try_from((blocks.end - blocks.start) * BLOCK).expect("small");
        let data = Buf::copied(&vec![byte; len]);
        let request = Request::write(blocks.start * BLOCK, data, false);
        kept.note(&request, before, false, false, 0);
    }

    /// What blocks hold after the plan was carried out; 0 for those that it leaves alone.
    fn outcome(plan: &Plan) -> Vec<u8> {
        let mut blocks = vec![0; 16];
        for one in &plan.again {
            let first = usize::try_from(one.offset / BLOCK).expect("small");
            let len = usize::try_from(one.len / BLOCK).expect("small");
            for block in &mut blocks[first..first + len] {
                assert_eq!(*block, 0, "no two touch");
                *block = one.buf.as_ref().map_or(99, |buf| buf.to_vec()[0]);
            }
        }
        blocks
    }

    #[test]
    fn the_newest_of_each_place_is_sent_again() {
        let mut kept = Kept::new(true);
        write(&mut kept, 0..8, 1);
        write(&mut kept, 6..12, 2);
        write(&mut kept, 2..3, 3);
        let covered = kept.number();
        let plan = kept.plan(1);
        assert!(plan.gone.is_empty());
        assert_eq!(
            outcome(&plan),
            [1, 1, 3, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0]
        );
        // What is durable by itself stays, and what was flushed.
        let before = kept.number();
        let data = Buf::copied(&[9; 512]);
        let durable = Request::write(4 * BLOCK, data, true);
        kept.note(&durable, before, true, false, 1);
        assert_eq!(outcome(&kept.plan(2))[3..6], [1, 0, 1]);
        write(&mut kept, 15..16, 4);
        kept.flushed(covered);
        let plan = kept.plan(2);
        assert_eq!(plan.again.len(), 1);
        assert_eq!(outcome(&plan)[15], 4);
        kept.flushed(kept.number());
        assert!(kept.is_empty());
    }

    #[test]
    fn of_two_in_flight_at_once_nobody_knows_the_last() {
        let mut kept = Kept::new(true);
        note(&mut kept, 0..4, 1, 0);
        note(&mut kept, 2..6, 2, 0);
        // Asked when both had ended.
        write(&mut kept, 3..4, 3);
        let plan = kept.plan(1);
        let both = std::iter::once(2 * BLOCK..3 * BLOCK);
        assert!(plan.gone.iter().cloned().eq(both), "{:?}", plan.gone);
        assert_eq!(outcome(&plan)[..6], [1, 1, 2, 3, 2, 2]);
    }

    #[test]
    fn what_failed_or_had_no_room_is_gone_and_told_once() {
        let mut kept = Kept::with_room(4 * BLOCK, 4);
        write(&mut kept, 0..2, 1);
        write(&mut kept, 4..8, 2);
        let failed = Request::discard(8 * BLOCK, BLOCK);
        kept.note(&failed, kept.number(), false, true, 0);
        // Of this one the loss is the reason.
        let failed = Request::discard(9 * BLOCK, BLOCK);
        kept.note(&failed, kept.number(), false, true, 1);
        for block in [12, 14] {
            write(&mut kept, block..block + 1, 3);
        }
        let plan = kept.plan(1);
        assert_eq!(plan.gone, [4 * BLOCK..9 * BLOCK, 12 * BLOCK..15 * BLOCK]);
        assert_eq!(outcome(&plan)[..3], [1, 1, 0]);
        let told = [9 * BLOCK..10 * BLOCK, 12 * BLOCK..15 * BLOCK];
        assert_eq!(kept.plan(2).gone, told);
        kept.flushed(kept.number());
        // The room is there again, across the ring's end.
        for block in 0..3 {
            let byte = u8::try_from(block).expect("small") + 1;
            write(&mut kept, block..block + 1, byte);
        }
        kept.flushed(kept.number() - 1);
        write(&mut kept, 8..10, 7);
        let plan = kept.plan(3);
        assert!(plan.gone.is_empty(), "{:?}", plan.gone);
        assert_eq!(outcome(&plan)[..3], [0, 0, 3]);
        assert_eq!(outcome(&plan)[8..10], [7, 7]);
        assert_eq!(
            kept.give_up(3),
            [2 * BLOCK..3 * BLOCK, 8 * BLOCK..10 * BLOCK]
        );
        assert!(kept.is_empty());
    }

    #[test]
    fn many_ranges_are_named_by_the_first() {
        let many: Vec<_> = (0..10).map(|at| at * 10..at * 10 + 5).collect();
        assert_eq!(in_words(&many[..1]), "bytes 0..5");
        let words = in_words(&many);
        assert!(words.ends_with("70..75, 2 more ranges up to 95"), "{words}");
    }
}
