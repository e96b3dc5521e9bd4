//! vscsiStats, binary, little-endian.
//!
//! - *Version 1* has 32 bytes a record. It begins with u32 serial number, u32 length (bytes) and
//!   u32 scatter-gather entries. u16 SCSI command, u16 version, u64 LBN (sectors) and u64 time (us)
//!   follow.
//! - *Version 2* has 40 bytes a record. It begins with u16 command, u16 version, u32 serial number
//!   and u32 length. u32 scatter-gather entries, u64 LBN, u64 time and u64 response time follow.
//!
//! The version is the high byte of its field.

use super::Bad;
use super::field::{self, SECTOR_BYTES, US};
use super::records::Record;
use crate::bytes::{u16_at, u32_at, u64_at};
use crate::{Op, Request};

pub(super) struct VscsiV1;
pub(super) struct VscsiV2;

/// Returns the version of a file with this beginning. Nine in ten of its whole records must have
/// the version, and most must be commands that read, write or flush. The reader reports the others
/// as bad records.
pub(super) fn version(head: &[u8]) -> Option<u8> {
    // Size of a record, and the offsets of its version and its command, bytes.
    let layouts = [(1, 32, 15, 12), (2, 40, 3, 0)];
    let is = |&(version, bytes, at, command): &(u8, usize, usize, usize)| {
        let records = head.chunks_exact(bytes);
        let count = records.len();
        let good = records
            .clone()
            .filter(|record| record[at] == version)
            .count();
        let known = records
            .filter(|record| field::scsi(u64::from(u16_at(record, command))).is_some())
            .count();
        count > 0 && good * 10 >= count * 9 && known * 2 >= count
    };
    layouts.into_iter().find(is).map(|(version, ..)| version)
}

impl Record for VscsiV1 {
    const BYTES: usize = 32;

    #[inline]
    fn record(&mut self, bytes: &[u8]) -> Result<Option<Request>, Bad> {
        if bytes[15] != 1 {
            return Err(Bad::new("version", "is not 1"));
        }
        let (command, len_bytes) = (u16_at(bytes, 12), u32_at(bytes, 4));
        request(command, len_bytes, u64_at(bytes, 16), u64_at(bytes, 24))
    }
}

impl Record for VscsiV2 {
    const BYTES: usize = 40;

    #[inline]
    fn record(&mut self, bytes: &[u8]) -> Result<Option<Request>, Bad> {
        if bytes[3] != 2 {
            return Err(Bad::new("version", "is not 2"));
        }
        let (command, len_bytes) = (u16_at(bytes, 0), u32_at(bytes, 8));
        request(command, len_bytes, u64_at(bytes, 16), u64_at(bytes, 24))
    }
}

#[inline]
fn request(command: u16, len_bytes: u32, lbn: u64, time_us: u64) -> Result<Option<Request>, Bad> {
    let Some(op) = field::scsi(u64::from(command)) else {
        return Ok(None);
    };
    let time_ns = time_us
        .checked_mul(US)
        .ok_or(Bad::new("time", "does not fit into 64 bits of nanoseconds"))?;
    if op == Op::Flush {
        return Ok(Some(field::flush(time_ns, 0)));
    }
    let offset_bytes = lbn
        .checked_mul(SECTOR_BYTES)
        .ok_or(Bad::new("LBN", "is more sectors than any device has"))?;
    field::data(time_ns, op, offset_bytes, u64::from(len_bytes), 0).map(Some)
}
