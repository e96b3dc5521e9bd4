//! Commands of a queue in flight, and the data transfers that they wait for.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

use forebay_block::Buf;
use forebay_wire::nvme_tcp::{DataHeader, Fatal, Fault};

/// Result of a command's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All data has arrived.
    Ready,
    /// All data has arrived, but a digest does not match.
    Damaged,
    /// The host has aborted it.
    Aborted,
    /// The connection is gone: no answer is sent.
    Lost,
    /// An event occurred that the host has enabled.
    Event(u64),
    /// The host has given its identifier to another command: no answer is sent.
    Displaced,
}

/// State of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It cannot be aborted.
    Running,
    /// It waits for memory or data, and may be aborted.
    Waiting,
    /// It is an asynchronous event request, which waits without limit.
    Idle,
}

struct Slot {
    cid: Option<u16>,
    /// Distinguishes the commands of one slot.
    number: u64,
    stage: Stage,
    verdict: Option<Verdict>,
    waker: Option<Waker>,
    transfer: Option<Transfer>,
}

/// Data in flight from the host: one R2T requests all of it, and it arrives in order.
struct Transfer {
    buf: Buf,
    received: u32,
    damaged: bool,
}

/// Commands in flight on one connection.
pub(super) struct Slots {
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u16>>,
    number: Cell<u64>,
    lost: Cell<bool>,
}

/// Reason why a command gets no slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoSlot {
    /// A command in flight has the same identifier.
    Conflict,
    /// The queue has as many commands in flight as entries.
    Full,
}

impl Slots {
    pub(super) fn new(count: u16) -> Self {
        let slot = || Slot {
            cid: None,
            number: 0,
            stage: Stage::Running,
            verdict: None,
            waker: None,
            transfer: None,
        };
        Self {
            slots: RefCell::new((0..count).map(|_| slot()).collect()),
            free: RefCell::new((0..count).rev().collect()),
            number: Cell::new(0),
            lost: Cell::new(false),
        }
    }

    /// Takes a slot for a command. It displaces a waiting event request with the same identifier.
    /// Hosts that shut down reuse the identifiers of such requests, and expect no answer to them.
    pub(super) fn take(&self, cid: u16) -> Result<u16, NoSlot> {
        let mut slots = self.slots.borrow_mut();
        let holder = slots.iter_mut().find(|slot| slot.cid == Some(cid));
        let mut free = self.free.borrow_mut();
        let (index, displaced) = match (holder, free.pop()) {
            (None, Some(index)) => (index, None),
            (None, None) => return Err(NoSlot::Full),
            (Some(holder), Some(index))
                if holder.stage == Stage::Idle && holder.verdict.is_none() =>
            {
                holder.cid = None;
                holder.verdict = Some(Verdict::Displaced);
                (index, holder.waker.take())
            }
            (Some(_), index) => {
                free.extend(index);
                return Err(NoSlot::Conflict);
            }
        };
        drop(free);
        self.number.set(self.number.get() + 1);
        let slot = &mut slots[usize::from(index)];
        slot.cid = Some(cid);
        slot.number = self.number.get();
        slot.stage = Stage::Running;
        slot.verdict = self.lost.get().then_some(Verdict::Lost);
        drop(slots);
        if let Some(displaced) = displaced {
            displaced.wake();
        }
        Ok(index)
    }

    /// Frees the slot of a command that has ended.
    pub(super) fn give_back(&self, index: u16) {
        let mut slots = self.slots.borrow_mut();
        let slot = &mut slots[usize::from(index)];
        slot.cid = None;
        slot.transfer = None;
        slot.waker = None;
        self.free.borrow_mut().push(index);
    }

    fn with<T>(&self, index: u16, f: impl FnOnce(&mut Slot) -> T) -> T {
        f(&mut self.slots.borrow_mut()[usize::from(index)])
    }

    /// Lets the command be aborted until [`Slots::resume`].
    pub(super) fn pause(&self, index: u16) {
        self.with(index, |slot| slot.stage = Stage::Waiting);
    }

    /// Continues the command, which cannot be aborted any more. Fails if it was aborted meanwhile
    /// or the connection is gone.
    pub(super) fn resume(&self, index: u16) -> Result<(), Verdict> {
        self.with(index, |slot| match slot.verdict {
            Some(verdict @ (Verdict::Aborted | Verdict::Lost)) => Err(verdict),
            _ => {
                slot.stage = Stage::Running;
                slot.verdict = None;
                Ok(())
            }
        })
    }

    /// Expects data for `buf`, for which an R2T has the slot's index as its tag.
    pub(super) fn expect(&self, index: u16, buf: Buf) {
        self.with(index, |slot| {
            slot.transfer = Some(Transfer {
                buf,
                received: 0,
                damaged: false,
            });
        });
    }

    /// Waits for the verdict on a command.
    pub(super) async fn verdict(&self, index: u16) -> Verdict {
        poll_fn(|cx| {
            // An aborted command still waits for data that the host may be sending.
            self.with(index, |slot| match slot.verdict {
                Some(verdict) if slot.transfer.is_none() => Poll::Ready(verdict),
                _ => {
                    slot.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            })
        })
        .await
    }

    /// Waits for an event.
    pub(super) async fn event(&self, index: u16) -> Verdict {
        self.with(index, |slot| slot.stage = Stage::Idle);
        self.verdict(index).await
    }

    /// Returns the buffer for the data of a PDU.
    ///
    /// # Errors
    /// The fault of its header.
    pub(super) fn place(&self, header: &DataHeader, last: bool) -> Result<Buf, Fault> {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(usize::from(header.tag));
        let Some((cid, transfer)) = slot.and_then(|slot| slot.cid.zip(slot.transfer.as_mut()))
        else {
            return Err(Fault::field(DataHeader::TAG_AT));
        };
        if cid != header.cid {
            return Err(Fault::field(DataHeader::CID_AT));
        }
        let total = u32::try_from(transfer.buf.len()).expect("at most the largest transfer");
        let end = header.offset.checked_add(header.length);
        let Some(end) = end.filter(|end| header.offset == transfer.received && *end <= total)
        else {
            return Err(Fault::plain(Fatal::OutOfRange));
        };
        if last != (end == total) {
            // Byte 1: the flags.
            return Err(Fault::field(1));
        }
        let range = header.offset as usize..end as usize;
        Ok(transfer.buf.slice(range))
    }

    /// Notes that the data of a PDU has arrived, and whether its digest matches.
    pub(super) fn arrived(&self, header: &DataHeader, sound: bool) {
        let waker = self.with(header.tag, |slot| {
            let transfer = slot.transfer.as_mut()?;
            transfer.received += header.length;
            transfer.damaged |= !sound;
            if (transfer.received as usize) < transfer.buf.len() {
                return None;
            }
            let verdict = match transfer.damaged {
                true => Verdict::Damaged,
                false => Verdict::Ready,
            };
            slot.transfer = None;
            slot.verdict.get_or_insert(verdict);
            slot.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Aborts a command if possible. A command with an R2T keeps its slot until its data has
    /// arrived, since the host may be sending it.
    pub(super) fn abort(&self, cid: u16) -> bool {
        let mut slots = self.slots.borrow_mut();
        let found = slots.iter_mut().find(|slot| slot.cid == Some(cid));
        let Some(slot) = found.filter(|slot| slot.stage != Stage::Running) else {
            return false;
        };
        if slot.verdict.is_some() {
            return false;
        }
        slot.verdict = Some(Verdict::Aborted);
        let waker = match slot.transfer {
            Some(_) => None,
            None => slot.waker.take(),
        };
        drop(slots);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Completes the oldest event request with an event. Returns whether there was one.
    pub(super) fn complete_event(&self, event: u64) -> bool {
        let mut slots = self.slots.borrow_mut();
        let idle = |slot: &&mut Slot| {
            slot.cid.is_some() && slot.stage == Stage::Idle && slot.verdict.is_none()
        };
        let Some(slot) = slots.iter_mut().filter(idle).min_by_key(|slot| slot.number) else {
            return false;
        };
        slot.verdict = Some(Verdict::Event(event));
        let waker = slot.waker.take();
        drop(slots);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Returns the number of waiting event requests.
    pub(super) fn idle(&self) -> usize {
        let slots = self.slots.borrow();
        let idle = |slot: &&Slot| slot.cid.is_some() && slot.stage == Stage::Idle;
        slots.iter().filter(idle).count()
    }

    /// Marks the connection as gone. All current and later waits end.
    pub(super) fn lose(&self) {
        self.lost.set(true);
        let mut wakers = Vec::new();
        for slot in self.slots.borrow_mut().iter_mut() {
            if slot.cid.is_some() && slot.verdict != Some(Verdict::Aborted) {
                slot.verdict = Some(Verdict::Lost);
            }
            // No more data arrives.
            slot.transfer = None;
            wakers.extend(slot.waker.take());
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns the commands in flight, without event requests.
    pub(super) fn in_flight(&self) -> Vec<u64> {
        let slots = self.slots.borrow();
        let busy = |slot: &&Slot| slot.cid.is_some() && slot.stage != Stage::Idle;
        slots.iter().filter(busy).map(|slot| slot.number).collect()
    }
}
