//! Helpers of the crate's tests.

mod atomic;
mod gate;
mod hold;
mod interleave;
mod memory;
mod model;
mod order;

use std::rc::Rc;

use forebay_block::{BlockDevice, Buf};

use crate::{Policy, Transit, TransitOptions, memory_bytes};

/// A cache with so many slots of 512 bytes over a device, in memory of its own.
fn over(device: &Rc<dyn BlockDevice>, slots: usize, policy: Policy) -> Rc<Transit> {
    let options = TransitOptions {
        policy,
        ..TransitOptions::new("t", [1; 16])
    };
    let memory = Buf::zeroed(memory_bytes(slots, 512));
    let opened = Transit::open(Rc::clone(device), Rc::clone(device), memory, options);
    opened.expect("large enough").0
}

/// A block that says `what` in every byte.
fn block(what: u8) -> Buf {
    let buf = Buf::zeroed(512);
    buf.fill(what);
    buf
}
