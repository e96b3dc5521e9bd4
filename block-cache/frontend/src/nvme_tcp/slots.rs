//! The commands of a queue that are in flight, and the data that they wait for.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

use forebay_block::Buf;
use forebay_wire::nvme_tcp::{DataHeader, Fatal, Fault};

/// What a command that waited is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All its data is here.
    Ready,
    /// All its data is here, and some of it is not what its digest says.
    Damaged,
    /// The host has given it up.
    Aborted,
    /// The connection is gone: nobody is to be answered.
    Lost,
    /// Something has happened that the host wants to know.
    Event(u64),
}

/// What a command does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing can stop it.
    Running,
    /// It waits for memory or data: it may be aborted.
    Waiting,
    /// It is an asynchronous event request, which waits for ever.
    Idle,
}

struct Slot {
    cid: Option<u16>,
    /// Tells the commands of one slot apart.
    number: u64,
    stage: Stage,
    verdict: Option<Verdict>,
    waker: Option<Waker>,
    transfer: Option<Transfer>,
}

/// Data on its way from the host: asked for as a whole, by one R2T; it arrives in order.
struct Transfer {
    buf: Buf,
    received: u32,
    damaged: bool,
}

/// The commands in flight on one connection.
pub(super) struct Slots {
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u16>>,
    number: Cell<u64>,
    lost: Cell<bool>,
}

/// Why a command gets no slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoSlot {
    /// Its identifier is that of one in flight.
    Conflict,
    /// More are in flight than the queue has entries.
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

    /// A slot for a command.
    pub(super) fn take(&self, cid: u16) -> Result<u16, NoSlot> {
        let mut slots = self.slots.borrow_mut();
        if slots.iter().any(|slot| slot.cid == Some(cid)) {
            return Err(NoSlot::Conflict);
        }
        let index = self.free.borrow_mut().pop().ok_or(NoSlot::Full)?;
        self.number.set(self.number.get() + 1);
        let slot = &mut slots[usize::from(index)];
        slot.cid = Some(cid);
        slot.number = self.number.get();
        slot.stage = Stage::Running;
        slot.verdict = self.lost.get().then_some(Verdict::Lost);
        Ok(index)
    }

    /// The command in a slot has ended.
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

    /// The command may be aborted until [`Slots::resume`].
    pub(super) fn pause(&self, index: u16) {
        self.with(index, |slot| slot.stage = Stage::Waiting);
    }

    /// The command goes on, and cannot be aborted any more; unless it was meanwhile, or the connection is gone.
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

    /// Expects data for `buf`, which an R2T asks for with the slot's index as its tag.
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
            // One that was aborted still waits for the data that the host may be sending.
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

    /// Where the data of a PDU belongs.
    ///
    /// # Errors
    /// What is wrong with its header.
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

    /// The data of a PDU has arrived, as its digest says or not.
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

    /// Aborts a command that can be. One whose data is asked for keeps its slot until that has come, since the
    /// host may be sending it.
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

    /// Tells the oldest event request of something; whether there was one.
    pub(super) fn tell(&self, event: u64) -> bool {
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

    /// How many event requests wait.
    pub(super) fn idle(&self) -> usize {
        let slots = self.slots.borrow();
        let idle = |slot: &&Slot| slot.cid.is_some() && slot.stage == Stage::Idle;
        slots.iter().filter(idle).count()
    }

    /// The connection is gone: whoever waits is told, now and later.
    pub(super) fn lose(&self) {
        self.lost.set(true);
        let mut wakers = Vec::new();
        for slot in self.slots.borrow_mut().iter_mut() {
            if slot.cid.is_some() && slot.verdict != Some(Verdict::Aborted) {
                slot.verdict = Some(Verdict::Lost);
            }
            // Nothing comes any more.
            slot.transfer = None;
            wakers.extend(slot.waker.take());
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The commands in flight now, event requests apart.
    pub(super) fn in_flight(&self) -> Vec<u64> {
        let slots = self.slots.borrow();
        let busy = |slot: &&Slot| slot.cid.is_some() && slot.stage != Stage::Idle;
        slots.iter().filter(busy).map(|slot| slot.number).collect()
    }
}
