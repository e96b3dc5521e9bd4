//! Requests without an answer: queued ones, and those with a slot. The command identifier contains
//! the slot's number.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use forebay_block::{Buf, Completion, Op, Request};

/// Bits of the slot's number in a command identifier. The other bits distinguish a late answer from
/// one to the current command of the slot.
const PLACE_BITS: u32 = 10;

/// A request without an answer.
pub(super) struct Pending {
    pub(super) request: Request,
    pub(super) done: Completion,
    /// Number of the last acknowledged change at submission. A flush covers the changes up to this
    /// number.
    pub(super) before: u64,
    /// Whether the change was acknowledged before and is sent again after a loss.
    pub(super) is_resent: bool,
    /// Time at which the connection got it, `None` before.
    pub(super) sent_at: Option<Duration>,
    /// Bytes of its data that were transferred.
    pub(super) moved: u32,
    /// Number of times that its data was damaged in transfer.
    pub(super) damaged: u8,
    /// Number of associations that were lost while it was in flight.
    pub(super) losses: u8,
}

impl Pending {
    pub(super) const fn changes(&self) -> bool {
        !matches!(self.request.op, Op::Read | Op::Flush)
    }

    /// Returns whether a power loss may revert it.
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
    pending: Option<Pending>,
}

pub(super) struct Slots {
    places: Vec<Place>,
    free: Vec<u16>,
    waiting: VecDeque<Pending>,
    /// Changes to send again. No other command is sent while one of them has no answer.
    resend: VecDeque<Pending>,
    unanswered: usize,
}

impl Slots {
    /// Creates slots for `depth` commands, at most 1,024.
    pub(super) fn new(depth: u16) -> Self {
        assert!(
            depth > 0 && depth <= 1 << PLACE_BITS,
            "a place's number fits"
        );
        Self {
            places: (0..depth).map(|_| Place::default()).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::with_capacity(depth.into()),
            resend: VecDeque::new(),
            unanswered: 0,
        }
    }

    pub(super) fn queue(&mut self, pending: Pending) {
        match pending.is_resent {
            true => self.resend.push_back(pending),
            false => self.waiting.push_back(pending),
        }
    }

    /// Queues these changes before all other requests. Those wait for the last answer to `resend`.
    pub(super) fn queue_resend(&mut self, resend: VecDeque<Pending>) {
        self.unanswered = resend.len();
        self.resend = resend;
    }

    pub(super) const fn resend_is_done(&self) -> bool {
        self.unanswered == 0
    }

    /// Notes the answer to a change that was sent again. Returns whether it was the last.
    pub(super) const fn answered(&mut self) -> bool {
        self.unanswered -= 1;
        self.unanswered == 0
    }

    /// Gives a free slot to the next queued request. Returns the command identifier.
    pub(super) fn seat(&mut self, now: Duration) -> Option<u16> {
        let queue = match self.unanswered {
            0 => &mut self.waiting,
            _ => &mut self.resend,
        };
        if queue.is_empty() {
            return None;
        }
        let index = self.free.pop()?;
        let mut pending = queue.pop_front()?;
        (pending.sent_at, pending.moved) = (Some(now), 0);
        let place = &mut self.places[usize::from(index)];
        place.turn = place.turn.wrapping_add(1);
        place.pending = Some(pending);
        Some(place.turn << PLACE_BITS | index)
    }

    fn place(&mut self, cid: u16) -> Option<&mut Place> {
        let index = usize::from(cid & ((1 << PLACE_BITS) - 1));
        let place = self.places.get_mut(index)?;
        (place.turn << PLACE_BITS == cid & !((1 << PLACE_BITS) - 1)).then_some(place)
    }

    /// Returns the command with this identifier.
    pub(super) fn get(&mut self, cid: u16) -> Option<&mut Pending> {
        self.place(cid)?.pending.as_mut()
    }

    /// Removes the command with this identifier, and frees its slot.
    pub(super) fn take(&mut self, cid: u16) -> Option<Pending> {
        let pending = self.place(cid)?.pending.take()?;
        self.free.push(cid & ((1 << PLACE_BITS) - 1));
        Some(pending)
    }

    /// Returns whether a pending request changes bytes of `range`.
    pub(super) fn changes(&self, range: &Range<u64>) -> bool {
        let placed = self
            .places
            .iter()
            .filter_map(|place| place.pending.as_ref());
        placed.chain(&self.waiting).any(|pending| {
            let (start, len) = (pending.request.offset, pending.request.len);
            pending.changes() && start < range.end && range.start < start + len
        })
    }

    /// Returns the send time of the oldest command in flight.
    pub(super) fn oldest(&self) -> Option<Duration> {
        let pending = self
            .places
            .iter()
            .filter_map(|place| place.pending.as_ref());
        pending.filter_map(|pending| pending.sent_at).min()
    }

    /// Moves all requests from their slots to the front of the queue, and drops the changes that
    /// were being sent again. Returns whether any of these requests changes the namespace.
    pub(super) fn unseat(&mut self) -> bool {
        let mut changes = false;
        self.resend.clear();
        self.unanswered = 0;
        for (index, place) in self.places.iter_mut().enumerate().rev() {
            if let Some(mut pending) = place.pending.take() {
                pending.losses = pending.losses.saturating_add(1);
                changes |= pending.changes();
                if !pending.is_resent {
                    self.waiting.push_front(pending);
                }
                self.free.push(u16::try_from(index).expect("at most 1,024"));
            }
        }
        changes
    }

    /// Removes the queued requests for which `which` holds, and returns them.
    pub(super) fn take_waiting(&mut self, which: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let (taken, left) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<Vec<_>, _>(|pending| which(pending));
        self.waiting.extend(left);
        taken
    }
}

#[cfg(test)]
mod tests {
    use forebay_block::completion_pair;

    use super::*;

    fn pending(request: Request) -> (Pending, forebay_block::IoFuture) {
        let (done, future) = completion_pair();
        let pending = Pending {
            request,
            done,
            before: 0,
            is_resent: false,
            sent_at: None,
            moved: 0,
            damaged: 0,
            losses: 0,
        };
        (pending, future)
    }

    #[test]
    fn a_late_answer_matches_no_request() {
        let mut slots = Slots::new(1);
        let mut futures = Vec::new();
        for at in 0..3 {
            let (pending, future) = pending(Request::discard(at * 512, 512));
            slots.queue(pending);
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
        // Changes that are sent again precede all others.
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
