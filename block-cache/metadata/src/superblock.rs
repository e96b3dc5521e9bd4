//! The superblock: identity and layout of this cache, and its table of volumes.
//!
//! It has two copies, [`COPY_STRIDE_BYTES`] apart at the start of the device. A change is written
//! over the older copy and flushed. The copy that verifies and has the higher sequence wins. A
//! device that holds only data (its cache has a separate metadata device) carries the same
//! superblock with its own role. So a part of a cache is always recognised as such.

mod checksums;
mod features;
mod lines;
mod plan;
mod repair;
mod service;
mod sound;
mod tracking;
mod zones;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Error, ErrorKind, Identity, Result};

use crate::order;

use crate::Seed;
use crate::codec::{
    get_id, get_optional, get_u16, get_u32, get_u64, put_optional, put_u16, put_u32, put_u64,
};
use crate::journal::Recovered;
use crate::log::LogGeometry;
use crate::record::RECORD_BYTES;

pub use features::{
    INCOMPAT_CHECKSUMS, INCOMPAT_LINEAGE, INCOMPAT_LINES, INCOMPAT_SIZES, INCOMPAT_TRACKING,
    KNOWN_INCOMPAT, KNOWN_RO_COMPAT,
};
pub use lines::{LINE_BYTES, SECTOR_BYTES};
pub use plan::PlanInput;
pub use service::Service;
pub use tracking::DirtyTracking;
pub use zones::{DirtyZones, ZONE_BITS, ZONE_SHIFT};

/// The first eight bytes of either copy.
pub const MAGIC: [u8; 8] = *b"FOREBAY\0";
/// The version that this code writes.
pub const VERSION: u32 = 1;
/// Length of one copy, bytes.
pub const COPY_BYTES: usize = 16 << 10;
/// Distance between the two copies, bytes.
pub const COPY_STRIDE_BYTES: u64 = 64 << 10;
/// Where the log (or on a data-only device the data) can begin, bytes.
pub const RESERVED_BYTES: u64 = 2 * COPY_STRIDE_BYTES;
/// Volumes that one cache knows at most.
pub const MAX_VOLUMES: usize = 64;
/// Longest volume name, bytes.
pub const MAX_NAME_BYTES: usize = 64;

const HEADER_BYTES: usize = 512;
const AT_LINEAGE: usize = 208;
const VOLUME_BYTES: usize = 128;
const _: () = assert!(HEADER_BYTES + MAX_VOLUMES * VOLUME_BYTES <= COPY_BYTES - ZONE_BITS / 8);

/// Role of a device in its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Data and metadata.
    Whole,
    /// Data; the metadata lies elsewhere.
    Data,
    /// Metadata; the data lies elsewhere.
    Metadata,
}

/// A volume as the cache knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Its number in block records; never given to another volume of this cache.
    pub id: u16,
    /// Its name in the configuration.
    pub name: String,
    /// How often it was attached, to this cache or without one (docs/internals/rules/06-epochs.md).
    pub epoch: u64,
    /// Size of the backing device at the last attach, bytes.
    pub size_bytes: u64,
    /// Identity of the backing device at that time.
    pub identity: Identity,
    /// Whether a flush of the backing device failed that clients' writes hung on.
    pub flush_failed: bool,
    /// Whether a write to it or a flush failed, or may have. Data that it shows may be lost with
    /// its next power loss.
    pub may_show_lost: bool,
    /// Whether an opening of the cache found data of it lost, and no start that served it has
    /// reported that.
    pub has_unreported_loss: bool,
    /// First byte of a clean cached copy that differed from the backing device at the last attach.
    /// `None` if all compared copies were equal.
    pub differs_at: Option<u64>,
}

/// The superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The newer copy has the higher one.
    pub sequence: u64,
    /// Features that any version may ignore.
    pub compat: u64,
    /// Features that a version that does not know them may read but not write.
    pub ro_compat: u64,
    /// Features that a version must know.
    pub incompat: u64,
    /// The cache's identity.
    pub uuid: [u8; 16],
    /// The identity with which it was formatted, under which what is on media verifies.
    pub lineage: [u8; 16],
    /// The last time that the cache was in service.
    pub service: Service,
    /// Path of its metadata device then; empty if unknown.
    pub place: String,
    /// Role of the device that holds this copy.
    pub role: Role,
    /// Blocks that share a mark, as a power of two.
    pub region_shift: u8,
    /// The smallest cache block size, bytes: a slot.
    pub block_size_bytes: u32,
    /// The block sizes. Bit `k`: blocks of `2^k` slots.
    pub classes: u8,
    /// Number of slots.
    pub slots: u32,
    /// Where slot 0 begins on the data device, bytes.
    pub data_offset: u64,
    /// Where the log lies on the metadata device.
    pub log: LogGeometry,
    /// How it knows what was overwritten in place.
    pub dirty_tracking: DirtyTracking,
    /// Where the bit-tree lies on the metadata device, zero if there is none.
    pub tree_offset: u64,
    /// How often the bit-tree was formatted or loaded.
    pub tree_epoch: u32,
    /// Where the checksums of cached data lie on the metadata device, zero if it has none.
    pub checksums_offset: u64,
    /// The log's records before this one were durable when this was written; zero if nothing is
    /// known. So what lacks of them at the log's end is damage.
    pub reached: u64,
    /// Where volumes may be dirty; none if that is not known.
    pub zones: Option<DirtyZones>,
    /// The number that the next new volume gets.
    pub next_volume: u16,
    /// The volumes.
    pub volumes: Vec<VolumeEntry>,
}

impl Superblock {
    /// The seed of the checksums on media.
    #[must_use]
    pub fn seed(&self) -> Seed {
        Seed::new(&self.lineage)
    }

    /// Where the cached data ends on the data device, bytes.
    #[must_use]
    pub fn data_end(&self) -> u64 {
        self.data_offset + u64::from(self.slots) * u64::from(self.block_size_bytes)
    }

    /// Returns where the metadata ends on the device that holds the log, in bytes.
    #[must_use]
    pub fn metadata_end(&self) -> u64 {
        let log_end = self.log.offset + self.log.records * RECORD_BYTES as u64;
        let tree_end = self.tree().map_or(0, |tree| tree.offset + tree.bytes());
        let table_end = self
            .checksum_table()
            .map_or(0, |sums| sums.offset + sums.bytes());
        log_end.max(tree_end).max(table_end)
    }

    /// Returns the position that the log certainly reached, from state outside the log: the
    /// superblock, and the process journal if there is one. Before the first volume was attached
    /// there was a record that the cache is open.
    #[must_use]
    pub fn log_reached(&self, journal: Option<&Recovered>) -> u64 {
        let known_volumes = u64::from(self.next_volume > 1);
        let journal = journal.map_or(0, |journal| journal.reached);
        self.reached.max(journal).max(known_volumes)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; COPY_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        put_u32(&mut out, 12, VERSION);
        put_u64(&mut out, 16, self.sequence);
        put_u64(&mut out, 24, self.compat);
        put_u64(&mut out, 32, self.ro_compat);
        put_u64(&mut out, 40, self.incompat);
        out[48..64].copy_from_slice(&self.uuid);
        out[64] = match self.role {
            Role::Whole => 0,
            Role::Data => 1,
            Role::Metadata => 2,
        };
        out[65] = self.region_shift;
        // One size is what a byte of zero says, as it did before there were several.
        out[66] = if self.classes == 1 { 0 } else { self.classes };
        out[67] = self.dirty_tracking.encode();
        put_u32(&mut out, 68, self.block_size_bytes);
        put_u32(&mut out, 72, self.slots);
        put_u32(&mut out, 76, self.log.unit_bytes);
        put_u64(&mut out, 80, self.data_offset);
        put_u64(&mut out, 88, self.log.offset);
        put_u64(&mut out, 96, self.log.records);
        put_u16(&mut out, 104, self.next_volume);
        put_u16(
            &mut out,
            106,
            u16::try_from(self.volumes.len()).expect("at most MAX_VOLUMES"),
        );
        if self.dirty_tracking == DirtyTracking::Abt {
            put_u32(&mut out, 108, self.tree_epoch);
            put_u64(&mut out, 112, self.tree_offset);
        }
        put_u64(&mut out, 120, self.checksums_offset);
        put_u64(&mut out, 136, self.reached);
        self.service.encode(&mut out);
        service::encode_place(&self.place, &mut out);
        if self.incompat & INCOMPAT_LINEAGE != 0 {
            out[AT_LINEAGE..AT_LINEAGE + 16].copy_from_slice(&self.lineage);
        }
        DirtyZones::encode(self.zones.as_ref(), &mut out);
        for (nth, volume) in self.volumes.iter().enumerate() {
            let at = HEADER_BYTES + nth * VOLUME_BYTES;
            let entry = &mut out[at..at + VOLUME_BYTES];
            put_u16(entry, 0, volume.id);
            put_u16(
                entry,
                2,
                u16::try_from(volume.name.len()).expect("at most MAX_NAME_BYTES"),
            );
            entry[4] = u8::from(volume.flush_failed)
                | u8::from(volume.may_show_lost) << 1
                | u8::from(volume.has_unreported_loss) << 2;
            put_u64(entry, 8, volume.epoch);
            put_u64(entry, 16, volume.size_bytes);
            put_u64(entry, 24, volume.identity.medium);
            put_u64(entry, 32, volume.identity.birth);
            put_u64(entry, 40, put_optional(volume.identity.start));
            put_u64(entry, 48, put_optional(volume.differs_at));
            put_u64(entry, 56, volume.identity.instance);
            entry[64..64 + volume.name.len()].copy_from_slice(volume.name.as_bytes());
        }
        let checksum = Seed::new(&self.uuid).checksum(&out[12..]);
        put_u32(&mut out, 8, checksum);
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let uuid = get_id(bytes, 48);
        if bytes[..8] != MAGIC || get_u32(bytes, 8) != Seed::new(&uuid).checksum(&bytes[12..]) {
            return None;
        }
        let volumes = usize::from(get_u16(bytes, 106)).min(MAX_VOLUMES);
        let (block, classes) = (get_u32(bytes, 68), bytes[66].max(1));
        if !block.is_power_of_two() || classes & 0x81 != 1 {
            return None;
        }
        Some(Self {
            sequence: get_u64(bytes, 16),
            compat: get_u64(bytes, 24),
            ro_compat: get_u64(bytes, 32),
            incompat: get_u64(bytes, 40),
            uuid,
            lineage: match get_u64(bytes, 40) & INCOMPAT_LINEAGE {
                0 => uuid,
                _ => get_id(bytes, AT_LINEAGE),
            },
            service: Service::decode(bytes),
            place: service::decode_place(bytes),
            role: match bytes[64] {
                0 => Role::Whole,
                1 => Role::Data,
                2 => Role::Metadata,
                _ => return None,
            },
            region_shift: bytes[65],
            block_size_bytes: block,
            classes,
            slots: get_u32(bytes, 72),
            data_offset: get_u64(bytes, 80),
            log: LogGeometry {
                offset: get_u64(bytes, 88),
                records: get_u64(bytes, 96),
                unit_bytes: get_u32(bytes, 76),
            },
            // The features tell readers about values that this version does not know.
            dirty_tracking: DirtyTracking::decode(bytes[67]).unwrap_or_default(),
            tree_offset: get_u64(bytes, 112),
            tree_epoch: get_u32(bytes, 108).max(1),
            checksums_offset: get_u64(bytes, 120),
            reached: get_u64(bytes, 136),
            // A block lies in one zone.
            zones: DirtyZones::decode(bytes)
                .filter(|zones| block.ilog2() + classes.ilog2() <= u32::from(zones.shift())),
            next_volume: get_u16(bytes, 104),
            volumes: (0..volumes)
                .map(|nth| {
                    let at = HEADER_BYTES + nth * VOLUME_BYTES;
                    let entry = &bytes[at..at + VOLUME_BYTES];
                    let name = usize::from(get_u16(entry, 2)).min(MAX_NAME_BYTES);
                    VolumeEntry {
                        id: get_u16(entry, 0),
                        name: String::from_utf8_lossy(&entry[64..64 + name]).into_owned(),
                        epoch: get_u64(entry, 8),
                        size_bytes: get_u64(entry, 16),
                        identity: Identity {
                            medium: get_u64(entry, 24),
                            birth: get_u64(entry, 32),
                            start: get_optional(get_u64(entry, 40)),
                            instance: get_u64(entry, 56),
                            ..Identity::default()
                        },
                        flush_failed: entry[4] & 1 != 0,
                        may_show_lost: entry[4] & 2 != 0,
                        has_unreported_loss: entry[4] & 4 != 0,
                        differs_at: get_optional(get_u64(entry, 48)),
                    }
                })
                .collect(),
        })
    }

    /// Reads a device's superblock: the newer copy that verifies.
    ///
    /// # Errors
    /// `NotFound` if neither copy belongs to Forebay. `Corrupt` if there are traces of one and
    /// neither verifies. `Unsupported` if it needs a newer version. The device's own error.
    pub async fn read(device: &dyn BlockDevice) -> Result<Self> {
        let mut best: Option<Self> = None;
        let mut traces = false;
        for copy in 0..2 {
            let buf = Buf::scratch(COPY_BYTES);
            // A device that was cut may have a copy still, which says how long it was.
            if device.info().size_bytes < copy * COPY_STRIDE_BYTES + COPY_BYTES as u64 {
                break;
            }
            // An unreadable copy is what the other one is for.
            if device
                .read(copy * COPY_STRIDE_BYTES, buf.clone())
                .await
                .is_err()
            {
                traces = true;
                continue;
            }
            let bytes = buf.to_vec();
            traces |= bytes[..8] == MAGIC;
            let found = Self::decode(&bytes);
            if found.as_ref().map(|s| s.sequence) > best.as_ref().map(|s| s.sequence) {
                best = found;
            }
        }
        let name = device.info().name;
        let Some(superblock) = best else {
            return Err(if traces {
                Error::new(
                    ErrorKind::Corrupt,
                    format!("{name}: both copies of the superblock are damaged"),
                )
            } else {
                Error::new(
                    ErrorKind::NotFound,
                    format!("{name} holds no Forebay cache\nhelp: name a device that has one"),
                )
            });
        };
        if superblock.incompat & !KNOWN_INCOMPAT != 0
            || superblock.ro_compat & !KNOWN_RO_COMPAT != 0
        {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{name} was written by a newer Forebay\nhelp: upgrade to open it"),
            ));
        }
        superblock.sound(&name)?;
        Ok(superblock)
    }

    /// How many of the two copies on a device verify.
    pub async fn sound_copies(device: &dyn BlockDevice) -> u32 {
        let mut sound = 0;
        for copy in 0..2 {
            let buf = Buf::scratch(COPY_BYTES);
            let read = device.read(copy * COPY_STRIDE_BYTES, buf.clone()).await;
            sound += u32::from(read.is_ok() && Self::decode(&buf.to_vec()).is_some());
        }
        sound
    }

    /// Writes this superblock over the older copy on `device`, as `role`, and makes it durable; on
    /// byte-addressable media, the lines in which that differs. The caller has raised `sequence`.
    ///
    /// # Errors
    /// The device's own.
    pub async fn write(&self, device: &dyn BlockDevice, role: Role) -> Result<()> {
        let copy = Self {
            role,
            ..self.clone()
        };
        let at = (self.sequence % 2) * COPY_STRIDE_BYTES;
        let bytes = copy.encode();
        let parts = match device.info().byte_addressable {
            true => lines::changed(device, at, &bytes).await,
            false => vec![(at, Buf::copied(&bytes))],
        };
        order::write_durably(device, parts).await
    }
}

#[cfg(test)]
mod tests;
