//! The memory that all nodes map: frames of pages, and for each frame the words by which nodes agree on it without
//! a message.
//!
//! Everything is read and written as 64-bit atomics, so that a copy that races with a store is a value to be thrown
//! away and never undefined behaviour. A frame has a *generation* (which page's fill it holds, see
//! [`Place`]), a *sequence* (counts stores; names the node that is storing now) and a *clean* word (the sequence
//! that the store is known to hold: the frame is dirty while the two differ, so that a store during a write-back
//! leaves it dirty by itself). And it names its page, for a directory that is started anew.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use forebay_block::{Buf, Error, ErrorKind, Result};

use crate::fault::{Fault, Faults};
use crate::message::{NodeId, PageId, Place};

const WORD_BYTES: usize = size_of::<u64>();
/// Each frame's words have a cache line of their own.
const HEADER_BYTES: usize = 64;
const GENERATION: usize = 0;
const SEQUENCE: usize = 1;
const CLEAN: usize = 2;
const INODE: usize = 3;
const INDEX: usize = 4;

/// The low byte of a sequence: 0, or one more than the node that is storing, with [`FILLING`] if that is a fill.
const WRITER: u64 = 0xff;
const FILLING: u64 = 0x80;
const STEP: u64 = WRITER + 1;

/// What a frame says to somebody who wants to copy from it or store into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The page is there, and nobody stores into it; this is its sequence.
    Steady(u64),
    /// This node is storing into it: try again. If it is dead, [`Segment::end_stores`] will come.
    Storing(NodeId),
    /// Another page is there: look the page up again.
    Stale,
}

/// A cluster's frames in one mapping.
#[derive(Debug)]
pub struct Segment {
    memory: Buf,
    frames: u32,
    page_size_bytes: usize,
    pub(crate) faults: Faults,
}

impl Segment {
    /// Bytes of memory for so many frames of pages of this size.
    #[must_use]
    pub const fn size_bytes(frames: u32, page_size_bytes: usize) -> usize {
        frames as usize * (HEADER_BYTES + page_size_bytes)
    }

    /// Frames in `memory`, which is plain memory of one process or a mapping that several share. New memory is
    /// zeroes: no frame holds a page, since generations begin at 1.
    ///
    /// # Errors
    /// `InvalidInput` if pages are not whole cache lines, or the memory is not as long as
    /// [`Segment::size_bytes`] says or not aligned to cache lines.
    pub fn new(memory: Buf, frames: u32, page_size_bytes: usize) -> Result<Self> {
        let expected = Self::size_bytes(frames, page_size_bytes);
        let lines = page_size_bytes > 0 && page_size_bytes.is_multiple_of(HEADER_BYTES);
        let aligned = memory.as_ptr().addr().is_multiple_of(HEADER_BYTES);
        if !lines || !aligned || memory.len() != expected {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "page cache segment: {} bytes of memory for {frames} frames of {page_size_bytes} bytes: give {expected} aligned bytes, and pages of a multiple of {HEADER_BYTES}",
                    memory.len()
                ),
            ));
        }
        Ok(Self {
            memory,
            frames,
            page_size_bytes,
            faults: Faults::default(),
        })
    }

    /// Bytes of a page.
    #[must_use]
    pub const fn page_size_bytes(&self) -> usize {
        self.page_size_bytes
    }

    /// Copies the page out, whole and from one moment. Spins while somebody stores.
    ///
    /// # Errors
    /// What kept it from it, to be resolved by the caller: the frame is [`Frame::Stale`], or somebody has been
    /// [`Frame::Storing`] for long.
    pub fn read(&self, place: Place, out: &mut [u8]) -> Result<u64, Frame> {
        for _ in 0..SPINS {
            match self.read_once(place, out) {
                Ok(sequence) => return Ok(sequence),
                Err(Frame::Stale) => return Err(Frame::Stale),
                Err(_) => std::hint::spin_loop(),
            }
        }
        Err(self.look(place))
    }

    /// As [`Segment::read`], but tries once.
    ///
    /// # Errors
    /// How the frame was found; if steady, somebody stored meanwhile and it is worth another try.
    pub fn read_once(&self, place: Place, out: &mut [u8]) -> Result<u64, Frame> {
        let found = self.look(place);
        let Frame::Steady(sequence) = found else {
            return Err(found);
        };
        self.load(place.frame, 0, out);
        if self.unchanged(place, sequence) {
            Ok(sequence)
        } else {
            Err(found)
        }
    }

    /// Stores `bytes` at `offset` of the page, as one step for all who copy. The caller has the page pinned, so
    /// that it stays. Spins while somebody else stores.
    ///
    /// # Errors
    /// As [`Segment::read`].
    pub fn write(
        &self,
        place: Place,
        node: NodeId,
        offset: usize,
        bytes: &[u8],
    ) -> Result<u64, Frame> {
        for _ in 0..SPINS {
            match self.lock(place, node) {
                Ok(()) => {
                    self.store(place.frame, offset, bytes);
                    return Ok(self.unlock(place.frame));
                }
                Err(Frame::Stale) => return Err(Frame::Stale),
                Err(_) => std::hint::spin_loop(),
            }
        }
        Err(self.look(place))
    }

    /// The page that a frame was filled with last, or is being filled with; it may have gone since.
    #[must_use]
    pub fn page_in(&self, frame: u32) -> Option<PageId> {
        let load = |number| self.word(frame, number).load(Ordering::Acquire);
        let page = PageId {
            inode: load(INODE),
            index: load(INDEX),
        };
        (load(GENERATION) != 0).then_some(page)
    }

    /// Puts a page into a frame that this node fills alone. `clean` says that the bytes are the store's.
    pub fn fill(&self, page: PageId, place: Place, node: NodeId, bytes: &[u8], clean: bool) {
        self.open(page, place, node);
        self.store(place.frame, 0, bytes);
        let sequence = self.unlock(place.frame);
        if clean {
            self.set_clean(place, sequence);
        }
    }

    /// Begins a copy: the page is there if the frame is steady.
    #[must_use]
    pub fn look(&self, place: Place) -> Frame {
        let sequence = self.word(place.frame, SEQUENCE).load(Ordering::Acquire);
        // First of all: a frame in another use may be left open by a fill that failed.
        if !self.is_generation(place) {
            return Frame::Stale;
        }
        writer(sequence).map_or(Frame::Steady(sequence), Frame::Storing)
    }

    /// Ends a copy: whether what was loaded since [`Segment::look`] is the page, from one moment.
    #[must_use]
    pub fn unchanged(&self, place: Place, sequence: u64) -> bool {
        // The loads of the copy come before these.
        fence(Ordering::Acquire);
        let now = self.word(place.frame, SEQUENCE).load(Ordering::Relaxed);
        now == sequence && self.is_generation(place)
    }

    /// Begins a store, if the frame is steady and nobody else is faster.
    ///
    /// # Errors
    /// How the frame was found; if steady, another node was faster and it is worth another try.
    pub fn lock(&self, place: Place, node: NodeId) -> Result<(), Frame> {
        let found = self.look(place);
        let Frame::Steady(sequence) = found else {
            return Err(found);
        };
        let locked = sequence | (u64::from(node.number()) + 1);
        self.word(place.frame, SEQUENCE)
            .compare_exchange(sequence, locked, Ordering::Acquire, Ordering::Relaxed)
            .map_err(|_| found)?;
        // The lock is seen before the bytes are.
        fence(Ordering::Release);
        Ok(())
    }

    /// Ends a store or a fill. Returns the page's new sequence.
    pub fn unlock(&self, frame: u32) -> u64 {
        let word = self.word(frame, SEQUENCE);
        let sequence = (word.load(Ordering::Relaxed) & !WRITER) + STEP;
        word.store(sequence, Ordering::Release);
        sequence
    }

    /// Begins a fill: from now on whoever still knows the frame by an older generation finds it stale.
    pub fn open(&self, page: PageId, place: Place, node: NodeId) {
        let word = self.word(place.frame, SEQUENCE);
        let sequence = word.load(Ordering::Relaxed) & !WRITER;
        let filling = sequence | FILLING | (u64::from(node.number()) + 1);
        word.store(filling, Ordering::Relaxed);
        fence(Ordering::Release);
        self.word(place.frame, INODE)
            .store(page.inode, Ordering::Relaxed);
        self.word(place.frame, INDEX)
            .store(page.index, Ordering::Relaxed);
        let generation = self.word(place.frame, GENERATION);
        generation.store(place.generation, Ordering::Relaxed);
    }

    /// Ends what a node was doing that died, in all frames: the bytes that it was storing are each old or new; what
    /// it was filling is nothing.
    pub fn end_stores(&self, dead: NodeId) {
        for frame in 0..self.frames {
            let word = self.word(frame, SEQUENCE);
            let sequence = word.load(Ordering::Acquire);
            if writer(sequence) != Some(dead) {
                continue;
            }
            if sequence & FILLING != 0 {
                self.discard(frame);
            } else {
                self.unlock(frame);
            }
        }
    }

    /// No page is in the frame any more, whatever is in it: nobody maps it, and no store is to have it.
    pub fn discard(&self, frame: u32) {
        self.word(frame, GENERATION).store(0, Ordering::Release);
        let sequence = self.unlock(frame);
        self.word(frame, CLEAN).store(sequence, Ordering::Release);
    }

    /// The page in a frame that the store may not have, by what the frame itself says: what a directory that was
    /// started anew does not hear from a node that maps it.
    #[must_use]
    pub fn unsaved(&self, frame: u32) -> Option<(PageId, Place)> {
        let load = |number| self.word(frame, number).load(Ordering::Acquire);
        let place = Place {
            frame,
            generation: load(GENERATION),
        };
        let page = PageId {
            inode: load(INODE),
            index: load(INDEX),
        };
        let filling = load(SEQUENCE) & FILLING != 0;
        let holds = place.generation != 0 && !filling && self.is_dirty(place);
        holds.then_some((page, place))
    }

    /// Frames.
    #[must_use]
    pub const fn frames(&self) -> u32 {
        self.frames
    }

    /// Whether the page differs from what the store is known to hold.
    #[must_use]
    pub fn is_dirty(&self, place: Place) -> bool {
        let sequence = self.word(place.frame, SEQUENCE).load(Ordering::Acquire);
        sequence != self.word(place.frame, CLEAN).load(Ordering::Acquire)
    }

    /// The store holds the page as it was at `sequence`.
    pub fn set_clean(&self, place: Place, mut sequence: u64) {
        if self.faults.has(Fault::CleanRacing) {
            sequence = self.word(place.frame, SEQUENCE).load(Ordering::Relaxed);
        }
        self.word(place.frame, CLEAN)
            .store(sequence, Ordering::Release);
    }

    /// Copies bytes out of a frame without asking whose they are. Offsets and lengths are whole words.
    ///
    /// # Panics
    /// If they are not, or reach out of the page.
    pub fn load(&self, frame: u32, offset: usize, out: &mut [u8]) {
        let words = self.data(frame, offset, out.len());
        for (chunk, word) in out.chunks_exact_mut(WORD_BYTES).zip(words) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    /// Copies bytes into a frame that this node has locked or opened; the rest of words that are touched in part
    /// stays.
    ///
    /// # Panics
    /// If they reach out of the page.
    pub fn store(&self, frame: u32, offset: usize, mut bytes: &[u8]) {
        let mut at = offset;
        while !bytes.is_empty() {
            let (start, inside) = (at - at % WORD_BYTES, at % WORD_BYTES);
            let len = match inside {
                0 if bytes.len() >= WORD_BYTES => bytes.len() - bytes.len() % WORD_BYTES,
                _ => bytes.len().min(WORD_BYTES - inside),
            };
            let (now, rest) = bytes.split_at(len);
            if inside == 0 && len >= WORD_BYTES {
                self.store_words(frame, start, now);
            } else {
                let mut word = [0; WORD_BYTES];
                self.load(frame, start, &mut word);
                word[inside..inside + len].copy_from_slice(now);
                self.store_words(frame, start, &word);
            }
            (at, bytes) = (at + len, rest);
        }
    }

    fn store_words(&self, frame: u32, offset: usize, bytes: &[u8]) {
        let words = self.data(frame, offset, bytes.len());
        for (chunk, word) in bytes.chunks_exact(WORD_BYTES).zip(words) {
            let value = u64::from_ne_bytes(chunk.try_into().expect("a word"));
            word.store(value, Ordering::Relaxed);
        }
    }

    fn is_generation(&self, place: Place) -> bool {
        let generation = self.word(place.frame, GENERATION).load(Ordering::Acquire);
        generation == place.generation || self.faults.has(Fault::UncheckedGeneration)
    }

    fn word(&self, frame: u32, number: usize) -> &AtomicU64 {
        assert!(frame < self.frames, "frame {frame} of {}", self.frames);
        &self.words(frame as usize * HEADER_BYTES + number * WORD_BYTES, 1)[0]
    }

    fn data(&self, frame: u32, offset: usize, len: usize) -> &[AtomicU64] {
        let whole = offset.is_multiple_of(WORD_BYTES) && len.is_multiple_of(WORD_BYTES);
        assert!(whole, "pages are read and written by words of 8 bytes");
        let inside = frame < self.frames && offset + len <= self.page_size_bytes;
        assert!(inside, "frame {frame}, {len} bytes at {offset}");
        let headers = self.frames as usize * HEADER_BYTES;
        let start = headers + frame as usize * self.page_size_bytes + offset;
        self.words(start, len / WORD_BYTES)
    }

    fn words(&self, start: usize, count: usize) -> &[AtomicU64] {
        debug_assert!(start + count * WORD_BYTES <= self.memory.len());
        // SAFETY: the callers' checks keep the words inside of the memory, which is valid as long as `self.memory`
        // and aligned to cache lines (checked by `new`), and `start` is a multiple of 8; the memory belongs to
        // this type, in this process and in others, and is only ever used as atomics.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(start).cast(), count) }
    }
}

/// Tries before the caller is asked: far more than a store takes, unless its thread was stopped.
const SPINS: u32 = 1 << 14;

/// Who is storing.
fn writer(sequence: u64) -> Option<NodeId> {
    let low = u8::try_from(sequence & WRITER & !FILLING).unwrap_or(0);
    low.checked_sub(1).and_then(NodeId::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn node(number: u8) -> NodeId {
        NodeId::new(number).expect("below the most")
    }

    fn place(frame: u32, generation: u64) -> Place {
        Place { frame, generation }
    }

    const P: PageId = PageId { inode: 7, index: 3 };

    fn segment(frames: u32) -> Segment {
        let memory = Buf::zeroed(Segment::size_bytes(frames, PAGE));
        Segment::new(memory, frames, PAGE).expect("it fits")
    }

    #[test]
    fn a_frame_in_another_use_is_stale() {
        let segment = segment(2);
        let mut out = [0; PAGE];
        assert_eq!(segment.read(place(1, 1), &mut out), Err(Frame::Stale));
        segment.fill(P, place(1, 1), node(0), &[7; PAGE], true);
        segment.read(place(1, 1), &mut out).expect("it is there");
        assert_eq!(out, [7; PAGE]);
        let Frame::Steady(sequence) = segment.look(place(1, 1)) else {
            panic!("nobody stores");
        };
        segment.fill(P, place(1, 2), node(0), &[8; PAGE], true);
        assert!(!segment.unchanged(place(1, 1), sequence));
        assert_eq!(
            segment.write(place(1, 1), node(0), 0, &[9; 8]),
            Err(Frame::Stale)
        );
        assert_eq!(segment.read(place(0, 1), &mut out), Err(Frame::Stale));
    }

    #[test]
    fn a_store_during_a_write_back_leaves_the_page_dirty() {
        let segment = segment(1);
        let here = place(0, 1);
        segment.fill(P, here, node(0), &[1; PAGE], true);
        assert!(!segment.is_dirty(here));
        segment
            .write(here, node(1), 64, &[2; 8])
            .expect("it is there");
        let mut out = [0; PAGE];
        let sequence = segment.read(here, &mut out).expect("it is there");
        segment
            .write(here, node(1), 64, &[3; 8])
            .expect("it is there");
        segment.set_clean(here, sequence);
        assert!(
            segment.is_dirty(here),
            "the second store is not in the store"
        );
        let sequence = segment.read(here, &mut out).expect("it is there");
        segment.set_clean(here, sequence);
        assert!(!segment.is_dirty(here));
        segment.fill(P, place(0, 2), node(0), &[4; PAGE], false);
        assert!(segment.is_dirty(place(0, 2)), "nobody has it but us");
    }

    #[test]
    fn a_dead_nodes_store_is_ended() {
        let segment = segment(1);
        let here = place(0, 1);
        segment.fill(P, here, node(0), &[1; PAGE], true);
        segment.lock(here, node(3)).expect("it is steady");
        let mut out = [0; PAGE];
        assert_eq!(segment.read(here, &mut out), Err(Frame::Storing(node(3))));
        segment.end_stores(node(2));
        assert_eq!(
            segment.look(here),
            Frame::Storing(node(3)),
            "node 2 had no lock"
        );
        segment.end_stores(node(3));
        segment.read(here, &mut out).expect("it is steady");
        assert!(segment.is_dirty(here), "what it stored is not in the store");
        assert_eq!(segment.unsaved(0), Some((P, here)));
    }

    #[test]
    fn bytes_beside_a_store_stay() {
        let segment = segment(1);
        let here = place(0, 1);
        for (offset, len) in [
            (0, 1),
            (3, 2),
            (5, 11),
            (8, 8),
            (13, 30),
            (4090, 6),
            (0, PAGE),
        ] {
            segment.fill(P, here, node(0), &[1; PAGE], true);
            let wrote = segment.write(here, node(0), offset, &vec![2; len]);
            wrote.expect("it is there");
            let mut out = [0; PAGE];
            segment.read(here, &mut out).expect("it is there");
            let mut expected = [1; PAGE];
            expected[offset..offset + len].fill(2);
            assert_eq!(out, expected, "{len} bytes at {offset}");
        }
    }

    #[test]
    fn a_dead_nodes_fill_is_nothing() {
        let segment = segment(1);
        segment.open(P, place(0, 1), node(3));
        assert_eq!(segment.look(place(0, 1)), Frame::Storing(node(3)));
        assert_eq!(segment.unsaved(0), None, "its bytes are not all there");
        segment.end_stores(node(3));
        assert_eq!(segment.look(place(0, 1)), Frame::Stale);
        assert_eq!(segment.unsaved(0), None);
        segment.fill(P, place(0, 2), node(1), &[1; PAGE], false);
        assert_eq!(segment.unsaved(0), Some((P, place(0, 2))));
        segment.discard(0);
        assert_eq!(segment.unsaved(0), None);
    }

    #[test]
    fn copies_of_racing_threads_are_whole() {
        let segment = segment(1);
        let here = place(0, 1);
        segment.fill(P, here, node(0), &[0; PAGE], true);
        std::thread::scope(|scope| {
            for number in 1..3 {
                let segment = &segment;
                scope.spawn(move || {
                    for round in 0..2_000_u32 {
                        let byte = (round % 100) as u8 * 2 + number - 1;
                        while segment.write(here, node(number), 0, &[byte; PAGE]).is_err() {}
                    }
                });
            }
            let mut out = [0; PAGE];
            for _ in 0..2_000 {
                if segment.read(here, &mut out).is_ok() {
                    assert!(out.iter().all(|byte| *byte == out[0]), "a torn page");
                }
            }
        });
    }

    #[test]
    fn memory_that_does_not_fit_is_refused() {
        for (frames, page_size_bytes) in [(2, PAGE), (1, 100), (1, 0)] {
            let memory = Buf::zeroed(Segment::size_bytes(1, PAGE));
            assert!(Segment::new(memory, frames, page_size_bytes).is_err());
        }
    }
}
