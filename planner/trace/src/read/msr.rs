//! MSR Cambridge: `time,host,disk,Read|Write,offset,size,response`, time in units of 100 ns since
//! 1601.

use super::field::{self, Commas, Fields as _};
use super::{Bad, LineFormat};
use crate::{Op, Request, Volumes};

/// The unit of a Windows FILETIME.
const TICK_NS: u64 = 100;

pub(super) struct Msr;

impl LineFormat for Msr {
    fn line(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Request>, Bad> {
        let mut fields = Commas(line);
        let time_ns = fields.time(TICK_NS)?;
        let from = fields.0;
        let host = fields.field("host")?;
        let disk = fields.field("disk")?;
        // "host,disk" as in the line, without a copy for the lookup.
        let key = &from[..from.len() - fields.0.len()];
        let key = key.strip_suffix(b",").unwrap_or(key);
        let op = match fields.field("operation")? {
            b"Read" => Op::Read,
            b"Write" => Op::Write,
            _ => return Err(Bad::new("operation", "is neither Read nor Write")),
        };
        let offset_bytes = fields.number("offset")?;
        let len_bytes = fields.number("size")?;
        let name = || {
            let (host, disk) = (String::from_utf8_lossy(host), String::from_utf8_lossy(disk));
            format!("{host}_{disk}")
        };
        let volume = volumes.number_of(key, name).ok_or(Bad::VOLUMES)?;
        field::data(time_ns, op, offset_bytes, len_bytes, volume).map(Some)
    }
}
