//! MSR Cambridge. A volume `host_0` becomes host and disk; other names become the host. The
//! response time is unknown: zero.

use forebay_block::Result;

use super::{Encode, Written, is_data, put_number};
use crate::{Op, Request, Volumes};

const TICK_NS: u64 = 100;

/// From 1601 to 1970, in ticks.
const UNIX_TICKS: u64 = 116_444_736_000_000_000;

pub(super) struct Msr {
    zero_ticks: u64,
    /// `host,disk` by volume.
    columns: Vec<Vec<u8>>,
}

impl Msr {
    pub(super) fn new(zero_unix_ns: u64) -> Self {
        Self {
            zero_ticks: UNIX_TICKS + zero_unix_ns / TICK_NS,
            columns: Vec::new(),
        }
    }
}

fn columns(name: &str) -> Vec<u8> {
    let plain = name.replace([',', '\n', '\r'], "_");
    match plain.rsplit_once('_') {
        Some((host, disk))
            if !disk.is_empty() && disk.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            format!("{host},{disk}")
        }
        _ => format!("{plain},0"),
    }
    .into_bytes()
}

impl Encode for Msr {
    fn encode(
        &mut self,
        requests: &[Request],
        volumes: &Volumes,
        bytes: &mut Vec<u8>,
        written: &mut Written,
    ) -> Result<()> {
        for name in &volumes.names()[self.columns.len()..] {
            self.columns.push(columns(name));
        }
        for request in requests {
            if !is_data(request, written) {
                continue;
            }
            put_number(
                bytes,
                self.zero_ticks.saturating_add(request.time_ns / TICK_NS),
            );
            bytes.push(b',');
            bytes.extend_from_slice(&self.columns[request.volume as usize]);
            bytes.extend_from_slice(match request.op {
                Op::Read => b",Read,",
                _ => b",Write,",
            });
            put_number(bytes, request.offset_bytes);
            bytes.push(b',');
            put_number(bytes, u64::from(request.len_bytes));
            bytes.extend_from_slice(b",0\n");
            written.requests += 1;
        }
        Ok(())
    }
}
