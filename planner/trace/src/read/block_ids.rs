//! Numbers of blocks, u32 little-endian, blocks of 16 KiB (CloudPhysics w106). No time, no
//! operation: all are reads that count up by one.

use super::records::Record;
use super::{Bad, field};
use crate::bytes::u32_at;
use crate::{Op, Request};

const BLOCK_BYTES: u64 = 16 << 10;

#[derive(Default)]
pub(super) struct BlockIds {
    requests: u64,
}

impl Record for BlockIds {
    const BYTES: usize = 4;

    #[inline]
    fn record(&mut self, bytes: &[u8]) -> Result<Option<Request>, Bad> {
        let offset_bytes = u64::from(u32_at(bytes, 0)) * BLOCK_BYTES;
        let request = field::data(self.requests, Op::Read, offset_bytes, BLOCK_BYTES, 0)?;
        self.requests += 1;
        Ok(Some(request))
    }
}
