//! fio's I/O log. The first line has the version. Version 2 has `file action [offset length]` and
//! waits, whose offset is the time since the last wait, microseconds. Version 3 has the time at the
//! start of each line, microseconds since the start.

use super::field::{self, Fields as _, US, Words};
use super::{Bad, LineFormat, named};
use crate::{Op, Request, Volumes};

#[derive(Default)]
pub(super) struct Fio {
    version: u8,
    /// For version 2: the sum of waits. Requests after the last one count up by one nanosecond
    /// each.
    waited_ns: u64,
    since_wait: u64,
}

impl LineFormat for Fio {
    fn line(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Request>, Bad> {
        match line.trim_ascii() {
            b"fio version 2 iolog" => self.version = 2,
            b"fio version 3 iolog" => self.version = 3,
            line if self.version == 0 => {
                let _ = line;
                return Err(Bad::new(
                    "first line",
                    "is neither \"fio version 2 iolog\" nor \"fio version 3 iolog\"",
                ));
            }
            line => return self.action(Words(line), volumes),
        }
        Ok(None)
    }
}

impl Fio {
    fn action(&mut self, mut words: Words, volumes: &mut Volumes) -> Result<Option<Request>, Bad> {
        let stamp_ns = match self.version {
            3 => Some(words.time(US)?),
            _ => None,
        };
        let file = words.field("file")?;
        let op = match words.field("action")? {
            b"read" => Op::Read,
            b"write" => Op::Write,
            b"trim" => Op::Discard,
            b"sync" | b"datasync" => Op::Flush,
            b"wait" => {
                let wait_ns = words.time(US)?;
                let waited_ns = self.waited_ns.checked_add(wait_ns);
                self.waited_ns = waited_ns.ok_or(Bad::new("wait", "does not fit into 64 bits"))?;
                self.since_wait = 0;
                return Ok(None);
            }
            b"add" | b"open" | b"close" | b"sync_file_range" => return Ok(None),
            _ => return Err(Bad::new("action", "is none of fio's")),
        };
        let time_ns = match stamp_ns {
            Some(time_ns) => time_ns,
            None => self
                .waited_ns
                .checked_add(self.since_wait)
                .ok_or(Bad::new("wait", "does not fit into 64 bits"))?,
        };
        let volume = named(file, volumes)?;
        let request = match op {
            Op::Flush => field::flush(time_ns, volume),
            _ => {
                let offset_bytes = words.number("offset")?;
                let len_bytes = words.number("length")?;
                field::data(time_ns, op, offset_bytes, len_bytes, volume)?
            }
        };
        self.since_wait += 1;
        Ok(Some(request))
    }
}
