//! Allocation of a file, from `SEEK_DATA` and `SEEK_HOLE`.
//!
//! A seek may read the metadata of a file system, or wait for its server. So a thread does it. The
//! file system answers each seek from one moment, at which a read of the hole returned zeroes.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use forebay_block::{Allocation, Extents};

use super::holes;
use crate::answer::Answer;

/// Returns the extents of a file. Everything is data if its file system does not say, or if no
/// thread can be started.
pub(crate) async fn extents(fd: BorrowedFd<'_>, range: Range<u64>) -> Extents {
    let Ok(own) = fd.try_clone_to_owned() else {
        return Extents::data(range);
    };
    let answer = Answer::default();
    let (given, asked) = (answer.clone(), range.clone());
    let started = std::thread::Builder::new()
        .name("allocation".to_owned())
        .stack_size(64 << 10)
        .spawn(move || {
            let found = seek_all(own.as_fd(), asked);
            // The file is closed before its device can be, which may wait for the answer.
            drop(own);
            given.give(found);
        });
    match started {
        Ok(_) => answer.get().await,
        Err(_) => Extents::data(range),
    }
}

fn seek_all(fd: BorrowedFd<'_>, range: Range<u64>) -> Extents {
    let mut found = Extents::default();
    // A read behind the end of a truncated file fails, so that nothing there is a hole.
    let end = match holes::are_reliable(fd) {
        true => size_bytes(fd).min(range.end),
        false => 0,
    };
    let mut at = range.start;
    while at < end && !found.is_full() {
        let data = match holes::seek(fd, at, libc::SEEK_DATA) {
            // A file server's answer, which may be anything.
            Ok(data) if data < at => break,
            Ok(data) => data.min(end),
            Err(libc::ENXIO) => end,
            Err(_) => break,
        };
        found.push(at..data, Allocation::Hole);
        at = data;
        if at == end || found.is_full() {
            break;
        }
        let Ok(hole) = holes::seek(fd, at, libc::SEEK_HOLE) else {
            break;
        };
        if hole < at {
            break;
        }
        // A hole that was made since the first seek may begin at once. The next turn finds it.
        found.push(at..hole.min(end), Allocation::Data);
        at = hole.min(end);
    }
    if !found.is_full() {
        found.push(at..range.end, Allocation::Data);
    }
    found
}

/// Returns the size of a file, bytes; zero if it is not known.
fn size_bytes(fd: BorrowedFd<'_>) -> u64 {
    use std::os::fd::AsRawFd as _;
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut answer: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the answer is written in place.
    let known = unsafe { libc::fstat(fd.as_raw_fd(), &raw mut answer) };
    match known {
        0 => u64::try_from(answer.st_size).unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use crate::testing::{Scratch, engines};

    const MIB: u64 = 1 << 20;

    fn parts(extents: &Extents) -> Vec<(u64, Allocation)> {
        let of = |it: &forebay_block::AllocationExtent| (it.bytes.end, it.allocation);
        extents.iter().map(of).collect()
    }

    #[test]
    fn data_lies_between_holes_and_the_end_is_in_doubt() {
        let scratch = Scratch::new();
        let file = std::fs::File::create_new(scratch.path("file")).expect("made");
        file.set_len(8 * MIB).expect("sparse");
        file.write_all_at(&[1; 4096], 2 * MIB).expect("written");
        let all = || seek_all(file.as_fd(), 0..8 * MIB);
        if parts(&all()).len() == 1 {
            eprintln!("SKIPPED: this file system does not tell where a file has holes");
            return;
        }
        let (data, hole) = (Allocation::Data, Allocation::Hole);
        let end = 2 * MIB + 4096;
        let expected = [(2 * MIB, hole), (end, data), (8 * MIB, hole)];
        assert_eq!(parts(&all()), expected);
        file.set_len(6 * MIB).expect("cut");
        let expected = [
            (2 * MIB, hole),
            (end, data),
            (6 * MIB, hole),
            (8 * MIB, data),
        ];
        assert_eq!(parts(&all()), expected);
        let beyond = seek_all(file.as_fd(), 7 * MIB..8 * MIB);
        assert_eq!(parts(&beyond), [(8 * MIB, data)]);
        for engine in engines() {
            let reactor = crate::Reactor::new(engine).expect("a reactor");
            let file = file.try_clone().expect("a descriptor");
            let asked = reactor.run(async move { extents(file.as_fd(), 0..8 * MIB).await });
            assert_eq!(parts(&asked), expected);
        }
    }

    #[test]
    fn many_small_extents_are_answered_in_turns() {
        let scratch = Scratch::new();
        let file = std::fs::File::create_new(scratch.path("file")).expect("made");
        let pieces = 3 * forebay_block::MAX_EXTENTS as u64 / 4;
        file.set_len(pieces * 2 * MIB).expect("sparse");
        for piece in 0..pieces {
            let at = (2 * piece + 1) * MIB;
            file.write_all_at(&[1; 4096], at).expect("written");
        }
        let (mut at, end, mut answers, mut extents) = (0, pieces * 2 * MIB, 0, 0);
        while at < end {
            let found = seek_all(file.as_fd(), at..end);
            let to = found.end().expect("an extent");
            assert!(to > at);
            (at, answers) = (to, answers + 1);
            extents += found.iter().count() as u64;
        }
        if extents == 1 {
            eprintln!("SKIPPED: this file system does not tell where a file has holes");
            return;
        }
        assert_eq!((answers, extents), (2, 2 * pieces + 1));
    }
}
