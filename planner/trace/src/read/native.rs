//! The native format: checked whole frames, up to the first one that is not whole.

use forebay_block::{Error, ErrorKind, Result};

use super::input::Input;
use super::{Bad, Counts, Place, Source, field};
use crate::native::{
    FRAME_BYTES, HEADER_BYTES, Kind, RECORD_BYTES, decode_frame, decode_header, decode_request,
    names,
};
use crate::{Op, Request, Volumes};

pub(super) struct NativeReader {
    input: Input,
    volumes: Volumes,
    counts: Counts,
    skip_bad: bool,
    origin_unix_ns: u64,
    number: u64,
    /// Bytes of checked records at the front of the window.
    checked_bytes: usize,
    /// Volumes by their numbers in the file.
    numbers: Vec<u32>,
}

impl NativeReader {
    pub(super) fn new(mut input: Input, skip_bad: bool) -> Result<Self> {
        let head = input.at_least(HEADER_BYTES)?;
        let origin = match head.first_chunk() {
            Some(header) => decode_header(header),
            None => Err("it is cut off within its header"),
        };
        let origin_unix_ns = origin.map_err(|why| {
            let said = format!("cannot read the trace {}: {why}", input.name());
            Error::new(ErrorKind::Corrupt, said)
        })?;
        input.consume(HEADER_BYTES);
        Ok(Self {
            input,
            volumes: Volumes::new(),
            counts: Counts::default(),
            skip_bad,
            origin_unix_ns,
            number: 0,
            checked_bytes: 0,
            numbers: Vec::new(),
        })
    }

    /// Returns the time of the trace's zero, nanoseconds since 1970; 0 if unknown.
    pub(super) const fn origin_unix_ns(&self) -> u64 {
        self.origin_unix_ns
    }

    /// Consumes the records of the frame at the front of the window.
    fn records(&mut self, batch: &mut Vec<Request>, full: usize) -> Result<()> {
        let mut done = 0;
        let mut failed = None;
        let room = full - batch.len();
        let data = &self.input.data()[..self.checked_bytes];
        for bytes in data.chunks_exact(RECORD_BYTES).take(room) {
            done += 1;
            match request(bytes, &self.numbers, self.origin_unix_ns) {
                Ok(request) => batch.push(request),
                Err(_) if self.skip_bad => self.counts.bad += 1,
                Err(bad) => {
                    let place = Place::Record {
                        number: self.number + done as u64,
                        offset: self.input.offset() + ((done - 1) * RECORD_BYTES) as u64,
                    };
                    failed = Some(bad.error(self.input.name(), place, bytes));
                    break;
                }
            }
        }
        self.number += done as u64;
        self.input.consume(done * RECORD_BYTES);
        self.checked_bytes -= done * RECORD_BYTES;
        failed.map_or(Ok(()), Err)
    }

    /// Moves to the next frame of requests. Returns false at the end.
    fn next_frame(&mut self) -> Result<bool> {
        loop {
            let offset = self.input.offset();
            let Some(header) = self.input.at_least(FRAME_BYTES)?.first_chunk().copied() else {
                self.counts.cut_bytes = self.input.data().len() as u64;
                return Ok(false);
            };
            let frame = decode_frame(&header).map_err(|why| self.damaged(offset, why))?;
            let whole_bytes = FRAME_BYTES + frame.payload_bytes;
            let data = self.input.at_least(whole_bytes)?;
            let Some(payload) = data.get(FRAME_BYTES..whole_bytes) else {
                self.counts.cut_bytes = data.len() as u64;
                return Ok(false);
            };
            if let Err(why) = frame.check(&header, payload) {
                if frame.kind != Kind::Requests || !self.skip_bad {
                    return Err(self.damaged(offset, why));
                }
                self.counts.bad += u64::from(frame.count);
                self.input.consume(whole_bytes);
                continue;
            }
            if frame.kind == Kind::Requests {
                self.input.consume(FRAME_BYTES);
                self.checked_bytes = frame.payload_bytes;
                return Ok(true);
            }
            if frame.kind == Kind::Lost {
                self.counts.lost += u64::from(frame.count);
                self.input.consume(whole_bytes);
                continue;
            }
            let before = self.numbers.len();
            let numbers = names(payload).map_while(|name| self.volumes.number(name));
            self.numbers.extend(numbers);
            if self.numbers.len() - before < frame.count as usize {
                return Err(self.damaged(offset, "it names too many volumes"));
            }
            self.input.consume(whole_bytes);
        }
    }

    fn damaged(&self, offset: u64, why: &str) -> Error {
        let said = format!(
            "cannot read the trace {}: the frame at byte {offset} is damaged: {why}; what comes \
             before it is sound",
            self.input.name()
        );
        Error::new(ErrorKind::Corrupt, said)
    }
}

#[inline]
fn request(bytes: &[u8], numbers: &[u32], origin_unix_ns: u64) -> Result<Request, Bad> {
    let request = decode_request(bytes).ok_or(Bad::new("operation", "is none of ours"))?;
    let volume = *numbers
        .get(request.volume as usize)
        .ok_or(Bad::new("volume", "was not named"))?;
    let time_ns = origin_unix_ns
        .checked_add(request.time_ns)
        .ok_or(Bad::new("time", "does not fit into 64 bits of nanoseconds"))?;
    if request.op == Op::Flush {
        return Ok(field::flush(time_ns, volume));
    }
    let len_bytes = u64::from(request.len_bytes);
    field::data(time_ns, request.op, request.offset_bytes, len_bytes, volume)
}

impl Source for NativeReader {
    fn fill(&mut self, batch: &mut Vec<Request>, limit: usize) -> Result<bool> {
        let full = batch.len() + limit;
        while batch.len() < full {
            if self.checked_bytes == 0 && !self.next_frame()? {
                return Ok(false);
            }
            self.records(batch, full)?;
        }
        Ok(true)
    }

    fn volumes(&self) -> &Volumes {
        &self.volumes
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}
