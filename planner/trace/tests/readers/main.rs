//! The readers of traces: every format by example, damaged and hostile input, and the output of the
//! writers.

mod check;
mod examples;
mod hostile;
mod odd;
mod round;
mod several;

use forebay_trace::{Op, Request};

/// A request, for a test to expect.
fn request(time_ns: u64, op: Op, offset_bytes: u64, len_bytes: u32, volume: u32) -> Request {
    Request {
        time_ns,
        offset_bytes,
        len_bytes,
        volume,
        op,
    }
}
