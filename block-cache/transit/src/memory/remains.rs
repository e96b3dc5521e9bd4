//! State that an earlier process left in a memory.

use std::ops::Range;

use forebay_block::{Buf, Error, ErrorKind, Identity};

use super::Memory;
use super::page::{
    AT_BIRTH, AT_BLOCK_BYTES, AT_BOOT, AT_CUT, AT_DEVICE, AT_GENERATION, AT_INSTANCE, AT_MAGIC,
    AT_NEXT, AT_POISON, AT_SIZE, AT_SLOTS, AT_START, HEADER_BYTES, HELD, MAGIC, NO_VERSION,
    PAGE_BYTES, data_at, get,
};
use crate::owner::{Owner, SlotsLeft};

/// Number of damaged slots that an error names.
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

/// Returns the state that a process of this boot left in a memory. `buf` may be its first page
/// alone: then no blocks are counted. Returns `None` if it is no such memory.
#[must_use]
pub fn slots_left(buf: &Buf, boot_id: &[u8; 16]) -> Option<SlotsLeft> {
    let memory = memory_of_boot(buf, boot_id)?;
    let owner = memory.owner()?;
    Some(SlotsLeft {
        device: owner.device,
        device_bytes: owner.device_bytes,
        blocks: memory.count_live(),
    })
}

/// Returns whether a process of this boot used a memory, for any device.
#[must_use]
pub fn was_used(buf: &Buf, boot_id: &[u8; 16]) -> bool {
    memory_of_boot(buf, boot_id).is_some()
}

/// Returns the generations of the slots that a process of this boot left, if any of them holds
/// data. The first is that of its opening. The second is the one that the next opening was about to
/// take, or zero.
#[must_use]
pub fn generations_left(buf: &Buf, boot_id: &[u8; 16]) -> Option<[u64; 2]> {
    let memory = memory_of_boot(buf, boot_id)?;
    (memory.count_live() > 0).then(|| memory.generations())
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
    let memory = memory_of_boot(&buf, boot_id)?;
    let slots = usize::try_from(get(&memory.buf, AT_SLOTS)).ok()?;
    let block_bytes = memory.owner()?.block_bytes;
    // Damaged values give no size.
    let bytes = slots.checked_mul(block_bytes as usize + HEADER_BYTES)?;
    (bytes < 1 << 46 && block_bytes.is_power_of_two()).then_some((slots, block_bytes))
}

/// Returns the offset at which the file of a memory was truncated, in bytes, from its first page
/// and its headers. This is the start of the first of `holes` that overlaps data which counted. The
/// holes must not have been written to since.
#[must_use]
pub fn cut_at(first_page: &[u8], headers: &[u8], holes: &[Range<u64>]) -> Option<u64> {
    let word = |bytes: &[u8], at: usize| {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
    };
    let slots = usize::try_from(word(first_page, AT_SLOTS)).ok()?;
    let block_bytes = usize::try_from(word(first_page, AT_BLOCK_BYTES)).ok()?;
    let first_hole = |range: Range<usize>| {
        let (start, end) = (range.start as u64, range.end as u64);
        let touched = holes
            .iter()
            .filter(|hole| hole.start < end && start < hole.end);
        touched.map(|hole| hole.start.max(start)).min()
    };
    let in_use = (0..slots.min(headers.len() / HEADER_BYTES))
        .filter(|slot| word(headers, slot * HEADER_BYTES + 8) != 0);
    let data = in_use.filter_map(|slot| {
        let at = data_at(slots) + slot * block_bytes;
        first_hole(at..at + block_bytes).map(|_| at as u64)
    });
    let cut = data.chain(first_hole(PAGE_BYTES..PAGE_BYTES + slots * HEADER_BYTES));
    cut.min().map(|at| at.max(1))
}

/// Returns the memory, if a process of this boot used it.
fn memory_of_boot(buf: &Buf, boot_id: &[u8; 16]) -> Option<Memory> {
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

/// Describes slots of which at most one can be what it says.
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

pub(super) fn damage_error(left: &Left) -> Error {
    let named: Vec<_> = left.damaged.iter().take(NAMED).cloned().collect();
    let more = match left.damaged.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "slots are damaged: ACKNOWLEDGED WRITES MAY BE LOST\n\
             help: put a sound copy of the file back; none was written back. Damaged are: {}{more}",
            named.join("; ")
        ),
    )
}

impl Memory {
    /// Returns the owner. Returns `None` if the memory is of another kind, or was not begun wholly.
    pub(super) fn owner(&self) -> Option<Owner> {
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

    /// Returns the number of blocks in slots that count, of any size.
    pub(super) fn count_live(&self) -> u64 {
        let slots = usize::try_from(get(&self.buf, AT_SLOTS)).unwrap_or(usize::MAX);
        let bytes = slots.checked_mul(HEADER_BYTES);
        match bytes.is_some_and(|bytes| bytes <= self.buf.len() - PAGE_BYTES) {
            true => {
                let left = self.read_remains(slots, u64::MAX);
                (left.slots.len() + left.damaged.len()) as u64
            }
            false => 0,
        }
    }

    /// Returns the generation, and the next one that an opening was about to take (zero if none
    /// was).
    pub(super) fn generations(&self) -> [u64; 2] {
        [AT_GENERATION, AT_NEXT].map(|at| get(&self.buf, at))
    }

    /// Returns the slots' content, as far as a process can have left it. Their blocks exist on the
    /// device, and each version occurs once. One block has two versions only if the process ended
    /// between the stores that replace the older. Then the newer is the last of all. The data is
    /// trusted: a checksum would cost every write a pass over its data. Memory with its own parity
    /// reports such damage itself.
    pub(super) fn read_remains(&self, slots: usize, blocks: u64) -> Left {
        let mut left = Left {
            poisoned: get(&self.buf, AT_POISON) != 0,
            ..Left::default()
        };
        let mut all: Vec<Found> = Vec::new();
        let cut = get(&self.buf, AT_CUT);
        let is_cut = |range: Range<usize>| cut != 0 && range.end as u64 > cut;
        if is_cut(0..PAGE_BYTES + slots * HEADER_BYTES) {
            let what =
                "the file was truncated within its headers: the content of later slots is unknown";
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
                (left.damaged).push(format!("slot {slot}: block {block}, which was truncated"));
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
        let found = std::mem::take(&mut left.slots);
        for same in found.chunk_by(|a, b| a.block == b.block) {
            match same {
                [found] => left.slots.push(*found),
                [_, newer] if newer.version == last => left.slots.push(*newer),
                _ => left.damaged.push(listed(same, "of one block")),
            }
        }
        left.slots.sort_unstable_by_key(|found| found.version);
        left
    }
}
