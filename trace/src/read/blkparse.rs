//! The default output of blkparse:
//! `major,minor CPU sequence time pid action RWBS sector + sectors [process]`. The event `Q` (queued)
//! is the client's request; the other events say how it was processed.

use super::field::{self, Fields as _, S, Words};
use super::{Bad, LineFormat, named};
use crate::{Op, Request, Volumes};

pub(super) struct Blkparse;

impl LineFormat for Blkparse {
    fn line(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Request>, Bad> {
        let mut words = Words(line);
        let device = words.field("device")?;
        if !device[0].is_ascii_digit() {
            // The summary behind the events, or a message.
            return Ok(None);
        }
        let Some(comma) = device.iter().position(|byte| *byte == b',') else {
            return Err(Bad::new("device", "is not MAJOR,MINOR"));
        };
        field::number(&device[..comma], "device")?;
        field::number(&device[comma + 1..], "device")?;
        words.number("CPU")?;
        words.number("sequence")?;
        let time_ns = words.time(S)?;
        words.field("process")?;
        if words.field("action")? != b"Q" {
            return Ok(None);
        }
        let kind = words.field("RWBS")?;
        let has = |letter: u8| kind.contains(&letter);
        let volume = named(device, volumes)?;
        // Without a range it is a flush (`FWS [process]`) or nothing that blocks know.
        let range = words.next().filter(|word| word[0].is_ascii_digit());
        let len_bytes = match (range, words.next()) {
            (Some(_), Some(b"+")) => words.sectors("number of sectors")?,
            _ => 0,
        };
        if len_bytes == 0 {
            return Ok(has(b'F').then(|| field::flush(time_ns, volume)));
        }
        let offset_bytes = Words(range.unwrap_or_default()).sectors("sector")?;
        let op = match () {
            () if has(b'D') => Op::Discard,
            () if has(b'W') => Op::Write,
            () if has(b'R') => Op::Read,
            () => return Ok(None),
        };
        field::data(time_ns, op, offset_bytes, len_bytes, volume).map(Some)
    }
}
