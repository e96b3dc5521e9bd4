//! Tencent Cloud Block Storage: `time,offset,size,type,volume`: seconds, sectors, sectors, 0 for a
//! read and 1 for a write.

use super::field::{self, Commas, Fields as _, S};
use super::{Bad, LineFormat, named};
use crate::{Op, Request, Volumes};

pub(super) struct Tencent;

impl LineFormat for Tencent {
    fn line(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Request>, Bad> {
        let mut fields = Commas(line);
        let time_ns = fields.time(S)?;
        let offset_bytes = fields.sectors("offset")?;
        let len_bytes = fields.sectors("size")?;
        let op = match fields.field("type")? {
            b"0" => Op::Read,
            b"1" => Op::Write,
            _ => return Err(Bad::new("type", "is neither 0 (read) nor 1 (write)")),
        };
        let volume = fields.field("volume")?;
        field::number(volume, "volume")?;
        fields.end()?;
        let volume = named(volume, volumes)?;
        field::data(time_ns, op, offset_bytes, len_bytes, volume).map(Some)
    }
}
