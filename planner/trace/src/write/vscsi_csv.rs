//! vscsiStats as text.

use forebay_block::Result;

use super::{Encode, OneVolume, Written, put_number, sectors};
use crate::{Format, Op, Request, Volumes};

/// Start of time in microseconds if the trace has no date: an uptime of 116 days. Times from zero
/// would look like seconds.
const START_US: u64 = 10_000_000_000_000;

pub(super) struct VscsiCsv {
    format: Format,
    unit_ns: u64,
    zero: u64,
    volume: OneVolume,
}

impl VscsiCsv {
    pub(super) fn seconds() -> Self {
        Self {
            format: Format::VscsiCsv,
            unit_ns: 1_000_000_000,
            zero: 0,
            volume: OneVolume::default(),
        }
    }

    pub(super) fn microseconds(zero_unix_ns: u64) -> Self {
        Self {
            format: Format::VscsiCsvUs,
            unit_ns: 1_000,
            zero: (zero_unix_ns / 1_000).max(START_US),
            volume: OneVolume::default(),
        }
    }
}

impl Encode for VscsiCsv {
    fn begin(&mut self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(b"version,time,op,size,lbn\n");
    }

    fn encode(
        &mut self,
        requests: &[Request],
        volumes: &Volumes,
        bytes: &mut Vec<u8>,
        written: &mut Written,
    ) -> Result<()> {
        for request in requests {
            self.volume.check(request, volumes, self.format)?;
            let op = match request.op {
                Op::Read => b",28,",
                Op::Write => b",2a,",
                Op::Flush => b",35,",
                Op::Discard => {
                    written.dropped += 1;
                    continue;
                }
            };
            let (first, number) = sectors(request, written);
            bytes.extend_from_slice(b"1,");
            put_number(
                bytes,
                self.zero.saturating_add(request.time_ns / self.unit_ns),
            );
            bytes.extend_from_slice(op);
            put_number(bytes, number * 512);
            bytes.push(b',');
            put_number(bytes, first);
            bytes.push(b'\n');
            written.requests += 1;
        }
        Ok(())
    }
}
