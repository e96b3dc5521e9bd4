//! Alibaba Cloud: `device,R|W,offset,length,time`, time in microseconds.

use super::field::{self, Commas, Fields as _, US};
use super::{Bad, LineFormat, letter, named};
use crate::{Request, Volumes};

pub(super) struct Alibaba;

impl LineFormat for Alibaba {
    fn line(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Request>, Bad> {
        let mut fields = Commas(line);
        let device = fields.field("device")?;
        field::number(device, "device")?;
        let op = letter(fields.field("operation")?)?;
        let offset_bytes = fields.number("offset")?;
        let len_bytes = fields.number("length")?;
        let time_ns = fields.time(US)?;
        fields.end()?;
        let volume = named(device, volumes)?;
        field::data(time_ns, op, offset_bytes, len_bytes, volume).map(Some)
    }
}
