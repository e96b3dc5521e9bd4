//! NVM Express: commands, completions, and the pages that a controller describes itself with.
//!
//! Numbers and layouts follow the NVM Express Base Specification 2.0 ("Base") and the NVM Command
//! Set Specification 1.0 ("NVM"); each item names its section there. All integers are
//! little-endian.
//!
//! Not spoken: PRPs (fabrics have none), metadata and protection information, fused commands,
//! reservations, namespace management, several I/O command sets.

pub mod admin;
pub mod auth;
pub mod command;
pub mod fabrics;
pub mod identified;
pub mod identify;
pub mod io;
pub mod log;
pub mod status;

pub use command::{Command, Completion, Data};
pub use status::Status;

/// Memory page size in which transfers are counted, bytes: the smallest possible (Base,
/// "CAP.MPSMIN").
pub const PAGE_BYTES: u32 = 4096;

/// The NSID for all namespaces (Base 3.2.1.2, "Valid and Invalid NSIDs").
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// Writes `bytes` into a page.
fn put(page: &mut [u8], offset: usize, bytes: &[u8]) {
    page[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// Writes ASCII text, padded with spaces (Base 1.5.2, "ASCII strings").
fn put_text(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = if from.is_ascii_graphic() || from == b' ' {
            from
        } else {
            b'?'
        };
    }
}
