//! The default output of blkparse: `major,minor CPU sequence time pid action RWBS sector + sectors
//! [process]`. The event `Q` (queued) is the client's request; the other events say how it was
//! processed. A trace that was recorded without `Q` has the request at a later stage:
//!
//! - `I`: inserted into the scheduler's queue
//! - `D`: issued to the driver
//! - `C`: completed

use super::field::{self, Fields as _, S, Words};
use super::{Bad, LineFormat, named};
use crate::{Op, Request, Volumes};

/// Events that can stand for a request, the best first.
const EVENTS: [u8; 4] = *b"QIDC";

pub(super) struct Blkparse {
    /// Event whose lines are the requests.
    event: u8,
}

impl Blkparse {
    /// Returns the format of a file with this beginning: the best event in it is the request.
    pub(super) fn of(head: &[u8]) -> Self {
        let event = EVENTS.into_iter().find(|event| {
            let mut lines = head.split(|byte| *byte == b'\n');
            lines.any(|line| action(line) == Some(&[*event][..]))
        });
        Self {
            event: event.unwrap_or(EVENTS[0]),
        }
    }
}

/// Returns the action of a line that is an event.
fn action(line: &[u8]) -> Option<&[u8]> {
    let mut words = Words(line);
    if !words.next()?[0].is_ascii_digit() {
        return None;
    }
    for _ in 0..4 {
        words.next()?;
    }
    words.next()
}

impl LineFormat for Blkparse {
    fn remark(&self) -> Option<&'static str> {
        match self.event {
            b'I' => Some(
                "there are no Q events: the requests are the I events (inserted into the \
                 scheduler's queue)",
            ),
            b'D' => {
                Some("there are no Q events: the requests are the D events (issued to the driver)")
            }
            b'C' => Some(
                "there are no Q events: the requests are the C events, whose times are those of \
                 their completion",
            ),
            _ => None,
        }
    }

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
        if words.field("action")? != [self.event] {
            return Ok(None);
        }
        let kind = words.field("RWBS")?;
        let has = |letter: u8| kind.contains(&letter);
        let volume = named(device, volumes)?;
        // Without a range it is a flush (`FWS [process]`), or not a request of blocks.
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
