//! The bytes of a Block Translation Table, as the UEFI specification lays them out. Pure: no I/O.
//!
//! All integers are little-endian. An arena has, in this order: info block (4 KiB), data blocks,
//! map, flog, and a copy of the info block. Offsets are from the arena's start.
//! docs/internals/format/btt.md has the tables.

use std::fmt;

/// The size of an info block, and the alignment of an arena's parts, bytes.
pub const PAGE_BYTES: u64 = 4096;
/// The largest arena, bytes. A larger medium has several.
pub const ARENA_MAX_BYTES: u64 = 1 << 39;
/// Minimum size of an arena, bytes. A smaller rest of a medium is unused.
pub const ARENA_MIN_BYTES: u64 = 16 << 20;
/// Number of free blocks, and so of flog entries, of an arena: the maximum number of concurrent
/// writes.
pub const FREE_BLOCKS: u32 = 256;
/// The size of a pair of flog entries, bytes: a cache line.
pub const FLOG_PAIR_BYTES: u64 = 64;
/// The size of a map entry, bytes.
pub const MAP_ENTRY_BYTES: u64 = 4;

const SIGNATURE: [u8; 16] = *b"BTT_ARENA_INFO\0\0";
/// Unit to which the size of internal blocks is rounded up, bytes.
const INTERNAL_ALIGN_BYTES: u32 = 256;
const CHECKSUM_AT: usize = 4088;
/// Set in an arena's flags by software that found its metadata damaged.
const FLAG_ERROR: u32 = 1;

/// Version of the layout. The versions differ in the start of the first arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 1.1: one page is unused before the first arena. Linux creates it in a namespace without a
    /// label.
    V1_1,
    /// 2.0, of the UEFI specification.
    V2_0,
}

impl Version {
    /// Both, newest first.
    pub const ALL: [Self; 2] = [Self::V2_0, Self::V1_1];

    /// Returns the start of the first arena, bytes.
    #[must_use]
    pub const fn start_bytes(self) -> u64 {
        match self {
            Self::V1_1 => PAGE_BYTES,
            Self::V2_0 => 0,
        }
    }

    const fn numbers(self) -> (u16, u16) {
        match self {
            Self::V1_1 => (1, 1),
            Self::V2_0 => (2, 0),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.numbers();
        write!(f, "{major}.{minor}")
    }
}

/// Info block of an arena, at its start and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoBlock {
    /// Identity of the table, the same in all arenas.
    pub uuid: [u8; 16],
    /// Identity of the namespace that contains it; zeroes for none.
    pub parent_uuid: [u8; 16],
    /// Flags; only the error flag is known.
    pub flags: u32,
    /// The version of the layout.
    pub version: Version,
    /// Block size that clients see, bytes.
    pub block_bytes: u32,
    /// Number of blocks that clients see.
    pub blocks: u32,
    /// Block size on the medium, bytes.
    pub internal_block_bytes: u32,
    /// Number of blocks on the medium: those of clients and the free ones.
    pub internal_blocks: u32,
    /// Free blocks and flog entries.
    pub free_blocks: u32,
    /// Offset of the next arena, bytes; zero for none.
    pub next_offset: u64,
    /// Offset of the data blocks, bytes.
    pub data_offset: u64,
    /// Offset of the map, bytes.
    pub map_offset: u64,
    /// Offset of the flog, bytes.
    pub flog_offset: u64,
    /// Offset of the copy of this block, bytes.
    pub copy_offset: u64,
}

/// Reason why bytes are not an info block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoInfo {
    /// The signature is missing.
    Absent,
    /// The signature is valid and the checksum is wrong.
    Damaged,
    /// The info block is valid, but its version is unknown.
    UnknownVersion(u16, u16),
}

impl fmt::Display for NoInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("none there"),
            Self::Damaged => f.write_str("wrong checksum"),
            Self::UnknownVersion(major, minor) => write!(f, "unknown version {major}.{minor}"),
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Fletcher's checksum over words of 4 bytes, with two sums of 32 bits.
fn fletcher64(bytes: &[u8]) -> u64 {
    let (mut low, mut high) = (0_u32, 0_u32);
    for word in bytes.chunks_exact(4) {
        low = low.wrapping_add(u32_at(word, 0));
        high = high.wrapping_add(low);
    }
    u64::from(high) << 32 | u64::from(low)
}

impl InfoBlock {
    /// Returns the layout of an arena in `size_bytes` bytes, as every implementation computes it.
    /// Returns `None` if it is too small.
    #[must_use]
    pub fn split(
        size_bytes: u64,
        block_bytes: u32,
        free_blocks: u32,
        version: Version,
    ) -> Option<Self> {
        if size_bytes < ARENA_MIN_BYTES {
            return None;
        }
        let internal_block_bytes = block_bytes.next_multiple_of(INTERNAL_ALIGN_BYTES);
        let flog_bytes = (u64::from(free_blocks) * FLOG_PAIR_BYTES).next_multiple_of(PAGE_BYTES);
        let end = size_bytes - size_bytes % PAGE_BYTES;
        let available = end.checked_sub(2 * PAGE_BYTES + flog_bytes)?;
        // One page is reserved for the rounding of the map.
        let each = u64::from(internal_block_bytes) + MAP_ENTRY_BYTES;
        let internal_blocks = u32::try_from(available.checked_sub(PAGE_BYTES)? / each).ok()?;
        let blocks = internal_blocks.checked_sub(free_blocks)?;
        let map_bytes = (u64::from(blocks) * MAP_ENTRY_BYTES).next_multiple_of(PAGE_BYTES);
        let copy_offset = end - PAGE_BYTES;
        let flog_offset = copy_offset - flog_bytes;
        Some(Self {
            uuid: [0; 16],
            parent_uuid: [0; 16],
            flags: 0,
            version,
            block_bytes,
            blocks,
            internal_block_bytes,
            internal_blocks,
            free_blocks,
            next_offset: 0,
            data_offset: PAGE_BYTES,
            map_offset: flog_offset - map_bytes,
            flog_offset,
            copy_offset,
        })
    }

    /// Encodes the info block.
    #[must_use]
    pub fn encode(&self) -> [u8; PAGE_BYTES as usize] {
        let mut bytes = [0; PAGE_BYTES as usize];
        let (major, minor) = self.version.numbers();
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&SIGNATURE);
        put(&self.uuid);
        put(&self.parent_uuid);
        put(&self.flags.to_le_bytes());
        put(&major.to_le_bytes());
        put(&minor.to_le_bytes());
        for number in [
            self.block_bytes,
            self.blocks,
            self.internal_block_bytes,
            self.internal_blocks,
            self.free_blocks,
            PAGE_BYTES as u32,
        ] {
            put(&number.to_le_bytes());
        }
        for offset in [
            self.next_offset,
            self.data_offset,
            self.map_offset,
            self.flog_offset,
            self.copy_offset,
        ] {
            put(&offset.to_le_bytes());
        }
        let checksum = fletcher64(&bytes);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes an info block. [`InfoBlock::check`] checks its fields.
    ///
    /// # Errors
    /// The reason why it is not one.
    pub fn decode(bytes: &[u8; PAGE_BYTES as usize]) -> Result<Self, NoInfo> {
        if bytes[..16] != SIGNATURE {
            return Err(NoInfo::Absent);
        }
        let mut unsigned = *bytes;
        unsigned[CHECKSUM_AT..].fill(0);
        if fletcher64(&unsigned) != u64_at(bytes, CHECKSUM_AT) {
            return Err(NoInfo::Damaged);
        }
        let version = u32_at(bytes, 52);
        let numbers = (version as u16, (version >> 16) as u16);
        let Some(version) = Version::ALL.into_iter().find(|v| v.numbers() == numbers) else {
            return Err(NoInfo::UnknownVersion(numbers.0, numbers.1));
        };
        let uuid_at = |at: usize| bytes[at..at + 16].try_into().expect("16 bytes");
        Ok(Self {
            uuid: uuid_at(16),
            parent_uuid: uuid_at(32),
            flags: u32_at(bytes, 48),
            version,
            block_bytes: u32_at(bytes, 56),
            blocks: u32_at(bytes, 60),
            internal_block_bytes: u32_at(bytes, 64),
            internal_blocks: u32_at(bytes, 68),
            free_blocks: u32_at(bytes, 72),
            next_offset: u64_at(bytes, 80),
            data_offset: u64_at(bytes, 88),
            map_offset: u64_at(bytes, 96),
            flog_offset: u64_at(bytes, 104),
            copy_offset: u64_at(bytes, 112),
        })
    }

    /// Checks that the fields are consistent and fit into `size_bytes`, the bytes from the arena's
    /// start to the medium's end.
    ///
    /// # Errors
    /// The inconsistency, as text.
    pub fn check(&self, size_bytes: u64) -> Result<(), String> {
        let require = |holds: bool, what: &str| match holds {
            true => Ok(()),
            false => Err(what.to_owned()),
        };
        require(self.flags & FLAG_ERROR == 0, "its error flag is set")?;
        require(
            matches!(self.block_bytes, 512 | 4096),
            "its blocks have neither 512 nor 4096 bytes",
        )?;
        require(
            self.internal_block_bytes >= self.block_bytes
                && self.internal_block_bytes.is_multiple_of(64),
            "its blocks do not fit into its internal blocks",
        )?;
        require(
            (1..=FREE_BLOCKS).contains(&self.free_blocks) && self.blocks > 0,
            "it has no blocks, or not 1 to 256 free blocks",
        )?;
        let internal = u64::from(self.blocks) + u64::from(self.free_blocks);
        require(
            internal == u64::from(self.internal_blocks) && internal <= u64::from(MapEntry::BLOCK),
            "its blocks and free blocks are not all of its internal blocks",
        )?;
        let data = internal * u64::from(self.internal_block_bytes);
        let map = u64::from(self.blocks) * MAP_ENTRY_BYTES;
        let flog = u64::from(self.free_blocks) * FLOG_PAIR_BYTES;
        let mut end = PAGE_BYTES;
        for (offset, len, what) in [
            (self.data_offset, data, "its data blocks"),
            (self.map_offset, map, "its map"),
            (self.flog_offset, flog, "its flog"),
            (self.copy_offset, PAGE_BYTES, "its copy"),
        ] {
            let aligned = offset.is_multiple_of(PAGE_BYTES);
            require(
                offset >= end && aligned,
                &format!("{what} would lie at {offset}"),
            )?;
            end = offset.saturating_add(len);
            require(
                end <= size_bytes,
                &format!(
                    "{what} would end at {end}, of {size_bytes} bytes that are there (was it \
                     truncated?)"
                ),
            )?;
        }
        let next = self.next_offset;
        require(
            next == 0 || (next >= end && next < size_bytes && next.is_multiple_of(PAGE_BYTES)),
            "the next arena would lie inside of it, or outside of the medium",
        )
    }
}

/// State of a block in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Never written: it reads as zeroes, and its internal block has the same number.
    Initial,
    /// It reads as zeroes.
    Zero,
    /// It has a media error, which the next write clears.
    Error,
    /// It has the content of its internal block.
    Normal,
}

/// An entry of the map: a state and an internal block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MapEntry(u32);

impl MapEntry {
    /// Bits of the block number.
    const BLOCK: u32 = 0x3fff_ffff;
    const ERROR: u32 = 1 << 30;
    const ZERO: u32 = 1 << 31;

    /// Creates an entry from its raw value.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Returns the raw value.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Creates an entry in this state. The initial state is never written.
    #[must_use]
    pub const fn new(state: State, block: u32) -> Self {
        let flags = match state {
            State::Initial => 0,
            State::Zero => Self::ZERO,
            State::Error => Self::ERROR,
            State::Normal => Self::ZERO | Self::ERROR,
        };
        Self(block & Self::BLOCK | flags)
    }

    /// Returns the state.
    #[must_use]
    pub const fn state(self) -> State {
        match (self.0 & Self::ZERO != 0, self.0 & Self::ERROR != 0) {
            (false, false) => State::Initial,
            (true, false) => State::Zero,
            (false, true) => State::Error,
            (true, true) => State::Normal,
        }
    }

    /// Returns the internal block. In the initial state it must be resolved first:
    /// [`MapEntry::resolve`].
    #[must_use]
    pub const fn block(self) -> u32 {
        self.0 & Self::BLOCK
    }

    /// Returns the entry of external block `number` with an explicit internal block.
    #[must_use]
    pub const fn resolve(self, number: u32) -> Self {
        match self.state() {
            State::Initial => Self::new(State::Initial, number),
            _ => self,
        }
    }
}

impl fmt::Debug for MapEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({})", self.state(), self.block())
    }
}

/// One entry of a flog pair: the last map update of a lane, or the last but one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flog {
    /// The external block.
    pub block: u32,
    /// Map entry before the update; its internal block is free after it.
    pub old: MapEntry,
    /// Map entry after the update.
    pub new: MapEntry,
    /// Sequence number, by which the newer entry of a pair is known: 1, 2, 3, 1... Zero for an
    /// unwritten entry.
    pub sequence: u32,
}

impl Flog {
    /// Returns the entry as two words of 8 bytes. The second makes the entry the newer one of its
    /// pair, so it is stored after the first is durable.
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        [
            self.block as u64 | (self.old.raw() as u64) << 32,
            self.new.raw() as u64 | (self.sequence as u64) << 32,
        ]
    }

    /// Creates an entry from its words.
    #[must_use]
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self {
            block: words[0] as u32,
            old: MapEntry::from_raw((words[0] >> 32) as u32),
            new: MapEntry::from_raw(words[1] as u32),
            sequence: (words[1] >> 32) as u32,
        }
    }

    /// Returns which entry of a pair is newer, or `None` for an invalid pair.
    #[must_use]
    pub const fn newer(pair: [Self; 2]) -> Option<usize> {
        match (pair[0].sequence, pair[1].sequence) {
            (1..=3, 0) => Some(0),
            (0, 1..=3) => Some(1),
            (first @ 1..=3, second @ 1..=3) if second == next_sequence(first) => Some(1),
            (first @ 1..=3, second @ 1..=3) if first == next_sequence(second) => Some(0),
            _ => None,
        }
    }
}

/// Returns the next sequence number.
#[must_use]
pub const fn next_sequence(sequence: u32) -> u32 {
    sequence % 3 + 1
}

#[cfg(test)]
mod tests;
