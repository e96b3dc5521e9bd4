//! Smartphone logs: `LBA sectors bytes flags time time time time`. Bit 0 of the flags says write;
//! the first of the four times, in seconds, is the arrival.

use super::field::{self, Fields as _, S, Words};
use super::{Bad, LineFormat};
use crate::{Op, Request, Volumes};

pub(super) struct Smartphone;

impl LineFormat for Smartphone {
    fn line(&mut self, line: &[u8], _: &mut Volumes) -> Result<Option<Request>, Bad> {
        let mut words = Words(line);
        let offset_bytes = words.sectors("LBA")?;
        let len_bytes = words.sectors("number of sectors")?;
        if words.number("bytes")? != len_bytes {
            return Err(Bad::new("number of bytes", "is not that of the sectors"));
        }
        let op = match words.number("flags")? & 1 {
            0 => Op::Read,
            _ => Op::Write,
        };
        let time_ns = words.time(S)?;
        for _ in 0..3 {
            words.time(S)?;
        }
        words.end()?;
        field::data(time_ns, op, offset_bytes, len_bytes, 0).map(Some)
    }
}
