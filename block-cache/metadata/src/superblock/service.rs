//! The last time that a cache was in service, and the identity that a copy of it gets.

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Result};

use super::{COPY_BYTES, COPY_STRIDE_BYTES, INCOMPAT_LINEAGE, Role, Superblock};
use crate::codec::{get_u16, get_u64, put_u16, put_u64};
use crate::media::Media;
use crate::order;

const AT_GENERATION: usize = 144;
const AT_MEDIA: usize = 152;
const AT_CUT: usize = 200;
const AT_SPARSE: usize = 129;
const AT_CLOSED: usize = 130;
const AT_WAS_CUT: usize = 131;
const AT_DATA_GENERATION: usize = 480;
const AT_NEXT: usize = 488;
/// Length of the path, in two bytes, and the path.
const AT_PLACE: usize = 224;
/// Longest path that is noted, bytes. Of a longer one nothing is.
const PLACE_BYTES: usize = 254;

/// State of the superblock from the last time that the cache was in service. All zero if an earlier
/// version wrote it last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Number of that time: each opening takes a higher one. Zero: unknown.
    pub generation: u64,
    /// The devices that the cache was on.
    pub media: Media,
    /// Size to which the data device was truncated while the cache was in service, in bytes. The
    /// data beyond it is lost. Zero if it was not truncated.
    pub cut_bytes: u64,
    /// Whether the data device was truncated while the cache was in service, and may have newer
    /// data past the cut. Then each hole in cached data means lost data.
    pub was_cut: bool,
    /// The data device is a copy that has holes where the original had zeroes. They are no evidence
    /// of a truncation.
    pub is_sparse: bool,
    /// The cache was shut down cleanly: no process journal is needed, even if records are missing.
    pub is_closed: bool,
    /// Generation that the superblock of a separate data device has, or announces. Zero: unknown,
    /// or there is none.
    pub data_generation: u64,
    /// On a separate data device: the generation that a clean end was about to take. Zero: none
    /// was.
    pub next: u64,
}

impl Service {
    pub(super) fn encode(self, out: &mut [u8]) {
        put_u64(out, AT_GENERATION, self.generation);
        self.media.encode(out, AT_MEDIA);
        put_u64(out, AT_CUT, self.cut_bytes);
        out[AT_SPARSE] = u8::from(self.is_sparse);
        out[AT_CLOSED] = u8::from(self.is_closed);
        out[AT_WAS_CUT] = u8::from(self.was_cut);
        put_u64(out, AT_DATA_GENERATION, self.data_generation);
        put_u64(out, AT_NEXT, self.next);
    }

    pub(super) fn decode(bytes: &[u8]) -> Self {
        Self {
            generation: get_u64(bytes, AT_GENERATION),
            media: Media::decode(bytes, AT_MEDIA),
            cut_bytes: get_u64(bytes, AT_CUT),
            is_sparse: bytes[AT_SPARSE] != 0,
            is_closed: bytes[AT_CLOSED] != 0,
            was_cut: bytes[AT_WAS_CUT] != 0,
            data_generation: get_u64(bytes, AT_DATA_GENERATION),
            next: get_u64(bytes, AT_NEXT),
        }
    }
}

pub(super) fn encode_place(place: &str, out: &mut [u8]) {
    let bytes = place.as_bytes();
    if bytes.len() <= PLACE_BYTES {
        put_u16(
            out,
            AT_PLACE,
            u16::try_from(bytes.len()).expect("at most PLACE_BYTES"),
        );
        out[AT_PLACE + 2..AT_PLACE + 2 + bytes.len()].copy_from_slice(bytes);
    }
}

pub(super) fn decode_place(bytes: &[u8]) -> String {
    let len = usize::from(get_u16(bytes, AT_PLACE)).min(PLACE_BYTES);
    String::from_utf8_lossy(&bytes[AT_PLACE + 2..AT_PLACE + 2 + len]).into_owned()
}

impl Superblock {
    /// Returns the identities of the devices on which a cache is found now.
    #[must_use]
    pub fn media_of(data: &dyn BlockDevice, metadata: Option<&dyn BlockDevice>) -> Media {
        let data = data.info().identity;
        Media {
            metadata: metadata.map_or(data, |device| device.info().identity),
            data,
        }
    }

    /// Returns the UUID in the newer of a superblock's copies that verify, from the first
    /// [`RESERVED_BYTES`](super::RESERVED_BYTES) of a device. None where there is none.
    #[must_use]
    pub fn uuid_in(reserved: &[u8]) -> Option<[u8; 16]> {
        let stride = usize::try_from(COPY_STRIDE_BYTES).ok()?;
        let copies = [0, stride].map(|at| Self::decode(reserved.get(at..at + COPY_BYTES)?));
        let newer = copies
            .into_iter()
            .flatten()
            .max_by_key(|copy| copy.sequence);
        newer.map(|copy| copy.uuid)
    }

    /// Returns whether `data`, the superblock of the separate data device, is of the same state of
    /// the cache as this one of the metadata device. Where an earlier version wrote this one last,
    /// that is not known, and speaks against nothing.
    #[must_use]
    pub fn agrees_with(&self, data: &Self) -> bool {
        let (wanted, found) = (self.service.data_generation, data.service);
        wanted == 0
            || found.generation == self.service.generation
            || [found.generation, found.next].contains(&wanted)
    }

    /// Returns whether both are of one cache, or one is of a copy of it that got another UUID.
    #[must_use]
    pub fn shares_lineage(&self, other: &Self) -> bool {
        self.lineage == other.lineage
    }

    /// Returns whether [`Superblock::change_uuid`] was interrupted on this device: one copy has the
    /// new UUID, and the other one has the former one.
    pub async fn is_half_changed(device: &dyn BlockDevice) -> bool {
        let mut found = Vec::new();
        for copy in 0..2 {
            let buf = Buf::scratch(COPY_BYTES);
            let read = device.read(copy * COPY_STRIDE_BYTES, buf.clone()).await;
            found.extend(read.ok().and_then(|_| Self::decode(&buf.to_vec())));
        }
        match &found[..] {
            [one, other] => one.uuid != other.uuid && one.shares_lineage(other),
            _ => false,
        }
    }

    /// Gives the cache on these devices another UUID, durably. Everything else stays: the
    /// structures on media still verify under the UUID with which the cache was formatted. After an
    /// interruption it can be rerun.
    ///
    /// # Errors
    /// As [`Superblock::read`], or the devices' own.
    pub async fn change_uuid(
        data: &dyn BlockDevice,
        metadata: Option<&dyn BlockDevice>,
        uuid: [u8; 16],
        place: &str,
    ) -> Result<()> {
        let media = Self::media_of(data, metadata);
        let apart = metadata.is_some();
        let holders = [
            apart.then_some((data, Role::Data)),
            Some((metadata.unwrap_or(data), {
                if apart { Role::Metadata } else { Role::Whole }
            })),
        ];
        for (device, role) in holders.into_iter().flatten() {
            // A process that was killed may have left the newest copy in the device's cache.
            order::flush(device).await?;
            let mut changed = Self::read(device).await?;
            changed.uuid = uuid;
            changed.incompat |= INCOMPAT_LINEAGE;
            changed.service.media = media;
            match role {
                // The metadata device names the generation that it has.
                Role::Data => changed.place.clear(),
                Role::Whole | Role::Metadata => {
                    changed.service.generation += 1;
                    changed.place = place.to_owned();
                }
            }
            // One copy after the other, so that an interruption leaves a sound one.
            for _ in 0..2 {
                changed.sequence += 1;
                changed.write(device, role).await?;
            }
        }
        Ok(())
    }
}
