//! The layout of a new cache.

use super::*;

/// Sizes that `Superblock::plan` starts from.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput {
    /// Size of the data device, bytes.
    pub data_bytes: u64,
    /// Size of the metadata device if there is one, bytes.
    pub metadata_bytes: Option<u64>,
    /// Unit in which the log is written, in bytes. [`LINE_BYTES`] on a byte-addressable metadata
    /// device. Otherwise the largest logical or physical block of the log's device, at least
    /// [`SECTOR_BYTES`].
    pub unit_bytes: u32,
    /// The smallest cache block size, bytes.
    pub block_size_bytes: u32,
    /// The block sizes. Bit `k`: blocks of `2^k` times the smallest.
    pub classes: u8,
    /// Blocks that share a mark, as a power of two.
    pub region_shift: u8,
    /// How it is to know what was overwritten in place.
    pub dirty_tracking: DirtyTracking,
    /// Whether cached data is to have checksums.
    pub checksums: bool,
    /// Identity of the new cache.
    pub uuid: [u8; 16],
}

/// Log records a slot: live records fill at most a quarter of the ring. A block that is written
/// once, cleaned and evicted takes 2.2 records, and the tail reaches them when it is gone.
const RECORDS_PER_SLOT: u64 = 4;
/// Records that even the smallest ring has on top.
const RECORDS_MIN: u64 = 256;
/// Units that even the smallest ring has.
const UNITS_MIN: u64 = 16;

/// The area after the log begins at a sector boundary, for any unit.
fn log_bytes(slots: u64, unit_bytes: u32) -> u64 {
    let unit = u64::from(unit_bytes);
    let records = slots * RECORDS_PER_SLOT + RECORDS_MIN;
    (records * RECORD_BYTES as u64)
        .next_multiple_of(unit.max(u64::from(SECTOR_BYTES)))
        .max(unit * UNITS_MIN)
}

impl Superblock {
    /// Lays out a new cache.
    ///
    /// # Errors
    /// `InvalidInput` for a block size that is not a power of two from 4 KiB to 1 MiB, `NoSpace`
    /// for devices that hold no slot.
    pub fn plan(input: PlanInput) -> Result<Self> {
        let block = u64::from(input.block_size_bytes);
        if !block.is_power_of_two() || !(4096..=1 << 20).contains(&block) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "a block size of {block}\nhelp: choose a power of two from 4096 to 1048576"
                ),
            ));
        }
        let top = input.classes.checked_ilog2().unwrap_or(0);
        if input.classes & 1 == 0 || block << top > 1 << 20 || u32::from(input.region_shift) < top {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "blocks of {block} to {} bytes are not supported\n\
                     help: choose sizes up to 1048576, the largest at most 64 times the smallest",
                    block << top
                ),
            ));
        }
        let unit = match input.metadata_bytes {
            Some(_) => input.unit_bytes.max(LINE_BYTES),
            None => input.unit_bytes.max(SECTOR_BYTES),
        };
        let aligned = (block << top).max(u64::from(unit));
        // The log ends at a unit's border, and the tree goes behind it.
        let tree_bytes = input.dirty_tracking.bytes(unit);
        // And behind that the checksums.
        let table_bytes = |slots: u64| match input.checksums {
            true => checksums::bytes(slots, block, unit),
            false => 0,
        };
        let together = |slots: u64| {
            let metadata_end =
                RESERVED_BYTES + log_bytes(slots, unit) + tree_bytes + table_bytes(slots);
            let data_offset = metadata_end.next_multiple_of(aligned);
            (data_offset, data_offset + slots * block)
        };
        let (slots, data_offset) = match input.metadata_bytes {
            Some(metadata_bytes) => {
                let data_offset = RESERVED_BYTES.next_multiple_of(aligned);
                let by_data = input.data_bytes.saturating_sub(data_offset) / block;
                let room = metadata_bytes.saturating_sub(RESERVED_BYTES + tree_bytes)
                    / RECORD_BYTES as u64;
                let by_metadata = room.saturating_sub(RECORDS_MIN + 64) / RECORDS_PER_SLOT;
                let mut slots = by_data.min(by_metadata);
                let end = |slots: u64| {
                    RESERVED_BYTES + log_bytes(slots, unit) + tree_bytes + table_bytes(slots)
                };
                if input.checksums && end(slots) > metadata_bytes {
                    let each = RECORDS_PER_SLOT * RECORD_BYTES as u64 + checksums::of_slot(block);
                    let over = end(slots) - metadata_bytes + u64::from(unit.max(SECTOR_BYTES));
                    slots = slots.saturating_sub(over.div_ceil(each));
                }
                (slots, data_offset)
            }
            None => {
                let mut slots = input.data_bytes.saturating_sub(RESERVED_BYTES)
                    / (block + RECORDS_PER_SLOT * RECORD_BYTES as u64);
                while slots > 0 && together(slots).1 > input.data_bytes {
                    // Only rounding is left: a few steps at most for large blocks.
                    slots -= (together(slots).1 - input.data_bytes)
                        .div_ceil(block)
                        .min(slots);
                }
                (slots, together(slots).0)
            }
        };
        let slots = u32::try_from(slots.min(1 << 31)).expect("at most 2^31");
        let log_size = log_bytes(u64::from(slots), unit);
        let metadata_size = input.metadata_bytes.unwrap_or(input.data_bytes);
        let least = if top == 0 {
            1
        } else {
            (input.classes.count_ones() + 2) << top
        };
        let table_size = table_bytes(u64::from(slots));
        if slots < least || RESERVED_BYTES + log_size + tree_bytes + table_size > metadata_size {
            let needed = match input.metadata_bytes {
                None => format!("{} bytes are needed", together(u64::from(least)).1),
                Some(_) => {
                    let records = (RECORDS_MIN + 64 + RECORDS_PER_SLOT * u64::from(least))
                        * RECORD_BYTES as u64;
                    format!(
                        "{} bytes for data and {} bytes for metadata are needed",
                        data_offset + u64::from(least) * block,
                        RESERVED_BYTES
                            + tree_bytes
                            + table_bytes(u64::from(least))
                            + log_bytes(u64::from(least), unit).max(records),
                    )
                }
            };
            let metadata = input.metadata_bytes;
            let metadata =
                metadata.map_or_else(String::new, |bytes| format!(" with {bytes} for metadata"));
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "a cache of {}-byte blocks does not fit on {} bytes{metadata}\n\
                     help: use a larger device: at least {needed}",
                    block << top,
                    input.data_bytes,
                ),
            ));
        }
        Ok(Self {
            sequence: 1,
            compat: 0,
            ro_compat: 0,
            incompat: match top {
                0 => 0,
                _ => INCOMPAT_SIZES,
            } | match input.dirty_tracking {
                DirtyTracking::Exact => 0,
                DirtyTracking::Abt | DirtyTracking::None => INCOMPAT_TRACKING,
            } | match input.checksums {
                true => INCOMPAT_CHECKSUMS,
                false => 0,
            } | match unit < SECTOR_BYTES {
                true => INCOMPAT_LINES,
                false => 0,
            },
            uuid: input.uuid,
            lineage: input.uuid,
            service: Service::default(),
            place: String::new(),
            role: match input.metadata_bytes {
                Some(_) => Role::Metadata,
                None => Role::Whole,
            },
            region_shift: input.region_shift,
            block_size_bytes: input.block_size_bytes,
            classes: input.classes,
            slots,
            data_offset,
            log: LogGeometry {
                offset: RESERVED_BYTES,
                records: log_size / RECORD_BYTES as u64,
                unit_bytes: unit,
            },
            dirty_tracking: input.dirty_tracking,
            tree_offset: match tree_bytes {
                0 => 0,
                _ => RESERVED_BYTES + log_size,
            },
            tree_epoch: 1,
            checksums_offset: match input.checksums {
                true => RESERVED_BYTES + log_size + tree_bytes,
                false => 0,
            },
            reached: 0,
            zones: Some(DirtyZones::new(ZONE_SHIFT)),
            next_volume: 1,
            volumes: Vec::new(),
        })
    }
}
