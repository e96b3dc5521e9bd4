//! Common parts of the tests: memories, and blocks that identify themselves.

mod crash;
mod device;
mod explorer;
mod formatting;
mod opening;
mod threads;

use std::sync::Arc;

use forebay_block::Buf;
use forebay_io::sim::{SimPmem, Survival};

use crate::open::OpenOptions;
use crate::{Btt, FormatOptions, format};

const SIZE: u64 = 16 << 20;

fn options(block_bytes: u32) -> FormatOptions {
    FormatOptions::new(block_bytes, [7; 16])
}

/// Returns a memory with an empty table, all durable.
fn formatted(size_bytes: u64, options: &FormatOptions) -> Arc<SimPmem> {
    let memory = SimPmem::new(size_bytes);
    format(&*memory, options).expect("large enough");
    memory.crash(Survival::None)
}

fn open(memory: &Arc<SimPmem>) -> Btt<SimPmem> {
    let options = OpenOptions {
        lanes: 4,
        ..OpenOptions::default()
    };
    Btt::open_with(Arc::clone(memory), options).expect("a table")
}

/// Returns the content of a block in a version; zeroes for version 0. Every word depends on both.
fn stamp(block: u64, version: u64, block_bytes: u32) -> Buf {
    let buf = Buf::zeroed(block_bytes as usize);
    if version > 0 {
        let mut word = (block << 32 ^ version).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for at in (0..block_bytes as usize).step_by(8) {
            word = word.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            buf.copy_from(at, &word.to_le_bytes());
        }
    }
    buf
}

/// Returns whether a buffer contains exactly this version.
fn holds(buf: &Buf, block: u64, version: u64) -> bool {
    buf.to_vec() == stamp(block, version, buf.len() as u32).to_vec()
}

fn read(table: &Btt<SimPmem>, block: u64) -> Buf {
    let buf = Buf::zeroed(table.block_bytes() as usize);
    table.read(block, &buf).expect("readable");
    buf
}
