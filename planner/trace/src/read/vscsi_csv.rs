//! vscsiStats as text: `version,time,command,size,LBN`, the command in hexadecimal. The unit of
//! time is seconds or microseconds; the file does not state it.

use super::field::{self, Commas, Fields as _, S, US};
use super::{Bad, LineFormat};
use crate::{Op, Request, Volumes};

pub(super) struct VscsiCsv {
    time_unit_ns: u64,
}

impl VscsiCsv {
    pub(super) const SECONDS: Self = Self { time_unit_ns: S };
    pub(super) const MICROSECONDS: Self = Self { time_unit_ns: US };
}

impl LineFormat for VscsiCsv {
    fn line(&mut self, line: &[u8], _: &mut Volumes) -> Result<Option<Request>, Bad> {
        if line.starts_with(b"version,") {
            return Ok(None);
        }
        let mut fields = Commas(line);
        if !matches!(fields.field("version")?, b"1" | b"2") {
            return Err(Bad::new("version", "is neither 1 nor 2"));
        }
        let time_ns = fields.time(self.time_unit_ns)?;
        let op = field::scsi(hexadecimal(fields.field("command")?)?);
        let len_bytes = fields.number("size")?;
        let offset_bytes = fields.sectors("LBN")?;
        match op {
            None => Ok(None),
            Some(Op::Flush) => Ok(Some(field::flush(time_ns, 0))),
            Some(op) => field::data(time_ns, op, offset_bytes, len_bytes, 0).map(Some),
        }
    }
}

/// A SCSI command: two digits at most.
fn hexadecimal(digits: &[u8]) -> Result<u64, Bad> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(u64::from);
    match digits {
        [only] => digit(only),
        [high, low] => digit(high)
            .zip(digit(low))
            .map(|(high, low)| high * 16 + low),
        _ => None,
    }
    .ok_or(Bad::new("command", "is no SCSI command in hexadecimal"))
}
