//! The part of a journal's header that ties it to one opening of a cache on its devices.
//!
//! A UUID alone does not distinguish a cache from its copy. So the header names the devices and the
//! generation of the opening that began the journal, as the superblock does. Each opening raises
//! the generation. The journal announces the next one before the superblock has it, and is
//! restarted with it afterwards. So wherever a process dies, the two agree.

use super::{AT_BOOT, AT_MAGIC, AT_UUID, MAGIC, REACHED_BITS, is_magic};
use crate::Seed;
use crate::codec::{get_id, get_u32, get_u64, put_u32, put_u64};
use crate::media::{MEDIA_BYTES, Media};

/// Byte of the header at which the tie begins.
pub(super) const AT_TIE: usize = 320;
const GENERATION: usize = 0;
const MEDIA: usize = 8;
const CHECKSUM: usize = MEDIA + MEDIA_BYTES;
/// Length of a tie, bytes.
pub(super) const TIE_BYTES: usize = CHECKSUM + 8;
/// The next generation: 48 bits, above them a checksum; zero if none is announced.
pub(super) const AT_NEXT: usize = 384;
/// Length of the path, in two bytes, and the path.
const AT_PLACE: usize = 512;
/// Longest path of a device that a journal notes, bytes; a longer one is cut at its beginning.
const PLACE_BYTES: usize = 1024;
/// Length of the part of a journal that names its owner, bytes.
pub const HEAD_BYTES: usize = 4096;

/// Ties a journal to one opening of a cache. All zero in a journal of an earlier version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tie {
    /// The devices that the cache was on.
    pub media: Media,
    /// The generation of the opening.
    pub generation: u64,
    /// The generation that the next opening was about to take; zero if none was.
    pub next: u64,
    /// Whether the header is damaged where it says this.
    pub is_damaged: bool,
}

/// Relation of a journal to a cache with the same UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// It is that of the cache's last opening.
    Own,
    /// It is that of the same opening on other devices: these are a copy of those.
    Copied,
    /// It is that of another opening on other devices.
    Foreign,
    /// It is that of a later opening on these devices: these hold an earlier state of the cache.
    Newer,
    /// It is that of an earlier opening on these devices.
    Older,
}

impl Tie {
    /// Returns the relation of the journal to the cache on `media` whose superblock has
    /// `generation`. A value that either of them lacks counts as equal.
    #[must_use]
    pub fn relation(&self, media: Media, generation: u64) -> Relation {
        let is_known = self.generation != 0 && generation != 0;
        let is_same = !is_known || [self.generation, self.next].contains(&generation);
        match (self.media.differs_from(media), is_same) {
            (false, true) => Relation::Own,
            (true, true) if is_known => Relation::Copied,
            (true, _) => Relation::Foreign,
            (false, false) if self.generation > generation => Relation::Newer,
            (false, false) => Relation::Older,
        }
    }

    pub(super) fn encode(&self, seed: Seed) -> [u8; TIE_BYTES] {
        let mut out = [0; TIE_BYTES];
        put_u64(&mut out, GENERATION, self.generation);
        self.media.encode(&mut out, MEDIA);
        let checksum = seed.checksum(&out[..CHECKSUM]);
        put_u32(&mut out, CHECKSUM, checksum);
        out
    }
}

/// The part of a journal that names its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// UUID of the cache.
    pub uuid: [u8; 16],
    /// Boot of the machine.
    pub boot_id: [u8; 16],
    /// The opening that it belongs to.
    pub tie: Tie,
    /// Path of the cache's device; empty if unknown.
    pub place: String,
}

impl Head {
    /// Reads the first [`HEAD_BYTES`] of a journal. None if these bytes are not the head of one.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEAD_BYTES || !is_magic(&bytes[AT_MAGIC..AT_MAGIC + 8]) {
            return None;
        }
        // Versions before this one left zeroes where there was nothing to say.
        let is_bare = get_u64(bytes, AT_MAGIC) != MAGIC;
        let uuid = get_id(bytes, AT_UUID);
        let seed = Seed::new(&uuid);
        let raw = &bytes[AT_TIE..AT_TIE + TIE_BYTES];
        let mut tie = Tie {
            media: Media::decode(raw, MEDIA),
            generation: get_u64(raw, GENERATION),
            next: 0,
            is_damaged: false,
        };
        tie.is_damaged = match tie.generation {
            0 if is_bare => raw.iter().any(|byte| *byte != 0),
            _ => get_u32(raw, CHECKSUM) != seed.checksum(&raw[..CHECKSUM]),
        };
        let word = get_u64(bytes, AT_NEXT);
        let next = word & ((1 << REACHED_BITS) - 1);
        match word {
            0 if is_bare => {}
            _ if word == super::sealed(seed, next) => tie.next = next,
            _ => tie.is_damaged = true,
        }
        let len = usize::from(bytes[AT_PLACE]) | usize::from(bytes[AT_PLACE + 1]) << 8;
        let place = &bytes[AT_PLACE + 2..AT_PLACE + 2 + len.min(PLACE_BYTES)];
        Some(Self {
            uuid,
            boot_id: get_id(bytes, AT_BOOT),
            tie,
            place: String::from_utf8_lossy(place).into_owned(),
        })
    }
}

/// Encodes the path of a device; one that is too long loses its beginning.
pub(super) fn encode_place(place: &str) -> (usize, Vec<u8>) {
    let bytes = place.as_bytes();
    let end = &bytes[bytes.len().saturating_sub(PLACE_BYTES)..];
    let len = u16::try_from(end.len()).expect("at most PLACE_BYTES");
    let mut out = len.to_le_bytes().to_vec();
    out.extend_from_slice(end);
    (AT_PLACE, out)
}

#[cfg(test)]
mod tests {
    use forebay_block::Identity;

    use super::*;

    fn on(medium: u64) -> Media {
        Media {
            metadata: Identity::of(medium),
            data: Identity::of(medium),
        }
    }

    #[test]
    fn a_journal_differs_from_those_of_copies_and_of_other_openings() {
        let tie = |medium, generation, next| Tie {
            media: on(medium),
            generation,
            next,
            is_damaged: false,
        };
        for (journal, medium, generation, expected) in [
            (tie(1, 5, 0), 1, 5, Relation::Own),
            // The process died between the superblock and the new journal.
            (tie(1, 5, 6), 1, 6, Relation::Own),
            (tie(1, 5, 6), 1, 5, Relation::Own),
            (tie(1, 5, 0), 2, 5, Relation::Copied),
            (tie(1, 5, 6), 2, 6, Relation::Copied),
            (tie(1, 5, 0), 2, 4, Relation::Foreign),
            (tie(1, 5, 0), 2, 6, Relation::Foreign),
            (tie(1, 5, 0), 1, 4, Relation::Newer),
            (tie(1, 5, 6), 1, 4, Relation::Newer),
            (tie(1, 5, 0), 1, 6, Relation::Older),
            (tie(1, 5, 6), 1, 7, Relation::Older),
            // Earlier versions know neither, or not the generation.
            (tie(0, 0, 0), 1, 5, Relation::Own),
            (tie(1, 5, 0), 1, 0, Relation::Own),
            (tie(1, 5, 0), 2, 0, Relation::Foreign),
            (tie(1, 5, 0), 0, 5, Relation::Own),
        ] {
            let found = journal.relation(on(medium), generation);
            assert_eq!(
                found, expected,
                "{journal:?} and {medium} in generation {generation}"
            );
        }
    }
}
