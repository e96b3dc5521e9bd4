//! Properties of a disk: features, configuration space, serial number.

use forebay_volume::VolumeHandle;
use forebay_wire::virtio_blk::{Config, ID_BYTES, SECTOR_BYTES, feature};
use vhost::vhost_user::VhostUserVirtioFeatures;

use crate::succession::Succession;

/// Number of queues of a disk.
pub(super) const QUEUES: u16 = 16;
/// Maximum entries of a queue.
pub(super) const MAX_QUEUE_SIZE: u16 = 1024;
/// Maximum number of data segments in a request, without header and status.
pub(super) const MAX_SEGMENTS: u32 = 126;
/// Maximum number of ranges in a discard or write-zeroes.
pub(super) const MAX_RANGES: usize = 32;
/// Maximum sectors of such a range: 2 GiB.
pub(super) const MAX_RANGE_SECTORS: u32 = 4 << 20;

/// A volume as a disk.
pub(super) struct Export {
    volume: VolumeHandle,
    /// Whether virtual machines of an earlier process may continue.
    pub(super) succession: Succession,
}

impl Export {
    pub(super) const fn new(volume: VolumeHandle, succession: Succession) -> Self {
        Self { volume, succession }
    }

    pub(super) const fn volume(&self) -> &VolumeHandle {
        &self.volume
    }

    /// Returns the offered features.
    pub(super) fn features(&self) -> u64 {
        let mut features = feature::SEG_MAX
            | feature::BLK_SIZE
            | feature::FLUSH
            | feature::TOPOLOGY
            | feature::MQ
            | feature::WRITE_ZEROES
            | feature::RING_INDIRECT_DESC
            | feature::RING_EVENT_IDX
            | feature::VERSION_1
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        if self.volume.info().discard {
            features |= feature::DISCARD;
        }
        if self.volume.read_only() {
            features |= feature::RO;
        }
        features
    }

    /// Returns a part of the configuration space, padded with zeroes.
    pub(super) fn config(&self, offset: usize, len: usize) -> Vec<u8> {
        let info = self.volume.info();
        let blocks = (info.physical_block_bytes / info.logical_block_bytes).max(1);
        let space = Config {
            capacity_sectors: info.size_bytes / SECTOR_BYTES,
            max_segments: MAX_SEGMENTS,
            block_bytes: info.logical_block_bytes,
            physical_block_shift: u8::try_from(blocks.ilog2()).unwrap_or(0),
            queues: QUEUES,
            max_range_sectors: MAX_RANGE_SECTORS,
            max_ranges: MAX_RANGES as u32,
        }
        .encode();
        let part = space.iter().copied().skip(offset);
        part.chain(std::iter::repeat(0)).take(len).collect()
    }

    /// Returns the serial number: the volume's name, truncated if necessary.
    pub(super) fn serial(&self) -> [u8; ID_BYTES] {
        let mut serial = [0; ID_BYTES];
        for (place, byte) in serial.iter_mut().zip(self.volume.name().bytes()) {
            *place = byte;
        }
        serial
    }
}
