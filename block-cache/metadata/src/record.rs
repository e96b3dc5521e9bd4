//! The 64-byte record.
//!
//! A record never straddles 512 bytes, carries its own position, and verifies on its own. So one
//! bad unit costs only the records in it. docs/internals/format/records.md has the table of fields.

use crate::codec::{Seed, get_id, get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::order::{Part, Site};

/// Length of a record, bytes: a cache line of persistent memory, an eighth of a sector.
pub const RECORD_BYTES: usize = 64;
/// Slots that one kill record names at most.
pub const KILL_SLOTS: usize = 10;

const _: () = assert!(512_usize.is_multiple_of(RECORD_BYTES));
const BODY: usize = 24;
const _: () = assert!(BODY + KILL_SLOTS * 4 == RECORD_BYTES);
const LSN_MASK: u64 = (1 << 48) - 1;

/// Where a record stands: its own number, the number of the oldest record that still counts, and
/// how far back its batch began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Log sequence number: counts records since the cache was formatted.
    pub lsn: u64,
    /// Records with lower numbers were dead, durably, before this one's batch was issued.
    pub tail: u64,
    /// Units between the batch's first unit and this record's.
    pub units_back: u16,
}

/// A cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRecord {
    /// The volume's number in the superblock.
    pub volume: u16,
    /// Its size in units (the smallest block size), as a power of two.
    pub class: u8,
    /// The number of its first unit within the volume.
    pub block: u64,
    /// The first of the slots that hold it, a unit each.
    pub slot: u32,
    /// Granules that hold data, one bit each.
    pub valid: u64,
    /// Granules that are newer than the backing device; a subset of `valid`.
    pub dirty: u64,
    /// With checksums: dirty granules that are known to hold something else than what was written.
    pub bad: u64,
    /// With checksums: the digest of those of the valid granules (see [`crate::checksums`]).
    pub sums: u32,
}

/// State of a region (64 blocks) of a volume in addition to the block records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkState {
    /// The block records are exact.
    None,
    /// Valid granules may have been overwritten in place: all count as dirty after a crash.
    MaybeDirty,
    /// Writes may have gone to the backing device. Data that is not recorded as dirty counts as
    /// stale after a crash.
    Intent,
}

/// Content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Nothing; fills a unit.
    Pad,
    /// A block is cached. Replaces what earlier records said of its slot.
    Block(BlockRecord),
    /// Slots that hold nothing from here on.
    Kill {
        /// The slots; the first `count` count.
        slots: [u32; KILL_SLOTS],
        /// How many.
        count: u8,
    },
    /// The state of a region.
    Mark {
        /// The volume's number.
        volume: u16,
        /// Region number within the volume.
        region: u64,
        /// Its state from here on.
        state: MarkState,
    },
    /// The cache was opened for service: the shutdown before it, clean or not, is history.
    Open {
        /// The boot of the machine under which it was opened.
        boot_id: [u8; 16],
        /// Whether acknowledged writes may stand in a process journal only.
        journal: bool,
    },
    /// A clean shutdown: block records are exact, earlier marks are void.
    Close,
}

const KIND_PAD: u8 = 1;
const KIND_BLOCK: u8 = 2;
const KIND_KILL: u8 = 3;
const KIND_MARK: u8 = 4;
const KIND_OPEN: u8 = 5;
const KIND_CLOSE: u8 = 6;

/// Writes a record.
///
/// # Panics
/// If a number does not fit 48 bits (2^48 records are 16 PiB of metadata).
pub fn encode(out: &mut [u8; RECORD_BYTES], seed: Seed, position: Position, body: &Body) {
    assert!(position.lsn <= LSN_MASK && position.tail <= position.lsn);
    *out = [0; RECORD_BYTES];
    put_u64(out, 8, position.lsn);
    put_u64(
        out,
        16,
        position.tail | (u64::from(position.units_back) << 48),
    );
    match body {
        Body::Pad => out[4] = KIND_PAD,
        Body::Block(block) => {
            out[4] = KIND_BLOCK;
            out[5] = block.class;
            put_u16(out, 6, block.volume);
            put_u64(out, BODY, block.block);
            put_u64(out, BODY + 8, block.valid);
            put_u64(out, BODY + 16, block.dirty);
            put_u32(out, BODY + 24, block.slot);
            put_u64(out, BODY + 28, block.bad);
            put_u32(out, BODY + 36, block.sums);
        }
        Body::Kill { slots, count } => {
            out[4] = KIND_KILL;
            out[5] = *count;
            for (nth, slot) in slots.iter().enumerate() {
                put_u32(out, BODY + 4 * nth, *slot);
            }
        }
        Body::Mark {
            volume,
            region,
            state,
        } => {
            out[4] = KIND_MARK;
            out[5] = match state {
                MarkState::None => 0,
                MarkState::MaybeDirty => 1,
                MarkState::Intent => 2,
            };
            put_u16(out, 6, *volume);
            put_u64(out, BODY, *region);
        }
        Body::Open { boot_id, journal } => {
            out[4] = KIND_OPEN;
            out[5] = u8::from(*journal);
            out[BODY..BODY + 16].copy_from_slice(boot_id);
        }
        Body::Close => out[4] = KIND_CLOSE,
    }
    let checksum = seed.checksum(&out[4..]);
    put_u32(out, 0, checksum);
}

/// Reads a record. Returns `None` if the bytes are not a record of this cache: never written, torn,
/// corrupt, or another cache's. Also for a kind that this version does not know; the superblock's
/// features say whether a cache with such kinds may be opened at all.
#[must_use]
pub fn decode(bytes: &[u8; RECORD_BYTES], seed: Seed) -> Option<(Position, Body)> {
    // Media that are atomic by less than a record tear it.
    if get_u32(bytes, 0) != seed.checksum(&bytes[4..]) && !Site::here().lacks(Part::Step) {
        return None;
    }
    let tail = get_u64(bytes, 16);
    let position = Position {
        lsn: get_u64(bytes, 8),
        tail: tail & LSN_MASK,
        units_back: u16::try_from(tail >> 48).expect("16 bits"),
    };
    let body = match bytes[4] {
        KIND_PAD => Body::Pad,
        KIND_BLOCK => Body::Block(BlockRecord {
            volume: get_u16(bytes, 6),
            class: bytes[5],
            block: get_u64(bytes, BODY),
            valid: get_u64(bytes, BODY + 8),
            dirty: get_u64(bytes, BODY + 16),
            bad: get_u64(bytes, BODY + 28),
            sums: get_u32(bytes, BODY + 36),
            slot: get_u32(bytes, BODY + 24),
        }),
        KIND_KILL => {
            let mut slots = [0; KILL_SLOTS];
            for (nth, slot) in slots.iter_mut().enumerate() {
                *slot = get_u32(bytes, BODY + 4 * nth);
            }
            Body::Kill {
                slots,
                count: bytes[5].min(u8::try_from(KILL_SLOTS).expect("a small number")),
            }
        }
        KIND_MARK => Body::Mark {
            volume: get_u16(bytes, 6),
            region: get_u64(bytes, BODY),
            state: match bytes[5] {
                0 => MarkState::None,
                1 => MarkState::MaybeDirty,
                2 => MarkState::Intent,
                _ => return None,
            },
        },
        KIND_OPEN => Body::Open {
            boot_id: get_id(bytes, BODY),
            journal: bytes[5] != 0,
        },
        KIND_CLOSE => Body::Close,
        _ => return None,
    };
    Some((position, body))
}

#[cfg(test)]
mod torn;

#[cfg(test)]
mod tests {
    use super::*;

    fn all_bodies() -> Vec<Body> {
        vec![
            Body::Pad,
            Body::Block(BlockRecord {
                volume: 7,
                class: 3,
                block: (1 << 48) - 1,
                slot: 12345,
                valid: u64::MAX,
                dirty: 1 << 63,
                bad: 1 << 63,
                sums: u32::MAX,
            }),
            Body::Kill {
                slots: [9, 8, 7, 6, 5, 4, 3, 2, 1, u32::MAX],
                count: 10,
            },
            Body::Mark {
                volume: 65535,
                region: 3,
                state: MarkState::Intent,
            },
            Body::Open {
                boot_id: [7; 16],
                journal: true,
            },
            Body::Close,
        ]
    }

    #[test]
    fn every_kind_survives_a_round_trip_and_no_flipped_bit_does() {
        let seed = Seed::new(b"0123456789abcdef");
        let position = Position {
            lsn: LSN_MASK,
            tail: 12,
            units_back: 65535,
        };
        for body in all_bodies() {
            let mut bytes = [0; RECORD_BYTES];
            encode(&mut bytes, seed, position, &body);
            assert_eq!(decode(&bytes, seed), Some((position, body)));
            for bit in 0..RECORD_BYTES * 8 {
                let mut rotten = bytes;
                rotten[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(
                    decode(&rotten, seed),
                    None,
                    "{body:?} with bit {bit} flipped"
                );
            }
            let other = Seed::new(b"another cache id");
            assert_eq!(decode(&bytes, other), None);
        }
        assert_eq!(decode(&[0; RECORD_BYTES], seed), None);
    }

    #[test]
    fn the_layout_on_media_does_not_change() {
        let mut bytes = [0; RECORD_BYTES];
        let position = Position {
            lsn: 0x0102_0304_0506,
            tail: 0x0a0b,
            units_back: 3,
        };
        let block = Body::Block(BlockRecord {
            volume: 0x1122,
            class: 0,
            block: 0x33,
            slot: 0x4455_6677,
            valid: 0xff,
            dirty: 0x0f,
            bad: 0,
            sums: 0,
        });
        encode(&mut bytes, Seed::new(&[0; 16]), position, &block);
        let hex: String = bytes[4..]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            hex,
            "020022110605040302010000\
             0b0a000000000300\
             3300000000000000ff000000000000000f00000000000000\
             77665544000000000000000000000000"
        );
    }
}
