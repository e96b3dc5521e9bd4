//! The devices that a cache lies on, as the superblock and the process journal name them.

use forebay_block::Identity;

use crate::codec::{get_optional, get_u64, put_optional, put_u64};

/// Identities of the devices that a cache lies on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Media {
    /// Identity of the device that holds the metadata.
    pub metadata: Identity,
    /// Identity of the device that holds the data; the same one where a cache has one device.
    pub data: Identity,
}

/// Length of encoded [`Media`], bytes.
pub(crate) const MEDIA_BYTES: usize = 2 * IDENTITY_BYTES;
const IDENTITY_BYTES: usize = 24;

fn identity(bytes: &[u8], at: usize) -> Identity {
    Identity {
        medium: get_u64(bytes, at),
        birth: get_u64(bytes, at + 8),
        start: get_optional(get_u64(bytes, at + 16)),
        ..Identity::default()
    }
}

impl Media {
    /// Returns whether one of the devices is known to be another one. An unknown identity differs
    /// from none.
    #[must_use]
    pub const fn differs_from(self, other: Self) -> bool {
        self.metadata.differs_from(other.metadata) || self.data.differs_from(other.data)
    }

    pub(crate) fn encode(self, out: &mut [u8], at: usize) {
        for (at, identity) in [(at, self.metadata), (at + IDENTITY_BYTES, self.data)] {
            put_u64(out, at, identity.medium);
            put_u64(out, at + 8, identity.birth);
            put_u64(out, at + 16, put_optional(identity.start));
        }
    }

    pub(crate) fn decode(bytes: &[u8], at: usize) -> Self {
        Self {
            metadata: identity(bytes, at),
            data: identity(bytes, at + IDENTITY_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_differ_if_either_device_does_and_unknown_ones_do_not() {
        let media = |metadata, data| Media {
            metadata: Identity::of(metadata),
            data: Identity::of(data),
        };
        assert!(!media(1, 2).differs_from(media(1, 2)));
        assert!(media(1, 2).differs_from(media(3, 2)));
        assert!(media(1, 2).differs_from(media(1, 3)));
        assert!(!media(0, 2).differs_from(media(3, 2)));
        assert!(!media(1, 2).differs_from(Media::default()));
        let mut born = media(1, 2);
        born.data.birth = 7;
        born.metadata.start = Some(4096);
        let mut bytes = [0; MEDIA_BYTES];
        born.encode(&mut bytes, 0);
        assert_eq!(Media::decode(&bytes, 0), born);
    }
}
