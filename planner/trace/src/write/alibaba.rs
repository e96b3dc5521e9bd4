//! Alibaba Cloud. Its volumes are numbers: a name that is a number is unchanged, others get an
//! unused number.

use std::collections::HashSet;

use forebay_block::Result;

use super::{Encode, Written, is_data, put_number};
use crate::{Op, Request, Volumes};

pub(super) struct Alibaba {
    zero_us: u64,
    /// The device of each volume.
    devices: Vec<u64>,
    taken: HashSet<u64>,
}

impl Alibaba {
    pub(super) fn new(zero_unix_ns: u64) -> Self {
        Self {
            zero_us: zero_unix_ns / 1_000,
            devices: Vec::new(),
            taken: HashSet::new(),
        }
    }

    fn name(&mut self, name: &str) {
        let number = name
            .parse()
            .ok()
            .filter(|number: &u64| number.to_string() == name);
        let mut device = number.unwrap_or(self.devices.len() as u64);
        while !self.taken.insert(device) {
            device = device.wrapping_add(1);
        }
        self.devices.push(device);
    }
}

impl Encode for Alibaba {
    fn encode(
        &mut self,
        requests: &[Request],
        volumes: &Volumes,
        bytes: &mut Vec<u8>,
        written: &mut Written,
    ) -> Result<()> {
        for name in &volumes.names()[self.devices.len()..] {
            self.name(name);
        }
        for request in requests {
            if !is_data(request, written) {
                continue;
            }
            put_number(bytes, self.devices[request.volume as usize]);
            bytes.extend_from_slice(match request.op {
                Op::Read => b",R,",
                _ => b",W,",
            });
            put_number(bytes, request.offset_bytes);
            bytes.push(b',');
            put_number(bytes, u64::from(request.len_bytes));
            bytes.push(b',');
            put_number(bytes, self.zero_us.saturating_add(request.time_ns / 1_000));
            bytes.push(b'\n');
            written.requests += 1;
        }
        Ok(())
    }
}
