//! Content of the objects of a volume. `docs/internals/object-volumes.md` has every byte.
//!
//! - [`superblock`]: the object `volume`.
//! - [`log`]: objects of the log.
//! - [`checkpoint`]: checkpoints and snapshots, which have one layout.
//!
//! Decoders accept any bytes. They allocate no more than the bytes that they are given, times a
//! constant.

pub(crate) mod checkpoint;
pub(crate) mod log;
pub(crate) mod superblock;
#[cfg(test)]
mod tests;

use crc_fast::{CrcAlgorithm, checksum};
use forebay_block::{Error, ErrorKind};

/// Smallest unit of a volume, bytes.
pub(crate) const SECTOR_BYTES: u64 = 512;
/// Raw length of a chunk, the unit of compression and of checksums, sectors.
pub(crate) const CHUNK_SECTORS: u32 = 64;
/// Version of all formats.
pub(crate) const VERSION: u16 = 1;
/// Number of objects of the log that a writer creates beyond those that are durable without a gap.
/// A part of the format: a successor relies on it.
pub(crate) const PIPELINE: u64 = 4;

/// A random identity of a volume, a writer or a snapshot.
pub type Id = [u8; 16];

/// Returns a new random identity.
#[must_use]
pub fn new_id() -> Id {
    let mut id = [0; 16];
    forebay_io::system::random(&mut id);
    id
}

/// Returns the name of an object of the log.
pub(crate) fn log_name(seq: u64) -> String {
    format!("log/{seq:016x}")
}

/// Returns the name of a checkpoint.
pub(crate) fn map_name(seq: u64) -> String {
    format!("map/{seq:016x}")
}

/// Returns the name of the object of a snapshot. No other snapshot has it, so that a late deletion
/// deletes no later snapshot of the same name.
pub(crate) fn snapshot_name(name: &str, id: &Id) -> String {
    format!("snapshots/{name}.{}", digits(id))
}

/// Returns an identity as 32 hexadecimal digits.
pub(crate) fn digits(id: &Id) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the sequence number in the name of an object of the log or a checkpoint.
pub(crate) fn seq_of(name: &str) -> Option<u64> {
    let (_, digits) = name.split_once('/')?;
    let is_plain = digits.len() == 16 && digits.bytes().all(|it| it.is_ascii_hexdigit());
    is_plain.then(|| u64::from_str_radix(digits, 16).ok())?
}

/// CRC32C (RFC 3720, section 12.1).
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    u32::try_from(checksum(CrcAlgorithm::Crc32Iscsi, bytes)).expect("a 32-bit checksum")
}

/// Returns the number of chunks of a payload.
pub(crate) const fn chunks_of(payload_sectors: u32) -> u32 {
    payload_sectors.div_ceil(CHUNK_SECTORS)
}

/// Returns the raw length of a chunk of a payload, bytes.
pub(crate) fn chunk_bytes(payload_sectors: u32, chunk: usize) -> usize {
    let first = u32::try_from(chunk).map_or(u32::MAX, |it| it.saturating_mul(CHUNK_SECTORS));
    let sectors = payload_sectors.saturating_sub(first).min(CHUNK_SECTORS);
    sectors as usize * SECTOR_BYTES as usize
}

/// Error of an object that does not verify.
pub(crate) fn corrupt(flaw: &str) -> Error {
    Error::new(ErrorKind::Corrupt, flaw)
}

/// Checks that counters are far from their ends, and that a size is possible.
fn check_numbers(counters: [u64; 3], size_bytes: u64) -> Result<(), forebay_block::Error> {
    let is_possible = counters.iter().all(|it| *it < 1 << 62)
        && size_bytes < 1 << 62
        && size_bytes.is_multiple_of(SECTOR_BYTES);
    match is_possible {
        true => Ok(()),
        false => Err(corrupt("its numbers are impossible")),
    }
}

/// Checks the first bytes of an object: magic number and version.
fn check_magic(
    magic: [u8; 8],
    expected: [u8; 8],
    version: u16,
) -> Result<(), forebay_block::Error> {
    if magic != expected {
        return Err(corrupt("it begins with another magic number"));
    }
    if version != VERSION {
        let what = format!(
            "its format has version {version}; this program knows {VERSION}\n\
             help: use a newer version of Forebay"
        );
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    Ok(())
}
