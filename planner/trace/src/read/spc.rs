//! Storage Performance Council: `ASU,LBA,size,r|w,time`: sectors, bytes, seconds; further columns
//! are the owner's.

use super::field::{self, Commas, Fields as _, S};
use super::{Bad, LineFormat, letter, named};
use crate::{Request, Volumes};

pub(super) struct Spc;

impl LineFormat for Spc {
    fn line(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Request>, Bad> {
        let mut fields = Commas(line);
        let asu = fields.field("ASU")?;
        field::number(asu, "ASU")?;
        let offset_bytes = fields.sectors("LBA")?;
        let len_bytes = fields.number("size")?;
        let op = letter(fields.field("operation")?)?;
        let time_ns = fields.time(S)?;
        let volume = named(asu, volumes)?;
        field::data(time_ns, op, offset_bytes, len_bytes, volume).map(Some)
    }
}
