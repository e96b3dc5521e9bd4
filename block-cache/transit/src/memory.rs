//! The memory of the slots, which may outlive the process. It has a page that identifies it, a
//! header for each slot, and the data (docs/internals/format/transit-slots.md has the bytes).
//!
//! A slot's header is two words: the block and the version. The version is zero while the slot
//! holds nothing that counts. Data and block are stored before the version, in one 8-byte store.
//! The version of a slot is cleared before the slot is rewritten. So whenever the process ends, a
//! header with a version has whole data. Of two slots with one block the higher version counts. The
//! version's highest bit says that a request which would supersede the slot is at the device.

mod page;
mod remains;

use std::ops::Range;

use forebay_block::{Buf, Error, ErrorKind, Result};

use crate::owner::{Owner, is_replaced};
use page::{
    AT_BIRTH, AT_BLOCK_BYTES, AT_BOOT, AT_DEVICE, AT_GENERATION, AT_INSTANCE, AT_MAGIC, AT_NEXT,
    AT_POISON, AT_SIZE, AT_SLOTS, AT_START, HELD, MAGIC, PAGE_BYTES, data_at, get, set, slots_in,
};
use remains::damage_error;

pub use page::{AT_CUT, HEADER_BYTES, memory_bytes};
pub(crate) use remains::{Found, Left};
pub use remains::{cut_at, generations_left, is_earlier, size_left, slots_left, was_used};

/// Required properties of the memory.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// The owner.
    pub(crate) owner: Owner,
    /// Blocks that the device has.
    pub(crate) blocks: u64,
    /// A process of this boot used it and did not close it.
    pub(crate) in_use: bool,
    /// Slots that cannot be what that one left are given up.
    pub(crate) accept_damage: bool,
    /// The generation that counts: slots of an earlier one are older than what the device was sent
    /// since. Zero: unknown.
    pub(crate) generation: u64,
    /// The generation that this opening is going to take.
    pub(crate) next: u64,
}

/// The memory of an open cache.
#[derive(Debug)]
pub(crate) struct Memory {
    buf: Buf,
    slots: usize,
    data_at: usize,
    block_bytes: usize,
}

impl Memory {
    /// Takes the memory over. State that an earlier process of this boot left of this device stays.
    /// Anything else is forgotten.
    ///
    /// # Errors
    /// `InvalidInput` if it has no room for two slots. `Busy` if an earlier process left
    /// acknowledged writes of another device, or of one with other blocks. `Lost` if it is not the
    /// memory that the process had. `Corrupt` if it was truncated, or if its slots are in a state
    /// that a process cannot leave. The memory is unchanged after an error.
    pub(crate) fn open(buf: Buf, expected: &Expected) -> Result<(Self, Left)> {
        let owner = expected.owner;
        let block_bytes = owner.block_bytes as usize;
        let slots = slots_in(buf.len(), block_bytes);
        if slots < 2 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "{} bytes hold less than two blocks of {block_bytes} bytes with their headers\n\
                     help: use a larger `capacity`",
                    buf.len()
                ),
            ));
        }
        let memory = Self {
            slots,
            data_at: data_at(slots),
            block_bytes,
            buf,
        };
        let had = get(&memory.buf, AT_SLOTS);
        let found = memory.owner();
        let same_device = found.is_some_and(|found| {
            found.device.agrees_with(owner.device)
                && !is_replaced(
                    found.device,
                    found.device_bytes,
                    owner.device,
                    owner.device_bytes,
                )
                && (found.boot_id, found.block_bytes) == (owner.boot_id, owner.block_bytes)
        });
        let ours = same_device && had == slots as u64;
        if same_device && let Some(cut) = memory.cut(had) {
            if !expected.accept_damage {
                let what = format!(
                    "its slots were truncated: ACKNOWLEDGED WRITES MAY BE LOST\n\
                     help: put a sound copy of the file back; none was written back: {cut}"
                );
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
            memory.begin(owner);
            let left = Left {
                damaged: vec![cut],
                ..Left::default()
            };
            return Ok((memory, left));
        }
        if !ours && found.is_some_and(|found| found.boot_id == owner.boot_id) {
            memory.refuse_if_live()?;
        }
        if ours && is_earlier(memory.generations(), expected.generation) && memory.count_live() > 0
        {
            let [generation, _] = memory.generations();
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "its slots are older than data that the device was sent\n\
                     help: put the newest slots back; these are of opening {generation}, and the \
                     last opening was {}; none was written back",
                    expected.generation
                ),
            ));
        }
        if expected.in_use && !ours {
            return Err(Error::new(
                ErrorKind::Lost,
                "a process that used it died: ACKNOWLEDGED WRITES ARE LOST\n\
                 help: restore its slots; their data was not written to the device",
            ));
        }
        let left = match ours {
            true => memory.read_remains(slots, expected.blocks),
            false => Left::default(),
        };
        if !left.damaged.is_empty() && !expected.accept_damage {
            return Err(damage_error(&left));
        }
        match left.slots.is_empty() {
            true => {
                memory.begin(owner);
                set(&memory.buf, AT_GENERATION, expected.generation);
            }
            false => memory.retire_others(&left.slots),
        }
        // It may have grown, or an earlier version did not record them.
        set(&memory.buf, AT_INSTANCE, owner.device.instance);
        set(&memory.buf, AT_SIZE, owner.device_bytes);
        // The truncated part no longer counts.
        set(&memory.buf, AT_CUT, 0);
        set(&memory.buf, AT_NEXT, expected.next);
        Ok((memory, left))
    }

    /// Returns a message that the memory is shorter than it was for `had` slots, with the data that
    /// may be lost. `None` if nothing is lost.
    fn cut(&self, had: u64) -> Option<String> {
        if had <= self.slots as u64 {
            return None;
        }
        let headers = usize::try_from(had).ok()?.checked_mul(HEADER_BYTES)?;
        let blocks = match headers <= self.buf.len() - PAGE_BYTES {
            true => match self.count_live() {
                0 => return None,
                live => live.to_string(),
            },
            false => "an unknown number".to_owned(),
        };
        Some(format!(
            "it was truncated: of {had} slots of {} bytes, {} bytes are left, and ACKNOWLEDGED \
             BLOCKS ({blocks}) MAY BE LOST",
            self.block_bytes,
            self.buf.len()
        ))
    }

    fn refuse_if_live(&self) -> Result<()> {
        match self.count_live() {
            0 => Ok(()),
            live => Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "the memory holds {live} acknowledged blocks of another device, or of one that \
                     has changed\n\
                     help: open that device first, choose another place, or remove the memory if \
                     that device is gone"
                ),
            )),
        }
    }

    fn begin(&self, owner: Owner) {
        set(&self.buf, AT_MAGIC, 0);
        for slot in 0..self.slots as u32 {
            self.retire(slot);
        }
        set(&self.buf, AT_DEVICE, owner.device.medium);
        set(&self.buf, AT_BIRTH, owner.device.birth);
        let start = owner.device.start;
        let start = start.map_or(0, |start| start.saturating_add(1));
        set(&self.buf, AT_START, start);
        set(&self.buf, AT_INSTANCE, owner.device.instance);
        set(&self.buf, AT_SIZE, owner.device_bytes);
        self.buf.copy_from(AT_BOOT, &owner.boot_id);
        set(&self.buf, AT_BLOCK_BYTES, owner.block_bytes.into());
        set(&self.buf, AT_SLOTS, self.slots as u64);
        set(&self.buf, AT_POISON, 0);
        set(&self.buf, AT_GENERATION, 0);
        set(&self.buf, AT_NEXT, 0);
        set(&self.buf, AT_CUT, 0);
        set(&self.buf, AT_MAGIC, MAGIC);
    }

    /// Notes the size of the device, which has grown.
    pub(crate) fn note_size(&self, device_bytes: u64) {
        set(&self.buf, AT_SIZE, device_bytes);
    }

    /// Takes the next generation, which is noted elsewhere by now.
    pub(crate) fn take_generation(&self) {
        set(&self.buf, AT_GENERATION, get(&self.buf, AT_NEXT));
        set(&self.buf, AT_NEXT, 0);
    }

    pub(crate) const fn slots(&self) -> usize {
        self.slots
    }

    /// Retires every slot but `counted`.
    fn retire_others(&self, counted: &[Found]) {
        let mut counts = vec![false; self.slots];
        for found in counted {
            counts[found.slot as usize] = true;
        }
        let others = (0..).zip(counts).filter(|(_, counts)| !counts);
        others.for_each(|(slot, _)| self.retire(slot));
    }

    /// The data of a slot.
    pub(crate) fn data(&self, slot: u32) -> Buf {
        self.buf.slice(self.data_range(slot))
    }

    /// The slot's data is whole, and counts from here on.
    pub(crate) fn publish(&self, slot: u32, block: u64, version: u64) {
        let at = Self::header_at(slot);
        set(&self.buf, at, block);
        set(&self.buf, at + 8, version);
    }

    /// Says that a request which would supersede the slot is at the device, or that it is not any
    /// more.
    pub(crate) fn hold(&self, slot: u32, held: bool) {
        let at = Self::header_at(slot) + 8;
        let version = get(&self.buf, at) & !HELD;
        set(&self.buf, at, version | if held { HELD } else { 0 });
    }

    /// The slot holds nothing that counts.
    pub(crate) fn retire(&self, slot: u32) {
        set(&self.buf, Self::header_at(slot) + 8, 0);
    }

    /// Records for the next process whether a flush of the device has failed.
    pub(crate) fn set_poisoned(&self, is_poisoned: bool) {
        set(&self.buf, AT_POISON, u64::from(is_poisoned));
    }

    const fn header_at(slot: u32) -> usize {
        PAGE_BYTES + slot as usize * HEADER_BYTES
    }

    const fn data_range(&self, slot: u32) -> Range<usize> {
        let at = self.data_at + slot as usize * self.block_bytes;
        at..at + self.block_bytes
    }
}
