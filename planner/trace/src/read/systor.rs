//! SYSTOR '17: `time,response,R|W,LUN,offset,size`, times in seconds; the response may be empty,
//! and a file may begin with the names of its columns.

use super::field::{self, Commas, Fields as _, S};
use super::{Bad, LineFormat, letter, named};
use crate::{Request, Volumes};

pub(super) struct Systor;

impl LineFormat for Systor {
    fn line(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Request>, Bad> {
        let mut fields = Commas(line);
        let time_ns = fields.time(S)?;
        fields.field("response")?;
        let op = letter(fields.field("operation")?)?;
        let lun = fields.field("LUN")?;
        let offset_bytes = fields.number("offset")?;
        let len_bytes = fields.number("size")?;
        fields.end()?;
        let volume = named(lun, volumes)?;
        field::data(time_ns, op, offset_bytes, len_bytes, volume).map(Some)
    }
}
