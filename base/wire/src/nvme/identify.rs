//! Pages of Identify, 4 KiB each (Base 5.17.2, NVM 4.1.5).

use super::{put, put_text};

/// Bytes of each page.
pub const PAGE_BYTES: usize = 4096;
/// A page.
pub type Page = [u8; PAGE_BYTES];

/// Version 1.4, whose fields these pages have (Base 3.1.3.2, "VS").
pub const VERSION: u32 = 0x0001_0400;

/// Kinds of controllers (Base 5.17.2.1, "CNTRLTYPE").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerKind {
    /// I/O controller.
    Io = 1,
    /// Discovery controller.
    Discovery = 2,
}

/// Optional commands (Base 5.17.2.1, "ONCS"): compare, dataset management, write zeroes, verify.
const COMMANDS: u16 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 7;
/// Several controllers (bit 1) of a subsystem, with asymmetric access (bit 3) (Base 5.17.2.1,
/// "CMIC").
const SHARED: u8 = 1 << 1 | 1 << 3;
/// SGLs without alignment (01b), data at an offset in the capsule (bit 20), transport descriptors
/// (bit 21) (Base 5.17.2.1, "SGLS").
const SGLS: u32 = 1 | 1 << 20 | 1 << 21;
/// 128-bit host identifiers (bit 0), any command keeps the controller alive (bit 6) (Base 5.17.2.1,
/// "CTRATT").
const ATTRIBUTES: u32 = 1 << 0 | 1 << 6;
/// SMART of each namespace (bit 0), log pages read from an offset (bit 2) (Base 5.17.2.1, "LPA").
const LOG_PAGES: u8 = 1 << 0 | 1 << 2;
/// A volatile cache is present (bit 0), and a flush may name all namespaces (11b in bits 2:1) (Base
/// 5.17.2.1, "VWC").
const VOLATILE_CACHE: u8 = 0b111;
/// Optimized is the only reported state (Base 5.17.2.1, "ANACAP").
const ANA_STATES: u8 = 1;
/// Sizes of entries, smallest and largest, as powers of two (Base 5.17.2.1, "SQES", "CQES").
const ENTRY_SIZES: [u8; 2] = [0x66, 0x44];

/// Identify controller (Base 5.17.2.1).
#[derive(Clone, Debug)]
pub struct Controller {
    /// Type of the controller.
    pub kind: ControllerKind,
    /// Serial number, at most 20 bytes of ASCII.
    pub serial: String,
    /// Model, at most 40 bytes of ASCII.
    pub model: String,
    /// Revision, at most 8 bytes of ASCII.
    pub revision: String,
    /// The controller's identifier.
    pub id: u16,
    /// The subsystem's name.
    pub subsystem: String,
    /// Maximum transfer as a power of two of pages.
    pub max_transfer_shift: u8,
    /// Supported events.
    pub events: u32,
    /// Maximum number of asynchronous event requests.
    pub event_requests: u8,
    /// Entries of the error log.
    pub error_entries: u8,
    /// Granularity of the keep alive timer, 100 ms.
    pub keep_alive_100ms: u16,
    /// Entries of a queue.
    pub queue_size: u16,
    /// Largest NSID.
    pub namespaces: u32,
    /// Whether completed writes may be in a volatile cache.
    pub volatile_cache: bool,
    /// Atomicity at power loss, logical blocks.
    pub atomic_blocks: u16,
    /// Maximum data in a capsule, bytes.
    pub in_capsule_bytes: u32,
}

impl Controller {
    /// Encodes the page.
    ///
    /// # Panics
    /// If the subsystem's name is longer than 255 bytes.
    #[must_use]
    pub fn encode(&self) -> Page {
        let mut page = [0; PAGE_BYTES];
        put_text(&mut page[4..24], &self.serial);
        put_text(&mut page[24..64], &self.model);
        put_text(&mut page[64..72], &self.revision);
        page[77] = self.max_transfer_shift;
        put(&mut page, 78, &self.id.to_le_bytes());
        put(&mut page, 80, &VERSION.to_le_bytes());
        put(&mut page, 92, &self.events.to_le_bytes());
        put(&mut page, 96, &ATTRIBUTES.to_le_bytes());
        page[111] = self.kind as u8;
        page[259] = self.event_requests - 1;
        // One firmware slot, read-only ("FRMW").
        page[260] = 0b11;
        page[261] = LOG_PAGES;
        page[262] = self.error_entries - 1;
        put(&mut page, 320, &self.keep_alive_100ms.to_le_bytes());
        put(&mut page, 512, &ENTRY_SIZES);
        put(&mut page, 514, &self.queue_size.to_le_bytes());
        put(&mut page, 536, &SGLS.to_le_bytes());
        assert!(self.subsystem.len() < 256, "a name that fits its field");
        put(&mut page, 768, self.subsystem.as_bytes());
        if self.kind == ControllerKind::Io {
            self.encode_io(&mut page);
        }
        page
    }

    fn encode_io(&self, page: &mut Page) {
        page[76] = SHARED;
        // "ANATT": the state never changes, so no host waits; zero is reserved.
        page[342] = 1;
        page[343] = ANA_STATES;
        // "ANAGRPMAX", "NANAGRPID": one group.
        put(page, 344, &1_u32.to_le_bytes());
        put(page, 348, &1_u32.to_le_bytes());
        put(page, 516, &self.namespaces.to_le_bytes());
        put(page, 520, &COMMANDS.to_le_bytes());
        if self.volatile_cache {
            page[525] = VOLATILE_CACHE;
        }
        // "AWUN", "AWUPF" count from zero.
        let atomic = self.atomic_blocks.saturating_sub(1).to_le_bytes();
        put(page, 526, &atomic);
        put(page, 528, &atomic);
        // "MNAN".
        put(page, 540, &self.namespaces.to_le_bytes());
        // "IOCCSZ", "IORCSZ" in 16 bytes.
        let command = (super::command::COMMAND_BYTES as u32 + self.in_capsule_bytes) / 16;
        put(page, 1792, &command.to_le_bytes());
        put(page, 1796, &1_u32.to_le_bytes());
        // "MSDBD": one descriptor a command.
        page[1803] = 1;
    }
}

/// Identify namespace (NVM 4.1.5.1).
#[derive(Clone, Copy, Debug)]
pub struct Namespace {
    /// Size, logical blocks.
    pub blocks: u64,
    /// Logical block as a power of two of bytes.
    pub block_shift: u8,
    /// Preferred write unit, logical blocks.
    pub preferred_blocks: u16,
    /// Atomicity at power loss, logical blocks.
    pub atomic_blocks: u16,
    /// Whether writes are refused.
    pub read_only: bool,
}

impl Namespace {
    /// Encodes the page.
    #[must_use]
    pub fn encode(&self) -> Page {
        let mut page = [0; PAGE_BYTES];
        for field in [0, 8, 16] {
            put(&mut page, field, &self.blocks.to_le_bytes());
        }
        // "NSFEAT": atomicity of its own (bit 1), preferred sizes (bit 4).
        page[24] = 1 << 1 | 1 << 4;
        // "NMIC": several controllers reach it.
        page[30] = 1;
        // "DLFEAT": write zeroes may deallocate (bit 3); the content of deallocated blocks is not
        // reported.
        page[33] = 1 << 3;
        // "NAWUN", "NAWUPF", "NPWG" to "NOWS" count from zero.
        let atomic = self.atomic_blocks.saturating_sub(1).to_le_bytes();
        put(&mut page, 34, &atomic);
        put(&mut page, 36, &atomic);
        let preferred = self.preferred_blocks.saturating_sub(1).to_le_bytes();
        for field in [64, 66, 68, 70, 72] {
            put(&mut page, field, &preferred);
        }
        // "ANAGRPID".
        put(&mut page, 92, &1_u32.to_le_bytes());
        // "NSATTR": write protected.
        page[99] = u8::from(self.read_only);
        // "LBAF0", "LBADS".
        page[130] = self.block_shift;
        page
    }
}

/// First vendor-specific byte of a namespace's page (NVM 4.1.5.1): the position of a [`former`]
/// UUID.
pub(super) const VENDOR_SPECIFIC: usize = 384;
/// Marks a former UUID.
pub(super) const FORMER: [u8; 8] = *b"FBFORMER";

/// Adds the namespace's UUID of earlier versions of this target to its page.
pub fn former(page: &mut Page, uuid: &[u8; 16]) {
    put(page, VENDOR_SPECIFIC, &FORMER);
    put(page, VENDOR_SPECIFIC + FORMER.len(), uuid);
}

/// Encodes the identification descriptors of a namespace (Base 5.17.2.3): a UUID.
#[must_use]
pub fn descriptors(uuid: &[u8; 16]) -> Page {
    /// "NIDT": a UUID.
    const UUID: u8 = 3;
    let mut page = [0; PAGE_BYTES];
    page[0] = UUID;
    page[1] = 16;
    put(&mut page, 4, uuid);
    page
}

/// Encodes a list of NSIDs (Base 4.4.2, "Namespace List"): those above `after` of `ids`, which are
/// in rising order.
#[must_use]
pub fn namespace_list(ids: impl Iterator<Item = u32>, after: u32) -> Page {
    let mut page = [0; PAGE_BYTES];
    for (slot, id) in page.chunks_exact_mut(4).zip(ids.filter(|&id| id > after)) {
        slot.copy_from_slice(&id.to_le_bytes());
    }
    page
}
