//! Log pages (Base 5.16.1).

use super::{Status, put, put_text};

/// Bytes of an [`ErrorEntry`].
pub const ERROR_ENTRY_BYTES: usize = 64;
/// Bytes of the pages SMART and firmware.
pub const SMART_BYTES: usize = 512;
/// Maximum number of namespaces in the list of changed ones; more are reported as "check all".
pub const MAX_CHANGED: usize = 1024;

/// An entry of the error log (LID 01h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEntry {
    /// Number of the error, from 1.
    pub number: u64,
    /// The queue.
    pub queue: u16,
    /// The command.
    pub cid: u16,
    /// Status.
    pub status: Status,
    /// The first logical block.
    pub first_block: u64,
    /// The namespace.
    pub nsid: u32,
}

impl ErrorEntry {
    /// Encodes the entry.
    #[must_use]
    pub fn encode(&self) -> [u8; ERROR_ENTRY_BYTES] {
        /// "TRTYPE": TCP.
        const TCP: u8 = 3;
        let mut entry = [0; ERROR_ENTRY_BYTES];
        put(&mut entry, 0, &self.number.to_le_bytes());
        put(&mut entry, 8, &self.queue.to_le_bytes());
        put(&mut entry, 10, &self.cid.to_le_bytes());
        put(&mut entry, 12, &self.status.to_wire().to_le_bytes());
        // "Parameter Error Location": not reported.
        put(&mut entry, 14, &0xffff_u16.to_le_bytes());
        put(&mut entry, 16, &self.first_block.to_le_bytes());
        put(&mut entry, 24, &self.nsid.to_le_bytes());
        entry[29] = TCP;
        entry
    }
}

/// SMART, health (LID 02h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Smart {
    /// Bytes read by hosts.
    pub read_bytes: u64,
    /// Bytes written by hosts.
    pub written_bytes: u64,
    /// Reads by hosts.
    pub reads: u64,
    /// Writes by hosts.
    pub writes: u64,
    /// Time that the target has run, hours.
    pub hours: u64,
    /// Reads and writes that failed.
    pub media_errors: u64,
    /// Entries that the error log has had.
    pub errors: u64,
    /// Whether the namespace is read-only.
    pub read_only: bool,
}

impl Smart {
    /// Encodes the page. Properties that a medium in software lacks (temperature, wear) are
    /// reported as absent.
    #[must_use]
    pub fn encode(&self) -> [u8; SMART_BYTES] {
        /// "Data Units": thousands of 512 bytes, rounded up.
        const UNIT_BYTES: u64 = 512_000;
        let mut page = [0; SMART_BYTES];
        // "Critical Warning": bit 3, read-only.
        page[0] = u8::from(self.read_only) << 3;
        // "Available Spare", %.
        page[3] = 100;
        for (field, value) in [
            (32, self.read_bytes.div_ceil(UNIT_BYTES)),
            (48, self.written_bytes.div_ceil(UNIT_BYTES)),
            (64, self.reads),
            (80, self.writes),
            (128, self.hours),
            (160, self.media_errors),
            (176, self.errors),
        ] {
            put(&mut page, field, &u128::from(value).to_le_bytes());
        }
        page
    }
}

/// Encodes the firmware slots (LID 03h): one, active.
#[must_use]
pub fn firmware(revision: &str) -> [u8; SMART_BYTES] {
    let mut page = [0; SMART_BYTES];
    page[0] = 1;
    put_text(&mut page[8..16], revision);
    page
}

/// Encodes the changed namespaces (LID 04h), in rising order.
#[must_use]
pub fn changed_namespaces(ids: &[u32]) -> [u8; 4 * MAX_CHANGED] {
    let mut page = [0; 4 * MAX_CHANGED];
    if ids.len() > MAX_CHANGED {
        put(&mut page, 0, &super::ALL_NAMESPACES.to_le_bytes());
        return page;
    }
    for (slot, id) in page.chunks_exact_mut(4).zip(ids) {
        slot.copy_from_slice(&id.to_le_bytes());
    }
    page
}

/// Length of the header of the page on asymmetric namespace access, and of its descriptor of a
/// group, bytes.
const ANA_HEADER_BYTES: usize = 16;
const ANA_GROUP_BYTES: usize = 32;

/// Returns the length of the page on asymmetric namespace access with one group of `namespaces`
/// namespaces.
#[must_use]
pub const fn ana_bytes(namespaces: usize) -> usize {
    ANA_HEADER_BYTES + ANA_GROUP_BYTES + 4 * namespaces
}

/// Encodes asymmetric namespace access (LID 0Ch): one optimized group with `ids`, or without them
/// for `groups_only`. `changes` is the number of changes of the group.
#[must_use]
pub fn ana(changes: u64, ids: &[u32], groups_only: bool) -> Vec<u8> {
    /// "ANA State": optimized.
    const OPTIMIZED: u8 = 1;
    let ids = if groups_only { &[] } else { ids };
    let mut page = vec![0; ana_bytes(0)];
    put(&mut page, 0, &changes.to_le_bytes());
    put(&mut page, 8, &1_u16.to_le_bytes());
    put(&mut page, ANA_HEADER_BYTES, &1_u32.to_le_bytes());
    let count = u32::try_from(ids.len()).expect("fewer than 2^32 namespaces");
    put(&mut page, ANA_HEADER_BYTES + 4, &count.to_le_bytes());
    put(&mut page, ANA_HEADER_BYTES + 8, &changes.to_le_bytes());
    page[ANA_HEADER_BYTES + 16] = OPTIMIZED;
    page.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    page
}
