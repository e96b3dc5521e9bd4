//! The memory of the slots, which may outlive the process. It has a page that identifies it, a
//! header for each slot, and the data (docs/internals/format/transit-slots.md has the bytes).
//!
//! A slot's header is two words: the block and the version. The version is zero while the slot
//! holds nothing that counts. Data and block are stored before the version, in one 8-byte store.
//! The version of a slot is cleared before the slot is rewritten. So whenever the process ends, a
//! header with a version has whole data. Of two slots with one block the higher version counts. The
//! version's highest bit says that a request which would supersede the slot is at the device.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_block::{Buf, Error, ErrorKind, Identity, Result};

use crate::owner::{Owner, SlotsLeft, is_replaced};

const MAGIC: u64 = u64::from_le_bytes(*b"FBTRNS01");
const AT_MAGIC: usize = 0;
const AT_DEVICE: usize = 8;
const AT_BOOT: usize = 16;
const AT_BLOCK_BYTES: usize = 32;
const AT_SLOTS: usize = 40;
const AT_POISON: usize = 48;
const AT_BIRTH: usize = 56;
const AT_GENERATION: usize = 64;
const AT_NEXT: usize = 72;
/// Byte of the memory that says where its file was cut, bytes; zero: it was not.
pub const AT_CUT: usize = 80;
const AT_START: usize = 88;
const AT_INSTANCE: usize = 96;
const AT_SIZE: usize = 104;
const PAGE_BYTES: usize = 4096;
/// Length of a slot's header, bytes.
pub const HEADER_BYTES: usize = 16;

/// Required properties of the memory.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// Whose it is.
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

/// In a version: a request that would supersede the slot is at the device.
const HELD: u64 = 1 << 63;
/// No process counts that far.
const NO_VERSION: u64 = 1 << 56;
/// Damaged slots that an error names.
const NAMED: usize = 8;

/// A slot that an earlier process left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) slot: u32,
    pub(crate) block: u64,
    pub(crate) version: u64,
    /// The device may have something newer, which was never acknowledged.
    pub(crate) held: bool,
}

/// State that an earlier process left.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// In order of version; one for each block.
    pub(crate) slots: Vec<Found>,
    /// A flush of the device had failed.
    pub(crate) poisoned: bool,
    /// Slots that no process can have left like that, in words.
    pub(crate) damaged: Vec<String>,
}

/// The memory of an open cache.
#[derive(Debug)]
pub(crate) struct Memory {
    buf: Buf,
    slots: usize,
    data_at: usize,
    block_bytes: usize,
}

fn atomic(buf: &Buf, at: usize) -> &AtomicU64 {
    debug_assert!(at.is_multiple_of(8) && at + 8 <= buf.len());
    // SAFETY: in bounds and aligned (buffers are page-aligned); the memory lives as long as `buf`,
    // and this process reaches these words only through atomics.
    unsafe { AtomicU64::from_ptr(buf.as_ptr().add(at).cast()) }
}

fn get(buf: &Buf, at: usize) -> u64 {
    atomic(buf, at).load(Ordering::Acquire)
}

fn set(buf: &Buf, at: usize, value: u64) {
    atomic(buf, at).store(value, Ordering::Release);
}

const fn data_at(slots: usize) -> usize {
    (PAGE_BYTES + slots * HEADER_BYTES).next_multiple_of(PAGE_BYTES)
}

/// Returns what a process of this boot left in a memory, or in the memory that begins with this
/// page, with no blocks then. None if it is no such memory.
#[must_use]
pub fn slots_left(buf: &Buf, boot_id: &[u8; 16]) -> Option<SlotsLeft> {
    let memory = whose(buf, boot_id)?;
    let owner = memory.owner()?;
    Some(SlotsLeft {
        device: owner.device,
        device_bytes: owner.device_bytes,
        blocks: memory.live(),
    })
}

/// Whether a process of this boot used a memory, whatever the device.
#[must_use]
pub fn was_used(buf: &Buf, boot_id: &[u8; 16]) -> bool {
    whose(buf, boot_id).is_some()
}

/// Returns the generations of the slots that a process of this boot left, if any of them holds
/// data. The first is that of its opening. The second is the one that the next opening was about to
/// take, or zero.
#[must_use]
pub fn generations_left(buf: &Buf, boot_id: &[u8; 16]) -> Option<[u64; 2]> {
    let memory = whose(buf, boot_id)?;
    (memory.live() > 0).then(|| memory.generations())
}

/// Returns whether slots with these generations, of [`generations_left`], are older than the
/// generation `counts`. An unknown generation counts as current.
#[must_use]
pub fn is_earlier(generations: [u64; 2], counts: u64) -> bool {
    generations.iter().all(|generation| *generation < counts) && generations[0] != 0
}

/// Returns the number of slots and the size of a block, in bytes, of the memory that begins with
/// this page. `None` unless a process of this boot began it. This detects a truncated file.
#[must_use]
pub fn size_left(first_page: &[u8], boot_id: &[u8; 16]) -> Option<(usize, u32)> {
    let buf = Buf::copied(first_page);
    let memory = whose(&buf, boot_id)?;
    let slots = usize::try_from(get(&memory.buf, AT_SLOTS)).ok()?;
    let block_bytes = memory.owner()?.block_bytes;
    // Damaged values give no size.
    let bytes = slots.checked_mul(block_bytes as usize + HEADER_BYTES)?;
    (bytes < 1 << 46 && block_bytes.is_power_of_two()).then_some((slots, block_bytes))
}

/// Returns the offset at which the file of a memory with this first page and these headers was
/// truncated, in bytes: the start of the first hole in `gone` that overlaps data that counted. That
/// range must not have been touched since.
#[must_use]
pub fn cut_at(first_page: &[u8], headers: &[u8], gone: &[Range<u64>]) -> Option<u64> {
    let word = |bytes: &[u8], at: usize| {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
    };
    let slots = usize::try_from(word(first_page, AT_SLOTS)).ok()?;
    let block_bytes = usize::try_from(word(first_page, AT_BLOCK_BYTES)).ok()?;
    let first_gone = |range: Range<usize>| {
        let (start, end) = (range.start as u64, range.end as u64);
        let touched = gone
            .iter()
            .filter(|hole| hole.start < end && start < hole.end);
        touched.map(|hole| hole.start.max(start)).min()
    };
    let in_use = (0..slots.min(headers.len() / HEADER_BYTES))
        .filter(|slot| word(headers, slot * HEADER_BYTES + 8) != 0);
    let data = in_use.filter_map(|slot| {
        let at = data_at(slots) + slot * block_bytes;
        first_gone(at..at + block_bytes).map(|_| at as u64)
    });
    let cut = data.chain(first_gone(PAGE_BYTES..PAGE_BYTES + slots * HEADER_BYTES));
    cut.min().map(|at| at.max(1))
}

/// The memory, if a process of this boot used it.
fn whose(buf: &Buf, boot_id: &[u8; 16]) -> Option<Memory> {
    if buf.len() < PAGE_BYTES {
        return None;
    }
    let memory = Memory {
        slots: 0,
        data_at: 0,
        block_bytes: 0,
        buf: buf.clone(),
    };
    let owner = memory.owner()?;
    (owner.boot_id == *boot_id).then_some(memory)
}

/// Slots of which at most one can be what it says.
fn listed(found: &[Found], what: &str) -> String {
    let each = found.iter().map(|found| {
        let Found {
            slot,
            block,
            version,
            ..
        } = found;
        format!("slot {slot}: block {block} in version {version}")
    });
    let each: Vec<_> = each.collect();
    format!("{} ({what})", each.join(", "))
}

fn damage(left: &Left) -> Error {
    let named: Vec<_> = left.damaged.iter().take(NAMED).cloned().collect();
    let more = match left.damaged.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "slots are damaged: no process can have left {}{more}; acknowledged writes in them cannot be told from what \
             they are not, and nothing was sent on",
            named.join("; ")
        ),
    )
}

/// How many slots fit.
const fn slots_in(len: usize, block_bytes: usize) -> usize {
    let mut slots = len.saturating_sub(PAGE_BYTES) / (block_bytes + HEADER_BYTES);
    while slots > 0 && data_at(slots) + slots * block_bytes > len {
        slots -= 1;
    }
    slots
}

/// Memory that `slots` slots of `block_bytes` need, bytes.
#[must_use]
pub const fn memory_bytes(slots: usize, block_bytes: u32) -> usize {
    data_at(slots) + slots * block_bytes as usize
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
                    "{} bytes hold less than two blocks of {block_bytes} bytes with their headers: use a \
                     larger `capacity`",
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
                let what = format!("{cut}; nothing was sent on");
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
        if ours && is_earlier(memory.generations(), expected.generation) && memory.live() > 0 {
            let [generation, _] = memory.generations();
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "its slots are of an earlier time (opening {generation}; the last one was {}): what they hold is older \
                     than what the device was sent since, and nothing was sent on",
                    expected.generation
                ),
            ));
        }
        if expected.in_use && !ours {
            return Err(Error::new(
                ErrorKind::Lost,
                "a process that used it died, and what it had acknowledged and not written to the device is \
                 not here any more",
            ));
        }
        let left = match ours {
            true => memory.left(slots, expected.blocks),
            false => Left::default(),
        };
        if !left.damaged.is_empty() && !expected.accept_damage {
            return Err(damage(&left));
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
            true => match self.live() {
                0 => return None,
                live => live.to_string(),
            },
            false => "nobody knows how many".to_owned(),
        };
        Some(format!(
            "it was cut: of memory for {had} slots of {} bytes, {} bytes are there, and acknowledged blocks ({blocks}) \
             were in those slots",
            self.block_bytes,
            self.buf.len()
        ))
    }

    /// Whose it is; none if it is not of this kind, or was not begun wholly.
    fn owner(&self) -> Option<Owner> {
        if get(&self.buf, AT_MAGIC) != MAGIC {
            return None;
        }
        let mut boot_id = [0; 16];
        self.buf.copy_to(AT_BOOT, &mut boot_id);
        Some(Owner {
            device: Identity {
                medium: get(&self.buf, AT_DEVICE),
                birth: get(&self.buf, AT_BIRTH),
                // One more than the first byte; zero in the memory of an earlier version.
                start: get(&self.buf, AT_START).checked_sub(1),
                instance: get(&self.buf, AT_INSTANCE),
                ..Identity::default()
            },
            device_bytes: get(&self.buf, AT_SIZE),
            boot_id,
            block_bytes: u32::try_from(get(&self.buf, AT_BLOCK_BYTES)).ok()?,
        })
    }

    /// Blocks in slots that count, whatever their size.
    fn live(&self) -> u64 {
        let slots = usize::try_from(get(&self.buf, AT_SLOTS)).unwrap_or(usize::MAX);
        let bytes = slots.checked_mul(HEADER_BYTES);
        match bytes.is_some_and(|bytes| bytes <= self.buf.len() - PAGE_BYTES) {
            true => {
                let left = self.left(slots, u64::MAX);
                (left.slots.len() + left.damaged.len()) as u64
            }
            false => 0,
        }
    }

    fn refuse_if_live(&self) -> Result<()> {
        match self.live() {
            0 => Ok(()),
            live => Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "the memory holds {live} acknowledged blocks of another device, or of one that has \
                     changed: open that one first, choose another place, or remove it if that device is gone"
                ),
            )),
        }
    }

    /// Returns the slots' content, as far as a process can have left it. Their blocks exist on the
    /// device, and each version occurs once. One block has two versions only if the process ended
    /// between the stores that replace the older. Then the newer is the last of all. The data is
    /// trusted: a checksum would cost every write a pass over its data. Memory with its own parity
    /// reports such damage itself.
    fn left(&self, slots: usize, blocks: u64) -> Left {
        let mut left = Left {
            poisoned: get(&self.buf, AT_POISON) != 0,
            ..Left::default()
        };
        let mut all: Vec<Found> = Vec::new();
        let cut = get(&self.buf, AT_CUT);
        let is_cut = |range: Range<usize>| cut != 0 && range.end as u64 > cut;
        if is_cut(0..PAGE_BYTES + slots * HEADER_BYTES) {
            let what =
                "the file was cut within its headers: what was in slots behind that, nobody knows";
            left.damaged.push(what.to_owned());
        }
        for slot in 0..slots as u32 {
            let at = Self::header_at(slot);
            let (block, word) = (get(&self.buf, at), get(&self.buf, at + 8));
            let version = word & !HELD;
            if word == 0 {
                continue;
            }
            if is_cut(self.data_range(slot)) {
                (left.damaged).push(format!(
                    "slot {slot}: block {block}, which was cut off the file"
                ));
            } else if block >= blocks {
                (left.damaged).push(format!(
                    "slot {slot}: block {block} of a device of {blocks}"
                ));
            } else if version == 0 || version >= NO_VERSION {
                (left.damaged).push(format!("slot {slot}: block {block} in version {word:#x}"));
            } else {
                let held = word & HELD != 0;
                all.push(Found {
                    slot,
                    block,
                    version,
                    held,
                });
            }
        }
        all.sort_unstable_by_key(|found| found.version);
        let last = all.last().map_or(0, |found| found.version);
        for same in all.chunk_by(|a, b| a.version == b.version) {
            match same {
                [found] => left.slots.push(*found),
                _ => left.damaged.push(listed(same, "in one version")),
            }
        }
        left.slots
            .sort_unstable_by_key(|found| (found.block, found.version));
        let kept = std::mem::take(&mut left.slots);
        for same in kept.chunk_by(|a, b| a.block == b.block) {
            match same {
                [found] => left.slots.push(*found),
                [_, newer] if newer.version == last => left.slots.push(*newer),
                _ => left.damaged.push(listed(same, "of one block")),
            }
        }
        left.slots.sort_unstable_by_key(|found| found.version);
        left
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

    /// The generation, and the next one that an opening was about to take; zero if none was.
    fn generations(&self) -> [u64; 2] {
        [AT_GENERATION, AT_NEXT].map(|at| get(&self.buf, at))
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

    /// Retires every slot but these.
    fn retire_others(&self, kept: &[Found]) {
        let mut counts = vec![false; self.slots];
        for found in kept {
            counts[found.slot as usize] = true;
        }
        let others = (0..).zip(counts).filter(|(_, counts)| !counts);
        others.for_each(|(slot, _)| self.retire(slot));
    }

    const fn header_at(slot: u32) -> usize {
        PAGE_BYTES + slot as usize * HEADER_BYTES
    }

    const fn data_range(&self, slot: u32) -> Range<usize> {
        let at = self.data_at + slot as usize * self.block_bytes;
        at..at + self.block_bytes
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

    /// A flush of the device failed: the next process shall know.
    pub(crate) fn poison(&self) {
        set(&self.buf, AT_POISON, 1);
    }
}
