//! ARC's `.lis`: `first_block blocks unknown request`, blocks of 512 bytes. All requests are reads
//! and have no time, so they count up by one.

use super::field::{self, Fields as _, Words};
use super::{Bad, LineFormat};
use crate::{Op, Request, Volumes};

#[derive(Default)]
pub(super) struct Lis {
    requests: u64,
}

impl LineFormat for Lis {
    fn line(&mut self, line: &[u8], _: &mut Volumes) -> Result<Option<Request>, Bad> {
        let mut words = Words(line);
        let offset_bytes = words.sectors("first block")?;
        let len_bytes = words.sectors("number of blocks")?;
        words.number("third column")?;
        words.number("request number")?;
        words.end()?;
        let request = field::data(self.requests, Op::Read, offset_bytes, len_bytes, 0)?;
        self.requests += 1;
        Ok(Some(request))
    }
}
