//! Creates an empty table.

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::pmem::Pmem;

use crate::layout::{
    ARENA_MAX_BYTES, ARENA_MIN_BYTES, FLOG_PAIR_BYTES, FREE_BLOCKS, Flog, InfoBlock, MapEntry,
    NoInfo, PAGE_BYTES, State, Version,
};
use crate::open::read_info;

/// Maximum length of one zeroing step, bytes.
const ZEROES_BYTES: u64 = 1 << 20;

/// Properties of a new table.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Block size, bytes: 512 or 4096.
    pub block_bytes: u32,
    /// A new identity: random bytes.
    pub uuid: [u8; 16],
    /// Identity of the namespace that contains it; zeroes match every namespace.
    pub parent_uuid: [u8; 16],
    /// Layout version. Linux expects 1.1 in a namespace without a label, and 2.0 if the label says
    /// so.
    pub version: Version,
    /// Maximum arena size; smaller in tests, so that there are several arenas.
    pub(crate) arena_max_bytes: u64,
    pub(crate) free_blocks: u32,
}

impl FormatOptions {
    /// Returns options for version 2.0 with blocks of this size.
    #[must_use]
    pub const fn new(block_bytes: u32, uuid: [u8; 16]) -> Self {
        Self {
            block_bytes,
            uuid,
            parent_uuid: [0; 16],
            version: Version::V2_0,
            arena_max_bytes: ARENA_MAX_BYTES,
            free_blocks: FREE_BLOCKS,
        }
    }
}

/// Properties of the created table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formatted {
    /// Number of arenas.
    pub arenas: u32,
    /// Number of blocks that clients see.
    pub blocks: u64,
}

/// Creates an empty table on the whole medium, and destroys its content. After a crash there is an
/// empty table or none.
///
/// # Errors
/// `InvalidInput` if this block size is not supported, or the medium is smaller than 16 MiB.
pub fn format<P: Pmem>(memory: &P, options: &FormatOptions) -> Result<Formatted> {
    if !matches!(options.block_bytes, 512 | 4096) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "blocks of {} bytes are not supported\nhelp: choose 512 or 4096",
                options.block_bytes
            ),
        ));
    }
    let arenas = arenas(memory.size_bytes(), options);
    let Some((_, first)) = arenas.first() else {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{} bytes are too few for a block translation table: it needs {} at least",
                memory.size_bytes(),
                ARENA_MIN_BYTES + options.version.start_bytes()
            ),
        ));
    };
    forget(memory, options.arena_max_bytes);
    for (start, info) in &arenas {
        zero(memory, start + info.map_offset, start + info.flog_offset);
        memory.stream(start + info.flog_offset, &empty_flog(info));
    }
    for (start, info) in &arenas[1..] {
        let block = Buf::copied(&info.encode());
        memory.stream(start + info.copy_offset, &block);
        memory.stream(*start, &block);
    }
    memory.fence();
    // Either info block of the first arena makes the medium a table, so everything else must be
    // durable before.
    let block = Buf::copied(&first.encode());
    let start = options.version.start_bytes();
    memory.stream(start + first.copy_offset, &block);
    memory.stream(start, &block);
    memory.fence();
    Ok(Formatted {
        arenas: arenas.len() as u32,
        blocks: arenas.iter().map(|(_, info)| u64::from(info.blocks)).sum(),
    })
}

/// Returns the start of each arena, and its info block.
fn arenas(size_bytes: u64, options: &FormatOptions) -> Vec<(u64, InfoBlock)> {
    let mut arenas: Vec<(u64, InfoBlock)> = Vec::new();
    let mut start = options.version.start_bytes();
    while let Some(left) = size_bytes.checked_sub(start) {
        let size = left.min(options.arena_max_bytes);
        let split = InfoBlock::split(
            size,
            options.block_bytes,
            options.free_blocks,
            options.version,
        );
        let Some(mut info) = split else { break };
        info.uuid = options.uuid;
        info.parent_uuid = options.parent_uuid;
        if let Some((before, info)) = arenas.last_mut() {
            info.next_offset = start - *before;
        }
        arenas.push((start, info));
        start += size;
    }
    arenas
}

/// Invalidates every info block of a table of either version. Other bytes stay until the old table
/// is gone: they may be its data.
fn forget<P: Pmem>(memory: &P, arena_max_bytes: u64) {
    let zeroes = Buf::zeroed(PAGE_BYTES as usize);
    let size = memory.size_bytes();
    for version in Version::ALL {
        let mut start = version.start_bytes();
        while start < size {
            let end = size.min(start + arena_max_bytes);
            for at in [start, end - end % PAGE_BYTES - PAGE_BYTES] {
                if read_info(memory, at) != Err(NoInfo::Absent) {
                    memory.stream(at, &zeroes);
                }
            }
            start = end;
        }
    }
    memory.fence();
}

fn zero<P: Pmem>(memory: &P, start: u64, end: u64) {
    let zeroes = Buf::zeroed(ZEROES_BYTES as usize);
    let mut at = start;
    while at < end {
        let len = (end - at).min(ZEROES_BYTES);
        memory.stream(at, &zeroes.slice(0..len as usize));
        at += len;
    }
}

/// Returns the flog of an arena in which each lane has one of the free blocks.
fn empty_flog(info: &InfoBlock) -> Buf {
    let flog = Buf::zeroed((info.copy_offset - info.flog_offset) as usize);
    for lane in 0..info.free_blocks {
        // An update that changed nothing, in the state that other implementations expect.
        let block = MapEntry::new(State::Initial, info.blocks + lane);
        let entry = Flog {
            block: lane,
            old: block,
            new: block,
            sequence: 1,
        };
        let at = lane as usize * FLOG_PAIR_BYTES as usize;
        for (index, word) in entry.words().into_iter().enumerate() {
            flog.copy_from(at + 8 * index, &word.to_le_bytes());
        }
    }
    flog
}
