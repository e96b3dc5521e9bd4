//! Sparse bytes: pages that are shared between copies until one of them writes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use forebay_block::Buf;

const PAGE: u64 = 4096;

/// A hasher for small integers that does not depend on the process, so that runs repeat.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IntegerHasher(u64);

impl Hasher for IntegerHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

/// A map by block or page number.
pub(super) type IntegerMap<T> = HashMap<u64, T, BuildHasherDefault<IntegerHasher>>;

/// Sparse bytes. Bytes that were never written read as zeroes. Copies are cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Store {
    pages: IntegerMap<Rc<[u8; PAGE as usize]>>,
}

/// Calls `each(page, offset in page, offset in range, length)` for each page that a range touches.
fn pieces(offset: u64, len: usize, mut each: impl FnMut(u64, usize, usize, usize)) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let inside = (at % PAGE) as usize;
        let part = (PAGE as usize - inside).min(len - done);
        each(at / PAGE, inside, done, part);
        done += part;
    }
}

impl Store {
    pub(super) fn read_to_buf(&self, offset: u64, buf: &Buf) {
        pieces(offset, buf.len(), |page, inside, done, part| {
            match self.pages.get(&page) {
                Some(bytes) => buf.copy_from(done, &bytes[inside..inside + part]),
                None => buf.slice(done..done + part).fill(0),
            }
        });
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        pieces(offset, bytes.len(), |page, inside, done, part| {
            self.page(page)[inside..inside + part].copy_from_slice(&bytes[done..done + part]);
        });
    }

    pub(super) fn zero(&mut self, offset: u64, len: usize) {
        pieces(offset, len, |page, inside, _, part| {
            if part == PAGE as usize {
                self.pages.remove(&page);
            } else if self.pages.contains_key(&page) {
                self.page(page)[inside..inside + part].fill(0);
            }
        });
    }

    /// Makes a range the same as in `other`.
    pub(super) fn copy_range(&mut self, other: &Self, offset: u64, len: usize) {
        pieces(offset, len, |page, inside, _, part| {
            match other.pages.get(&page) {
                Some(bytes) => {
                    self.page(page)[inside..inside + part]
                        .copy_from_slice(&bytes[inside..inside + part]);
                }
                None => {
                    if self.pages.contains_key(&page) {
                        self.page(page)[inside..inside + part].fill(0);
                    }
                }
            }
        });
    }

    pub(super) fn flip_bit(&mut self, byte: u64, bit: u32) {
        self.page(byte / PAGE)[(byte % PAGE) as usize] ^= 1 << (bit % 8);
    }

    fn page(&mut self, page: u64) -> &mut [u8; PAGE as usize] {
        let bytes = self
            .pages
            .entry(page)
            .or_insert_with(|| Rc::new([0; PAGE as usize]));
        Rc::make_mut(bytes)
    }
}
