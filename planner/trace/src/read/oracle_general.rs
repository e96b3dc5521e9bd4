//! libCacheSim's oracleGeneral, 24 bytes a record, little-endian.
//!
//! The fields are u32 time (s), u64 id, u32 size (bytes) and i64 next. The last is the number of
//! the next request for the same id, from one, or -1. The id is a sector's number. The format has
//! no operations: all are reads.

use super::Bad;
use super::field::{self, S, SECTOR_BYTES};
use super::records::Record;
use crate::bytes::{u32_at, u64_at};
use crate::{Op, Request};

pub(super) struct OracleGeneral;

/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = 24;

impl Record for OracleGeneral {
    const BYTES: usize = RECORD_BYTES;

    #[inline]
    fn record(&mut self, bytes: &[u8]) -> Result<Option<Request>, Bad> {
        let offset_bytes = u64_at(bytes, 4)
            .checked_mul(SECTOR_BYTES)
            .ok_or(Bad::new("id", "is no sector's number"))?;
        let time_ns = u64::from(u32_at(bytes, 0)) * S;
        let len_bytes = u64::from(u32_at(bytes, 12));
        field::data(time_ns, Op::Read, offset_bytes, len_bytes, 0).map(Some)
    }
}

/// Returns whether these records from the beginning of a file can be of this format. It has no
/// magic. But other bytes rarely have ordered times, valid sizes and later next requests.
pub(super) fn plausible(head: &[u8]) -> bool {
    let mut last_s = 0;
    let mut records = head.chunks_exact(RECORD_BYTES).enumerate();
    records.len() > 0
        && records.all(|(number, bytes)| {
            let (time_s, next) = (u32_at(bytes, 0), u64_at(bytes, 16).cast_signed());
            let in_order = time_s >= last_s;
            last_s = time_s;
            let sized = (1..=1 << 30).contains(&u32_at(bytes, 12));
            let later = next == -1 || next > i64::try_from(number).unwrap_or(i64::MAX);
            in_order && sized && later && u64_at(bytes, 4) < 1 << 54
        })
}
