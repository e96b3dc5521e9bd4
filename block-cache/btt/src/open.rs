//! Opening a table: finds its arenas, repairs info blocks from their copies, and completes
//! interrupted writes.

use std::sync::Arc;

use forebay_block::{Buf, Context, Error, ErrorKind, Result};
use forebay_io::pmem::Pmem;

use crate::Btt;
use crate::arena::Arena;
use crate::fault::Faults;
use crate::lanes::{Free, Lanes};
use crate::layout::{
    ARENA_MAX_BYTES, FLOG_PAIR_BYTES, Flog, InfoBlock, MapEntry, NoInfo, PAGE_BYTES, State,
    Version, next_sequence,
};

/// Options for opening a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenOptions {
    /// Maximum number of concurrent reads and writes.
    pub(crate) lanes: usize,
    /// Maximum arena size; smaller in tests, so that there are several arenas.
    pub(crate) arena_max_bytes: u64,
    pub(crate) faults: Faults,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            lanes: std::thread::available_parallelism().map_or(1, usize::from),
            arena_max_bytes: ARENA_MAX_BYTES,
            faults: Faults::default(),
        }
    }
}

impl<P: Pmem> Btt<P> {
    /// Opens the table on this memory. A damaged info block is repaired from its copy, or the
    /// reverse, with a warning. An interrupted write is completed.
    ///
    /// # Errors
    /// - `NotFound` if there is no table.
    /// - `Corrupt` if both info blocks of an arena or its flog are damaged.
    /// - `Unsupported` for an unknown version.
    pub fn open(memory: Arc<P>) -> Result<Self> {
        Self::open_with(memory, OpenOptions::default())
    }

    pub(crate) fn open_with(memory: Arc<P>, options: OpenOptions) -> Result<Self> {
        let version = find(&*memory, options.arena_max_bytes)?;
        let mut arenas: Vec<Arena> = Vec::new();
        let mut free: Vec<Vec<Free>> = Vec::new();
        let mut start = version.start_bytes();
        loop {
            let index = arenas.len() as u32;
            let place = || format!("arena {index}, at {start}");
            let info = info(&*memory, start, options.arena_max_bytes).context(place)?;
            if let Some(first) = arenas.first() {
                same_table(&first.info, &info).context(place)?;
            }
            let next = info.next_offset;
            let second = second_entry(&*memory, start, &info).context(place)?;
            let arena = Arena::new(index, start, info, second);
            free.push(recover(&*memory, &arena).context(place)?);
            arenas.push(arena);
            if next == 0 {
                break;
            }
            start += next;
        }
        let most = arenas.iter().map(|arena| arena.info.free_blocks).min();
        let count = options.lanes.clamp(1, most.unwrap_or(1) as usize);
        for (arena, free) in arenas.iter_mut().zip(&mut free) {
            arena.spare = free.split_off(count).into();
        }
        let of_lane = |lane| free.iter().map(|of_arena| of_arena[lane]).collect();
        let info = &arenas[0].info;
        Ok(Self {
            lanes: Lanes::new((0..count).map(of_lane).collect()),
            blocks: arenas.iter().map(|arena| u64::from(arena.blocks())).sum(),
            block_bytes: info.block_bytes,
            uuid: info.uuid,
            version,
            faults: options.faults,
            memory,
            arenas: arenas.into(),
        })
    }
}

/// Reads the info block at `at`. One with a media error counts as damaged.
pub(crate) fn read_info<P: Pmem>(memory: &P, at: u64) -> Result<InfoBlock, NoInfo> {
    if at
        .checked_add(PAGE_BYTES)
        .is_none_or(|end| end > memory.size_bytes())
    {
        return Err(NoInfo::Absent);
    }
    let page = Buf::zeroed(PAGE_BYTES as usize);
    memory.read(at, &page).map_err(|_| NoInfo::Damaged)?;
    let mut bytes = [0; PAGE_BYTES as usize];
    page.copy_to(0, &mut bytes);
    InfoBlock::decode(&bytes)
}

/// Returns the offset of an arena's second info block, if only the medium's size is known.
fn copy_at<P: Pmem>(memory: &P, start: u64, arena_max_bytes: u64) -> Option<u64> {
    let size = memory.size_bytes().checked_sub(start)?.min(arena_max_bytes);
    Some(start + (size - size % PAGE_BYTES).checked_sub(PAGE_BYTES)?)
}

/// Returns the version of the table, from the first arena's info block or its copy.
fn find<P: Pmem>(memory: &P, arena_max_bytes: u64) -> Result<Version> {
    let mut worst = NoInfo::Absent;
    for version in Version::ALL {
        let start = version.start_bytes();
        let places = [Some(start), copy_at(memory, start, arena_max_bytes)];
        for at in places.into_iter().flatten() {
            match read_info(memory, at) {
                Ok(info) if info.version == version => return Ok(version),
                Ok(_) | Err(NoInfo::Absent) => (),
                Err(other) => worst = other,
            }
        }
    }
    Err(match worst {
        NoInfo::Absent => Error::new(
            ErrorKind::NotFound,
            "there is no block translation table\nhelp: make one with `forebay format --btt PATH`",
        ),
        NoInfo::Damaged => Error::new(
            ErrorKind::Corrupt,
            "both info blocks of the first arena are damaged\nhelp: restore the medium from a copy",
        ),
        NoInfo::UnknownVersion(..) => Error::new(
            ErrorKind::Unsupported,
            format!("its block translation table has {worst}\nhelp: upgrade Forebay"),
        ),
    })
}

/// Returns the info block of the arena at `start`. Afterwards both copies are equal.
fn info<P: Pmem>(memory: &P, start: u64, arena_max_bytes: u64) -> Result<InfoBlock> {
    let size = memory.size_bytes() - start;
    let sound = |at: u64| {
        let info = read_info(memory, at).map_err(|why| why.to_string())?;
        info.check(size).map(|()| info)
    };
    let first = sound(start);
    let copy_at = match &first {
        Ok(info) => Some(start + info.copy_offset),
        Err(_) => copy_at(memory, start, arena_max_bytes),
    };
    let copy = copy_at.map_or_else(|| Err("no space for it".to_owned()), sound);
    let (info, at, damage) = match (first, copy) {
        (Ok(first), Ok(copy)) if first == copy => return Ok(first),
        (Ok(first), Ok(_)) => (first, copy_at, "differs".to_owned()),
        (Ok(first), Err(why)) => (first, copy_at, why),
        (Err(why), Ok(copy)) => (copy, Some(start), why),
        (Err(first), Err(copy)) => {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "its info block and the copy are damaged\n\
                     help: restore the medium from a copy; the block: {first}; the copy: {copy}"
                ),
            ));
        }
    };
    if let Some(at) = at {
        tracing::warn!(
            "the info block at {at} was damaged or missing ({damage}), and is rewritten from its \
             copy"
        );
        memory.stream(at, &Buf::copied(&info.encode()));
        memory.fence();
    }
    Ok(info)
}

fn same_table(first: &InfoBlock, info: &InfoBlock) -> Result<()> {
    if (first.uuid, first.block_bytes, first.version) == (info.uuid, info.block_bytes, info.version)
    {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corrupt,
        "it belongs to another table than the first\nhelp: restore the medium from a copy",
    ))
}

fn damaged_flog(what: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("{what}\nhelp: restore the medium from a copy"),
    )
}

/// Returns the offset of the second entry of each pair from the first. It is directly after the
/// first, or 32 bytes on, as Linux wrote it before version 4.15. The other two positions are never
/// written.
fn second_entry<P: Pmem>(memory: &P, start: u64, info: &InfoBlock) -> Result<u64> {
    let used = |entry: u64| {
        (0..u64::from(info.free_blocks)).any(|lane| {
            let at = start + info.flog_offset + lane * FLOG_PAIR_BYTES + entry * 16;
            memory.load_u64(at) | memory.load_u64(at + 8) != 0
        })
    };
    match (used(1), used(2), used(3)) {
        (_, false, false) => Ok(16),
        (false, true, false) => Ok(32),
        _ => Err(damaged_flog("the flog has more than two entries a lane")),
    }
}

/// Completes the last map update of each lane, and returns the free blocks of each.
fn recover<P: Pmem>(memory: &P, arena: &Arena) -> Result<Vec<Free>> {
    let info = &arena.info;
    let mut all = Vec::with_capacity(info.free_blocks as usize);
    for lane in 0..info.free_blocks as usize {
        let pair = [0, 1].map(|entry| {
            let at = arena.flog_at(lane, entry);
            Flog::from_words([memory.load_u64(at), memory.load_u64(at + 8)])
        });
        let Some(newer) = Flog::newer(pair) else {
            return Err(damaged_flog(format!(
                "lane {lane} of the flog has the sequence numbers {} and {}",
                pair[0].sequence, pair[1].sequence
            )));
        };
        let flog = pair[newer];
        let (old, new) = (flog.old.block(), flog.new.block());
        if flog.block >= info.blocks || old.max(new) >= info.internal_blocks {
            return Err(damaged_flog(format!(
                "lane {lane} of the flog names blocks that do not exist ({flog:?})"
            )));
        }
        // The two are equal in a lane that was never used.
        if old != new && arena.entry(memory, flog.block)?.block() == old {
            arena.set_entry(memory, flog.block, MapEntry::new(State::Normal, new));
        }
        all.push(Free {
            block: old,
            entry: 1 - newer,
            sequence: next_sequence(flog.sequence),
        });
    }
    let mut blocks: Vec<u32> = all.iter().map(|free| free.block).collect();
    blocks.sort_unstable();
    match blocks.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(damaged_flog(format!(
            "internal block {} is free for two lanes",
            two[0]
        ))),
        None => Ok(all),
    }
}
