//! Requests that are not answered: those that wait for a place, and those that have one, whose number is in the
//! command's identifier.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use forebay_block::{Buf, Completion, Op, Request};

/// Bits of a command's identifier that are the place; the others tell a late answer from one to the command that has
/// the place now.
const PLACE_BITS: u32 = 10;

/// A request without an answer.
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) done: Completion,
    /// The last change that was acknowledged when it was submitted: what a flush covers.
    pub(super) before: u64,
    /// It was acknowledged before, and is sent again after a loss.
    pub(super) again: bool,
    /// When it was given to the connection; none before.
    pub(super) sent_at: Option<Duration>,
    /// Bytes of its data that have come or gone.
    pub(super) moved: u32,
    /// How often its data was damaged on the way.
    pub(super) damaged: u8,
    /// How often its association was lost.
    pub(super) losses: u8,
}

impl Asked {
    pub(super) const fn changes(&self) -> bool {
        !matches!(self.request.op, Op::Read | Op::Flush)
    }

    /// Whether a power loss may take it back.
    pub(super) const fn is_volatile(&self) -> bool {
        match self.request.op {
            Op::Read | Op::Flush => false,
            Op::Write { fua } | Op::WriteZeroes { fua, .. } => !fua,
            Op::Discard => true,
        }
    }

    pub(super) const fn buf(&self) -> Option<&Buf> {
        self.request.buf.as_ref()
    }
}

#[derive(Default)]
struct Place {
    turn: u16,
    asked: Option<Asked>,
}

pub(super) struct Slots {
    places: Vec<Place>,
    free: Vec<u16>,
    waiting: VecDeque<Asked>,
    /// What is sent again, and how much of it has no answer: until that has come nothing else goes.
    again: VecDeque<Asked>,
    unanswered: usize,
}

impl Slots {
    /// Places for `depth` commands, at most 1,024.
    pub(super) fn new(depth: u16) -> Self {
        assert!(
            depth > 0 && depth <= 1 << PLACE_BITS,
            "a place's number fits"
        );
        Self {
            places: (0..depth).map(|_| Place::default()).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::with_capacity(depth.into()),
            again: VecDeque::new(),
            unanswered: 0,
        }
    }

    pub(super) fn wait(&mut self, asked: Asked) {
        match asked.again {
            true => self.again.push_back(asked),
            false => self.waiting.push_back(asked),
        }
    }

    /// Lets this be sent before all that waits, which waits for the last answer to it.
    pub(super) fn wait_first(&mut self, again: VecDeque<Asked>) {
        self.unanswered = again.len();
        self.again = again;
    }

    pub(super) const fn nothing_again(&self) -> bool {
        self.unanswered == 0
    }

    /// One of them was answered; whether it was the last.
    pub(super) const fn answered(&mut self) -> bool {
        self.unanswered -= 1;
        self.unanswered == 0
    }

    /// Gives the next request that waits a place, if there is one; the command's identifier.
    pub(super) fn seat(&mut self, now: Duration) -> Option<u16> {
        let queue = match self.unanswered {
            0 => &mut self.waiting,
            _ => &mut self.again,
        };
        if queue.is_empty() {
            return None;
        }
        let index = self.free.pop()?;
        let mut asked = queue.pop_front()?;
        (asked.sent_at, asked.moved) = (Some(now), 0);
        let place = &mut self.places[usize::from(index)];
        place.turn = place.turn.wrapping_add(1);
        place.asked = Some(asked);
        Some(place.turn << PLACE_BITS | index)
    }

    fn place(&mut self, cid: u16) -> Option<&mut Place> {
        let index = usize::from(cid & ((1 << PLACE_BITS) - 1));
        let place = self.places.get_mut(index)?;
        (place.turn << PLACE_BITS == cid & !((1 << PLACE_BITS) - 1)).then_some(place)
    }

    /// The command with this identifier.
    pub(super) fn get(&mut self, cid: u16) -> Option<&mut Asked> {
        self.place(cid)?.asked.as_mut()
    }

    /// The same, and its place is free.
    pub(super) fn take(&mut self, cid: u16) -> Option<Asked> {
        let asked = self.place(cid)?.asked.take()?;
        self.free.push(cid & ((1 << PLACE_BITS) - 1));
        Some(asked)
    }

    /// Whether anything without an answer changes bytes of `range`.
    pub(super) fn changes(&self, range: &Range<u64>) -> bool {
        let placed = self.places.iter().filter_map(|place| place.asked.as_ref());
        placed.chain(&self.waiting).any(|asked| {
            let (start, len) = (asked.request.offset, asked.request.len);
            asked.changes() && start < range.end && range.start < start + len
        })
    }

    /// When the command was sent that waits longest for its answer.
    pub(super) fn oldest(&self) -> Option<Duration> {
        let asked = self.places.iter().filter_map(|place| place.asked.as_ref());
        asked.filter_map(|asked| asked.sent_at).min()
    }

    /// Lets all that has a place wait again, before what waits already; what was sent again is forgotten. Whether anything
    /// among it changes the namespace.
    pub(super) fn unseat(&mut self) -> bool {
        let mut changes = false;
        self.again.clear();
        self.unanswered = 0;
        for (index, place) in self.places.iter_mut().enumerate().rev() {
            if let Some(mut asked) = place.asked.take() {
                asked.losses = asked.losses.saturating_add(1);
                changes |= asked.changes();
                if !asked.again {
                    self.waiting.push_front(asked);
                }
                self.free.push(u16::try_from(index).expect("at most 1,024"));
            }
        }
        changes
    }

    /// All that waits and `which`, taken out.
    pub(super) fn take_waiting(&mut self, which: impl Fn(&Asked) -> bool) -> Vec<Asked> {
        let (taken, left) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<Vec<_>, _>(|asked| which(asked));
        self.waiting.extend(left);
        taken
    }
}

#[cfg(test)]
mod tests {
    use forebay_block::completion_pair;

    use super::*;

    fn asked(request: Request) -> (Asked, forebay_block::IoFuture) {
        let (done, future) = completion_pair();
        let asked = Asked {
            request,
            done,
            before: 0,
            again: false,
            sent_at: None,
            moved: 0,
            damaged: 0,
            losses: 0,
        };
        (asked, future)
    }

    #[test]
    fn a_late_answer_finds_nobody() {
        let mut slots = Slots::new(1);
        let mut futures = Vec::new();
        for at in 0..3 {
            let (asked, future) = asked(Request::discard(at * 512, 512));
            slots.wait(asked);
            futures.push(future);
        }
        let now = Duration::from_secs(1);
        let first = slots.seat(now).expect("a place");
        assert_eq!(slots.seat(now), None, "there is one place");
        assert_eq!(slots.oldest(), Some(now));
        let taken = slots.take(first).expect("it is there");
        taken.done.complete(Ok(()));
        let second = slots.seat(now).expect("a place");
        assert_ne!(first, second);
        assert!(slots.take(first).is_none(), "its place is another's");
        assert!(slots.get(second + 1).is_none(), "no such place");
        // What is sent again goes before what never was.
        assert!(slots.unseat());
        for at in 1..3 {
            let cid = slots.seat(now).expect("a place");
            let taken = slots.take(cid).expect("it is there");
            assert_eq!(taken.request.offset, at * 512);
            taken.done.complete(Ok(()));
        }
        assert_eq!(slots.oldest(), None);
    }
}
