//! Decoders of Identify pages for hosts. Any bytes are a valid page; hosts check the values that
//! they use.

use super::identify::{FORMER, Page, VENDOR_SPECIFIC};

fn u16_at(page: &Page, at: usize) -> u16 {
    u16::from_le_bytes([page[at], page[at + 1]])
}

fn u32_at(page: &Page, at: usize) -> u32 {
    u32::from(u16_at(page, at)) | u32::from(u16_at(page, at + 2)) << 16
}

fn u64_at(page: &Page, at: usize) -> u64 {
    u64::from(u32_at(page, at)) | u64::from(u32_at(page, at + 4)) << 32
}

/// Properties of a controller (Base 5.17.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerFacts {
    /// Maximum transfer as a power of two of pages; 0 for no limit ("MDTS").
    pub max_transfer_shift: u8,
    /// Granularity of the keep alive timer, 100 ms ("KAS"); 0 for none.
    pub keep_alive_100ms: u16,
    /// Whether it supports Dataset Management ("ONCS").
    pub dataset_management: bool,
    /// Whether it supports Write Zeroes ("ONCS").
    pub write_zeroes: bool,
    /// Whether completed writes may be in a volatile cache ("VWC").
    pub volatile_cache: bool,
    /// Maximum data in the capsule of an I/O command, bytes ("IOCCSZ"; 0 if that is invalid).
    pub in_capsule_bytes: u32,
    /// Offset of the data in a capsule, in units of 16 bytes ("ICDOFF"); 0 with TCP.
    pub in_capsule_offset: u16,
}

impl ControllerFacts {
    /// Decodes a page.
    #[must_use]
    pub fn decode(page: &Page) -> Self {
        let commands = u16_at(page, 520);
        let capsule = u32_at(page, 1792).saturating_mul(16);
        Self {
            max_transfer_shift: page[77],
            keep_alive_100ms: u16_at(page, 320),
            dataset_management: commands & 1 << 2 != 0,
            write_zeroes: commands & 1 << 3 != 0,
            volatile_cache: page[525] & 1 != 0,
            in_capsule_bytes: capsule.saturating_sub(super::command::COMMAND_BYTES as u32),
            in_capsule_offset: u16_at(page, 1800),
        }
    }
}

/// Properties of a namespace (NVM 4.1.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceFacts {
    /// Size, logical blocks ("NSZE"); 0 if it is inactive.
    pub blocks: u64,
    /// Logical block as a power of two of bytes ("LBADS").
    pub block_shift: u8,
    /// Metadata of each block, bytes ("MS").
    pub metadata_bytes: u16,
    /// Preferred write unit, logical blocks ("NPWG"); 1 if it is not reported.
    pub preferred_blocks: u32,
    /// Whether writes are refused ("NSATTR").
    pub read_only: bool,
    /// "NGUID"; zeroes for none.
    pub nguid: [u8; 16],
    /// "EUI64"; zeroes for none.
    pub eui64: [u8; 8],
}

impl NamespaceFacts {
    /// Decodes a page.
    #[must_use]
    pub fn decode(page: &Page) -> Self {
        // "FLBAS": bits 3:0, and above them 6:5.
        let format = usize::from(page[26] & 0xf | (page[26] >> 1 & 0x30));
        let at = 128 + 4 * format;
        let preferred = page[24] & 1 << 4 != 0;
        let mut facts = Self {
            blocks: u64_at(page, 0),
            block_shift: page[at + 2],
            metadata_bytes: u16_at(page, at),
            preferred_blocks: 1,
            read_only: page[99] & 1 != 0,
            nguid: [0; 16],
            eui64: [0; 8],
        };
        if preferred {
            facts.preferred_blocks = u32::from(u16_at(page, 64)) + 1;
        }
        facts.nguid.copy_from_slice(&page[104..120]);
        facts.eui64.copy_from_slice(&page[120..128]);
        facts
    }
}

/// Returns the UUID of a namespace in an earlier version of the Forebay target, from the
/// namespace's page. Returns `None` for other targets.
#[must_use]
pub fn former_uuid(page: &Page) -> Option<[u8; 16]> {
    let own = page[VENDOR_SPECIFIC..].strip_prefix(&FORMER)?;
    own.first_chunk().copied()
}

/// Returns the UUID among a namespace's identification descriptors (Base 5.17.2.3), if there is
/// one.
#[must_use]
pub fn uuid(page: &Page) -> Option<[u8; 16]> {
    /// "NIDT": a UUID.
    const UUID: u8 = 3;
    let mut rest = &page[..];
    while let Some((&[kind, length, _, _], behind)) = rest.split_first_chunk()
        && length > 0
    {
        let value = behind.get(..usize::from(length))?;
        if kind == UUID {
            return value.try_into().ok();
        }
        rest = &behind[usize::from(length)..];
    }
    None
}

/// Returns the first of a list of NSIDs (Base 4.4.2), if there is one.
#[must_use]
pub fn first_namespace(page: &Page) -> Option<u32> {
    Some(u32_at(page, 0)).filter(|&id| id != 0)
}

#[cfg(test)]
mod tests {
    use super::super::identify::{self, Controller, ControllerKind, Namespace, PAGE_BYTES};
    use super::*;

    #[test]
    fn a_host_reads_the_properties_of_a_controller() {
        let mut said = Controller {
            kind: ControllerKind::Io,
            serial: "1".into(),
            model: "m".into(),
            revision: "r".into(),
            id: 1,
            subsystem: "nqn.x".into(),
            max_transfer_shift: 8,
            events: 0,
            event_requests: 1,
            error_entries: 1,
            keep_alive_100ms: 10,
            queue_size: 128,
            namespaces: 16,
            volatile_cache: true,
            atomic_blocks: 1,
            in_capsule_bytes: 8192,
        };
        let facts = ControllerFacts {
            max_transfer_shift: 8,
            keep_alive_100ms: 10,
            dataset_management: true,
            write_zeroes: true,
            volatile_cache: true,
            in_capsule_bytes: 8192,
            in_capsule_offset: 0,
        };
        assert_eq!(ControllerFacts::decode(&said.encode()), facts);
        said.volatile_cache = false;
        assert!(!ControllerFacts::decode(&said.encode()).volatile_cache);
        // A capsule that is shorter than a command has no room for data.
        assert_eq!(
            ControllerFacts::decode(&[0; PAGE_BYTES]).in_capsule_bytes,
            0
        );
        let all = ControllerFacts::decode(&[0xff; PAGE_BYTES]);
        assert_eq!(all.in_capsule_bytes, u32::MAX - 64);
    }

    #[test]
    fn a_host_reads_the_properties_of_a_namespace() {
        let said = Namespace {
            blocks: 1 << 40,
            block_shift: 12,
            preferred_blocks: 8,
            atomic_blocks: 1,
            read_only: true,
        };
        let mut page = said.encode();
        let facts = NamespaceFacts::decode(&page);
        assert_eq!((facts.blocks, facts.block_shift), (1 << 40, 12));
        assert_eq!((facts.preferred_blocks, facts.read_only), (8, true));
        assert_eq!((facts.metadata_bytes, facts.nguid), (0, [0; 16]));
        assert_eq!(former_uuid(&page), None);
        identify::former(&mut page, &[9; 16]);
        assert_eq!(former_uuid(&page), Some([9; 16]));
        assert_eq!(NamespaceFacts::decode(&page), facts);
        // The second format, and the last of the sixty-four possible ones.
        (page[26], page[134]) = (1, 9);
        assert_eq!(NamespaceFacts::decode(&page).block_shift, 9);
        (page[26], page[128 + 63 * 4]) = (0x6f, 8);
        assert_eq!(NamespaceFacts::decode(&page).metadata_bytes, 8);
    }

    #[test]
    fn identifiers_are_found_and_cut_ones_are_none() {
        let page = identify::descriptors(&[7; 16]);
        assert_eq!(uuid(&page), Some([7; 16]));
        // After one of another kind.
        let mut behind = [0; PAGE_BYTES];
        behind[..2].copy_from_slice(&[1, 8]);
        behind[12..].copy_from_slice(&page[..PAGE_BYTES - 12]);
        assert_eq!(uuid(&behind), Some([7; 16]));
        assert_eq!(uuid(&[0; PAGE_BYTES]), None);
        // With an invalid length, or past the page's end.
        assert_eq!(uuid(&[3; PAGE_BYTES]), None);
        let mut odd = [0; PAGE_BYTES];
        (odd[0], odd[1]) = (1, 255);
        assert_eq!(uuid(&odd), None);
        assert_eq!(uuid(&[255; PAGE_BYTES]), None);
        assert_eq!(first_namespace(&[0; PAGE_BYTES]), None);
        let list = identify::namespace_list([3, 5].into_iter(), 3);
        assert_eq!(first_namespace(&list), Some(5));
    }
}
