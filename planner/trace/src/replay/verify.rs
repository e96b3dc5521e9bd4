//! Records of written sectors, and their verification.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use forebay_block::{BlockDeviceExt as _, Buf, Context as _, Error, ErrorKind, IoFuture, Result};
use forebay_io::sync::WaitList;

use super::Target;
use super::fit::Piece;
use super::pattern::{SECTOR_BYTES, Stamp};

/// Unit of records, and of mutual exclusion of writes, bytes.
const PAGE_BYTES: u64 = 4096;
const PAGE_SECTORS: usize = 8;
/// Most pages in one read of the verification.
const RUN_PAGES: usize = 32;

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Number of sectors whose last write is known.
    pub sectors: u64,
    /// Number of sectors with other contents.
    pub wrong: u64,
    /// Description of the first of these.
    pub first_wrong: Option<String>,
}

/// Last write of every sector, and the writes in flight.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Number of each sector's last write, by target and page; zero if unknown.
    pages: HashMap<(u16, u64), [u32; PAGE_SECTORS]>,
    in_flight: Vec<(usize, Piece)>,
    ended: Rc<WaitList>,
}

const fn pages(piece: Piece) -> std::ops::Range<u64> {
    let end = (piece.offset_bytes + piece.len_bytes).div_ceil(PAGE_BYTES);
    piece.offset_bytes / PAGE_BYTES..end
}

/// Waits until no write to the same pages is in flight, and adds this one.
pub(super) async fn claim(written: &RefCell<Written>, target: usize, piece: Piece) {
    let own = pages(piece);
    loop {
        let ended = {
            let mut written = written.borrow_mut();
            let meets = |(other, piece): &(usize, Piece)| {
                let theirs = pages(*piece);
                *other == target && own.start < theirs.end && theirs.start < own.end
            };
            if !written.in_flight.iter().any(meets) {
                return written.in_flight.push((target, piece));
            }
            Rc::clone(&written.ended)
        };
        ended.wait().await;
    }
}

impl Written {
    /// Ends a write: its sectors have this number, or zero if their contents are unknown.
    pub(super) fn end(&mut self, target: usize, piece: Piece, number: u32) {
        let at = self
            .in_flight
            .iter()
            .position(|other| *other == (target, piece));
        if let Some(at) = at {
            self.in_flight.swap_remove(at);
        }
        let end = piece.offset_bytes + piece.len_bytes;
        for page in pages(piece) {
            let key = (target as u16, page);
            if number == 0 && !self.pages.contains_key(&key) {
                continue;
            }
            let sectors = self.pages.entry(key).or_default();
            for (at, sector) in sectors.iter_mut().enumerate() {
                let begin = page * PAGE_BYTES + (at * SECTOR_BYTES) as u64;
                if piece.offset_bytes <= begin && begin < end {
                    *sector = number;
                }
            }
        }
        self.ended.wake_all();
    }

    /// Returns runs of pages to read, as `(target, first, number)`, in order.
    fn runs(&self) -> Vec<(u16, u64, usize)> {
        let known = self
            .pages
            .iter()
            .filter(|(_, sectors)| **sectors != [0; PAGE_SECTORS]);
        let mut keys: Vec<_> = known.map(|(key, _)| *key).collect();
        keys.sort_unstable();
        let mut runs: Vec<(u16, u64, usize)> = Vec::new();
        for (target, page) in keys {
            match runs.last_mut() {
                Some((last, first, number))
                    if *last == target
                        && *first + *number as u64 == page
                        && *number < RUN_PAGES =>
                {
                    *number += 1;
                }
                _ => runs.push((target, page, 1)),
            }
        }
        runs
    }
}

/// Reads back the written data, `depth` reads at a time.
///
/// # Errors
/// The error of a read; `Unsupported` for blocks larger than a page.
pub(super) async fn verify(
    targets: &[Target],
    written: &Written,
    depth: usize,
) -> Result<Verified> {
    let mut verified = Verified::default();
    for some in written.runs().chunks(depth) {
        let started: Vec<_> = some
            .iter()
            .map(|run| start(targets, *run))
            .collect::<Result<_>>()?;
        for (run, (buf, io)) in some.iter().zip(started) {
            let name = &targets[usize::from(run.0)].name;
            io.await.context(|| format!("target {name}"))?;
            check(name, written, *run, &buf, &mut verified);
        }
    }
    Ok(verified)
}

fn start(
    targets: &[Target],
    (target, first, number): (u16, u64, usize),
) -> Result<(Buf, IoFuture)> {
    let Target { name, device } = &targets[usize::from(target)];
    let info = device.info();
    if u64::from(info.logical_block_bytes) > PAGE_BYTES {
        let what = format!("target {name} has blocks of more than {PAGE_BYTES} bytes");
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let offset = first * PAGE_BYTES;
    let len = (number as u64 * PAGE_BYTES).min(info.size_bytes - offset);
    let buf = Buf::scratch(usize::try_from(len).expect("a short run"));
    Ok((buf.clone(), device.read(offset, buf)))
}

fn check(
    name: &str,
    written: &Written,
    (target, first, number): (u16, u64, usize),
    buf: &Buf,
    verified: &mut Verified,
) {
    let mut bytes = [0; SECTOR_BYTES];
    for page in 0..number {
        let sectors = &written.pages[&(target, first + page as u64)];
        for (at, number) in sectors
            .iter()
            .enumerate()
            .filter(|(_, number)| **number > 0)
        {
            let from = page * PAGE_BYTES as usize + at * SECTOR_BYTES;
            buf.copy_to(from, &mut bytes);
            let expected = Stamp {
                target,
                sector: first * PAGE_SECTORS as u64 + (from / SECTOR_BYTES) as u64,
                number: *number,
            };
            verified.sectors += 1;
            let found = Stamp::of(&bytes);
            if found != Some(expected) {
                verified.wrong += 1;
                verified
                    .first_wrong
                    .get_or_insert_with(|| wrong(name, expected, found, &bytes));
            }
        }
    }
}

fn wrong(name: &str, expected: Stamp, found: Option<Stamp>, bytes: &[u8]) -> String {
    let found = match found {
        Some(found) if (found.target, found.sector) == (expected.target, expected.sector) => {
            format!("that of write {}", found.number)
        }
        Some(found) => format!("that of sector {} (write {})", found.sector, found.number),
        None if bytes.iter().all(|byte| *byte == 0) => "zeroes".to_owned(),
        None => "what no replay wrote".to_owned(),
    };
    format!(
        "the 512 bytes at {} of {name} do not have the data of write {}, the last one there, but \
         {found}",
        expected.sector * SECTOR_BYTES as u64,
        expected.number
    )
}
