//! fio's I/O log, version 3. fio uses the time between two lines, so times must not decrease. A
//! request out of order is written with the time of the one before it.

use std::io::Write;

use forebay_block::{Context as _, Result};

use super::{Encode, Written, put_number};
use crate::{Op, Request, Volumes};

#[derive(Default)]
pub(super) struct Fio {
    /// The files, by volume.
    files: Vec<Vec<u8>>,
    last_us: u64,
}

/// Returns a name without blanks, which separate the columns.
fn file(name: &str) -> Vec<u8> {
    match name {
        "" => b"volume".to_vec(),
        name => name.replace(|c: char| c.is_whitespace(), "_").into_bytes(),
    }
}

impl Encode for Fio {
    fn begin(&mut self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(b"fio version 3 iolog\n");
    }

    fn encode(
        &mut self,
        requests: &[Request],
        volumes: &Volumes,
        bytes: &mut Vec<u8>,
        written: &mut Written,
    ) -> Result<()> {
        for name in &volumes.names()[self.files.len()..] {
            let file = file(name);
            for action in [&b" add\n"[..], b" open\n"] {
                put_number(bytes, self.last_us);
                bytes.push(b' ');
                bytes.extend_from_slice(&file);
                bytes.extend_from_slice(action);
            }
            self.files.push(file);
        }
        for request in requests {
            self.last_us = self.last_us.max(request.time_ns / 1_000);
            put_number(bytes, self.last_us);
            bytes.push(b' ');
            bytes.extend_from_slice(&self.files[request.volume as usize]);
            bytes.extend_from_slice(match request.op {
                Op::Read => b" read ",
                Op::Write => b" write ",
                Op::Flush => b" sync ",
                Op::Discard => b" trim ",
            });
            put_number(bytes, request.offset_bytes);
            bytes.push(b' ');
            put_number(bytes, u64::from(request.len_bytes));
            bytes.push(b'\n');
            written.requests += 1;
        }
        Ok(())
    }

    fn end(&mut self, out: &mut dyn Write) -> Result<()> {
        let mut bytes = Vec::new();
        for file in &self.files {
            put_number(&mut bytes, self.last_us);
            bytes.push(b' ');
            bytes.extend_from_slice(file);
            bytes.extend_from_slice(b" close\n");
        }
        out.write_all(&bytes).context(|| "cannot write the trace")
    }
}
