//! Requests without an answer: queued ones, and those with a slot. The command identifier contains
//! the slot's number.
//!
//! A peer may carry out a change after the connection is lost. If the protocol cannot end that
//! change, its range is in *quarantine*: other changes of the range stay in the queue for a time.
//! The change itself may be sent a second time, since both copies have the same data.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Buf, Completion, Extents, Op, Request, completion_pair};

use super::fault::{self, Fault};

/// Bits of the slot's number in a command identifier. The other bits distinguish a late answer from
/// one to the current command of the slot.
const PLACE_BITS: u32 = 10;

/// A change that the peer may still carry out.
struct Quarantine {
    /// Number of the request; zero for a change that was being sent again.
    number: u64,
    range: Range<u64>,
    /// Time of the end.
    until: Duration,
}

/// A request without an answer.
pub(crate) struct Pending {
    pub(crate) request: Request,
    pub(crate) done: Completion,
    /// Number of the last acknowledged change at submission. A flush covers the changes up to this
    /// number.
    pub(crate) before: u64,
    /// Whether the change was acknowledged before and is sent again after a loss.
    pub(crate) is_resent: bool,
    /// Time at which the connection got it, `None` before.
    pub(crate) sent_at: Option<Duration>,
    /// Length of its data that was transferred, bytes.
    pub(crate) moved: u32,
    /// Number of times that its data was damaged in transfer.
    pub(crate) damaged: u8,
    /// Number of connections that were lost while it was in flight.
    pub(crate) losses: u8,
    /// First error number that the peer answered while more of the answer is to come; 0 for none.
    pub(crate) errno: u32,
    /// Place for the extents of the range, if they are asked for in place of its data.
    pub(crate) extents: Option<Rc<RefCell<Option<Extents>>>>,
    /// Number of the request among all of the device, from one; zero for a change that is sent
    /// again.
    number: u64,
}

impl Pending {
    /// Creates a request that was not sent yet. `before` is the number of the last acknowledged
    /// change.
    pub(crate) const fn new(request: Request, done: Completion, before: u64) -> Self {
        Self {
            request,
            done,
            before,
            is_resent: false,
            sent_at: None,
            moved: 0,
            damaged: 0,
            losses: 0,
            errno: 0,
            extents: None,
            number: 0,
        }
    }

    /// Creates a query for the extents of `range`, which changes nothing, as a read.
    pub(crate) fn query(
        range: &Range<u64>,
        extents: Rc<RefCell<Option<Extents>>>,
        done: Completion,
    ) -> Self {
        let request = Request {
            op: Op::Read,
            offset: range.start,
            len: range.end - range.start,
            buf: None,
        };
        Self {
            extents: Some(extents),
            ..Self::new(request, done, 0)
        }
    }

    /// Creates a change that was acknowledged before and is sent again after a loss.
    pub(super) fn resent(request: Request) -> Self {
        Self {
            is_resent: true,
            // No caller waits for this completion.
            ..Self::new(request, completion_pair().0, 0)
        }
    }

    /// Returns whether it changes data of the device.
    pub(crate) const fn is_change(&self) -> bool {
        !matches!(self.request.op, Op::Read | Op::Flush)
    }

    /// Returns whether a power loss may revert it.
    pub(crate) const fn is_volatile(&self) -> bool {
        match self.request.op {
            Op::Read | Op::Flush => false,
            Op::Write { fua } | Op::WriteZeroes { fua, .. } => !fua,
            Op::Discard => true,
        }
    }

    /// Returns whether a peer may take long for it: a flush, or a query for extents, which may look
    /// at the whole range.
    pub(crate) const fn is_long(&self) -> bool {
        matches!(self.request.op, Op::Flush) || self.extents.is_some()
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        let (start, len) = (self.request.offset, self.request.len);
        start < range.end && range.start < start + len
    }

    /// Describes the request in an error.
    pub(crate) fn in_words(&self) -> String {
        let op = match self.request.op {
            Op::Read if self.extents.is_some() => "a query for the extents",
            Op::Read => "a read",
            Op::Write { .. } => "a write",
            Op::Flush => "a flush",
            Op::Discard => "a discard",
            Op::WriteZeroes { .. } => "a write of zeroes",
        };
        let (len, offset) = (self.request.len, self.request.offset);
        format!("{op} of {len} bytes at byte {offset}")
    }

    pub(crate) const fn buf(&self) -> Option<&Buf> {
        self.request.buf.as_ref()
    }
}

#[derive(Default)]
struct Place {
    turn: u16,
    pending: Option<Pending>,
}

pub(crate) struct Slots {
    places: Vec<Place>,
    free: Vec<u16>,
    waiting: VecDeque<Pending>,
    /// Changes to send again. No other command is sent while one of them has no answer.
    resend: VecDeque<Pending>,
    unanswered: usize,
    quarantine: Vec<Quarantine>,
    /// Number of the last request.
    last: u64,
}

impl Slots {
    /// Creates slots for `depth` commands, at most 1,024.
    pub(crate) fn new(depth: u16) -> Self {
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
            quarantine: Vec::new(),
            last: 0,
        }
    }

    pub(crate) fn queue(&mut self, mut pending: Pending) {
        if pending.number == 0 && !pending.is_resent {
            self.last += 1;
            pending.number = self.last;
        }
        match pending.is_resent {
            true => self.resend.push_back(pending),
            false => self.waiting.push_back(pending),
        }
    }

    /// Queues these changes before all other requests. Those wait for the last answer to `resend`.
    pub(crate) fn queue_resend(&mut self, resend: VecDeque<Pending>) {
        self.unanswered = resend.len();
        self.resend = resend;
    }

    pub(crate) const fn resend_is_done(&self) -> bool {
        self.unanswered == 0
    }

    /// Notes the answer to a change that was sent again. Returns whether it was the last.
    pub(crate) const fn answered(&mut self) -> bool {
        self.unanswered -= 1;
        self.unanswered == 0
    }

    /// Gives a free slot to the next queued request. Returns the command identifier.
    pub(crate) fn assign_slot(&mut self, now: Duration) -> Option<u16> {
        let first = match self.unanswered {
            0 => self.first_released(now)?,
            // They have the data of changes in quarantine, or are overwritten by those.
            _ => 0,
        };
        let queue = match self.unanswered {
            0 => &mut self.waiting,
            _ if fault::has(Fault::ResendLate) && !self.waiting.is_empty() => &mut self.waiting,
            _ => &mut self.resend,
        };
        if queue.is_empty() {
            return None;
        }
        let index = self.free.pop()?;
        let mut pending = queue.remove(first)?;
        (pending.errno, pending.sent_at, pending.moved) = (0, Some(now), 0);
        if let Some(extents) = &pending.extents {
            extents.take();
        }
        let place = &mut self.places[usize::from(index)];
        place.turn = place.turn.wrapping_add(1);
        place.pending = Some(pending);
        Some(place.turn << PLACE_BITS | index)
    }

    /// Returns the position of the first queued request that no quarantine holds back.
    fn first_released(&mut self, now: Duration) -> Option<usize> {
        if self.quarantine.is_empty() || fault::has(Fault::NoQuarantine) {
            return Some(0);
        }
        self.quarantine.retain(|other| now < other.until);
        let held = |pending: &Pending| {
            let of_another = |other: &Quarantine| {
                other.number != pending.number && pending.overlaps(&other.range)
            };
            pending.is_change() && self.quarantine.iter().any(of_another)
        };
        self.waiting.iter().position(|pending| !held(pending))
    }

    /// Returns the time after `now` at which the next quarantine ends.
    pub(crate) fn next_release(&mut self, now: Duration) -> Option<Duration> {
        self.quarantine.retain(|other| now < other.until);
        self.quarantine.iter().map(|other| other.until).min()
    }

    /// Returns the number of the slot in a command identifier.
    pub(crate) const fn place_number(cid: u16) -> usize {
        (cid & ((1 << PLACE_BITS) - 1)) as usize
    }

    fn place(&mut self, cid: u16) -> Option<&mut Place> {
        let index = Self::place_number(cid);
        let place = self.places.get_mut(index)?;
        (place.turn << PLACE_BITS == cid & !((1 << PLACE_BITS) - 1)).then_some(place)
    }

    /// Returns the command with this identifier.
    pub(crate) fn get(&mut self, cid: u16) -> Option<&mut Pending> {
        self.place(cid)?.pending.as_mut()
    }

    /// Removes the command with this identifier, and frees its slot.
    pub(crate) fn take(&mut self, cid: u16) -> Option<Pending> {
        let pending = self.place(cid)?.pending.take()?;
        self.free.push(cid & ((1 << PLACE_BITS) - 1));
        Some(pending)
    }

    /// Returns whether a pending request changes bytes of `range`.
    pub(crate) fn has_change_in(&self, range: &Range<u64>) -> bool {
        let placed = self
            .places
            .iter()
            .filter_map(|place| place.pending.as_ref());
        let mut all = placed.chain(&self.waiting);
        all.any(|pending| pending.is_change() && pending.overlaps(range))
    }

    /// Returns the send time of the oldest command in flight.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.oldest_of(|_| true)
    }

    /// Returns the send time of the oldest command in flight for which `which` holds.
    pub(crate) fn oldest_of(&self, which: impl Fn(&Pending) -> bool) -> Option<Duration> {
        let pending = self
            .places
            .iter()
            .filter_map(|place| place.pending.as_ref());
        pending
            .filter(|pending| which(pending))
            .filter_map(|pending| pending.sent_at)
            .min()
    }

    /// Moves all requests from their slots to the front of the queue, and drops the changes that
    /// were being sent again. Returns whether any of these requests changes the device.
    /// The ranges of these changes are in quarantine until `until`, if there is such a time.
    pub(crate) fn requeue_all(&mut self, until: Option<Duration>) -> bool {
        let mut changes = false;
        self.resend.clear();
        self.unanswered = 0;
        for (index, place) in self.places.iter_mut().enumerate().rev() {
            if let Some(mut pending) = place.pending.take() {
                pending.losses = pending.losses.saturating_add(1);
                changes |= pending.is_change();
                let is_safe = pending.is_resent && fault::has(Fault::NoQuarantineOfResend);
                if let Some(until) = until.filter(|_| pending.is_change() && !is_safe) {
                    set_aside(&mut self.quarantine, &pending, until);
                }
                if !pending.is_resent {
                    self.waiting.push_front(pending);
                }
                self.free.push(u16::try_from(index).expect("at most 1,024"));
            }
        }
        changes
    }

    /// Removes the queued requests for which `which` holds, and returns them.
    pub(crate) fn take_waiting(&mut self, which: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let (taken, left) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<Vec<_>, _>(|pending| which(pending));
        self.waiting.extend(left);
        taken
    }
}

/// Puts the range of an unanswered change in quarantine.
fn set_aside(quarantine: &mut Vec<Quarantine>, pending: &Pending, until: Duration) {
    let number = pending.number;
    let range = pending.request.offset..pending.request.offset + pending.request.len;
    let known = quarantine
        .iter_mut()
        .find(|other| other.number == number && other.range == range);
    match known {
        Some(known) => known.until = until,
        None => quarantine.push(Quarantine {
            number,
            range,
            until,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(request: Request) -> (Pending, forebay_block::IoFuture) {
        let (done, future) = completion_pair();
        (Pending::new(request, done, 0), future)
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
        let first = slots.assign_slot(now).expect("a place");
        assert_eq!(slots.assign_slot(now), None, "there is one place");
        assert_eq!(slots.oldest(), Some(now));
        let taken = slots.take(first).expect("it is there");
        taken.done.complete(Ok(()));
        let second = slots.assign_slot(now).expect("a place");
        assert_ne!(first, second);
        assert!(slots.take(first).is_none(), "its place is another's");
        assert!(slots.get(second + 1).is_none(), "no such place");
        // Changes that are sent again precede all others.
        assert!(slots.requeue_all(None));
        for at in 1..3 {
            let cid = slots.assign_slot(now).expect("a place");
            let taken = slots.take(cid).expect("it is there");
            assert_eq!(taken.request.offset, at * 512);
            taken.done.complete(Ok(()));
        }
        assert_eq!(slots.oldest(), None);
    }
}
