//! Memory that all nodes map: frames of pages, and a header for each frame, by which nodes
//! coordinate without messages.
//!
//! All accesses are 64-bit atomics. So a copy that races with a store returns a value to discard,
//! and is never undefined behaviour. The header of a frame has these words:
//!
//! - the *generation*: the fill that the frame holds, see [`Place`]
//! - the *sequence*: counts stores, and names the node that is storing now
//! - the *clean* word: the sequence that the store is known to hold. The frame is dirty while the
//!   two differ, so that a store during a write-back leaves it dirty
//! - the page, for a restarted directory, and whether the page was [given up](Segment::give_up)
//! - two words that are independent of the page: [`alone`](Segment::take_alone), and
//!   [`cuts`](Segment::cuts) with, in the first header, [`relaxed`](Segment::set_relaxed)

mod alone;
mod cuts;
mod relaxed;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering, fence};

use forebay_block::{Buf, Error, ErrorKind, Result};

use crate::fault::{Fault, Faults};
use crate::message::{NodeId, PageId, Place};

const WORD_BYTES: usize = size_of::<u64>();
/// Size of a frame's header: one cache line.
const HEADER_BYTES: usize = 64;
const GENERATION: usize = 0;
const SEQUENCE: usize = 1;
const CLEAN: usize = 2;
const INODE: usize = 3;
const INDEX: usize = 4;
const ALONE: usize = 5;
const GIVEN_UP: usize = 6;
const RELAXED: usize = 7;

/// Low byte of a sequence: 0, or one more than the number of the storing node, with [`FILLING`]
/// during a fill.
const WRITER: u64 = 0xff;
const FILLING: u64 = 0x80;
const STEP: u64 = WRITER + 1;

/// State of a frame for a copy or a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The page is there, and no node stores into it. The value is its sequence.
    Steady(u64),
    /// This node is storing into it: try again. If the node is dead, [`Segment::end_stores`] will
    /// follow.
    Storing(NodeId),
    /// The frame holds another page: look the page up again.
    Stale,
}

/// Coherence of the processors' caches of different hosts.
#[derive(Clone, Copy, Debug, Default)]
pub enum Coherence {
    /// Hardware: one host, or a fabric that invalidates lines in hosts' caches (CXL 3.0,
    /// back-invalidate).
    #[default]
    Hardware,
    /// Software: this function writes lines back and drops them, before loads of data that others
    /// may have stored, and after stores that others may load. The header words still need a fabric
    /// with atomic operations on the memory.
    Software(fn(&[AtomicU64])),
}

/// Frames of a cluster in one mapping.
#[derive(Debug)]
pub struct Segment {
    memory: Buf,
    frames: u32,
    page_size_bytes: usize,
    coherence: Coherence,
    pub(crate) faults: Faults,
}

impl Segment {
    /// Returns the size of a segment with this number of frames and page size, bytes.
    #[must_use]
    pub const fn size_bytes(frames: u32, page_size_bytes: usize) -> usize {
        frames as usize * (HEADER_BYTES + page_size_bytes)
    }

    /// Creates a segment in `memory`, which is private memory of one process or a shared mapping.
    /// New memory is zeroes: no frame holds a page, since generations begin at 1.
    ///
    /// # Errors
    /// `InvalidInput` if pages are not whole cache lines, or if the memory does not have the length
    /// of [`Segment::size_bytes`]. The same if it is not aligned to cache lines.
    pub fn new(memory: Buf, frames: u32, page_size_bytes: usize) -> Result<Self> {
        let expected = Self::size_bytes(frames, page_size_bytes);
        let lines = page_size_bytes > 0 && page_size_bytes.is_multiple_of(HEADER_BYTES);
        let aligned = memory.as_ptr().addr().is_multiple_of(HEADER_BYTES);
        if !lines || !aligned || memory.len() != expected {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "page cache segment: {} bytes of memory do not fit {frames} frames of \
                     {page_size_bytes} bytes\n\
                     help: give {expected} aligned bytes, and pages of a multiple of \
                     {HEADER_BYTES}",
                    memory.len()
                ),
            ));
        }
        Ok(Self {
            memory,
            frames,
            page_size_bytes,
            coherence: Coherence::default(),
            faults: Faults::default(),
        })
    }

    /// Sets the coherence, which must be the same for all processes that map the memory.
    #[must_use]
    pub fn with_coherence(self, coherence: Coherence) -> Self {
        Self { coherence, ..self }
    }

    /// Writes lines back and drops them: see [`Coherence::Software`].
    fn drop_lines(&self, words: &[AtomicU64]) {
        if let Coherence::Software(drop_lines) = self.coherence {
            drop_lines(words);
        }
    }

    /// Like [`Segment::drop_lines`], for a frame's header.
    fn drop_header(&self, frame: u32) {
        if let Coherence::Software(drop_lines) = self.coherence {
            drop_lines(self.words(frame as usize * HEADER_BYTES, HEADER_BYTES / WORD_BYTES));
        }
    }

    /// Returns the size of a page, bytes.
    #[must_use]
    pub const fn page_size_bytes(&self) -> usize {
        self.page_size_bytes
    }

    /// Copies the whole page as of one moment. Spins while a node stores.
    ///
    /// # Errors
    /// The obstacle, which the caller must resolve: the frame is [`Frame::Stale`], or a node has
    /// been [`Frame::Storing`] for long.
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

    /// Like [`Segment::read`], with one attempt.
    ///
    /// # Errors
    /// State of the frame. If it is steady, a node has stored meanwhile, and a retry may succeed.
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

    /// Stores `bytes` at `offset` of the page, atomically for all copies. The caller has pinned the
    /// page. Spins while another node stores.
    ///
    /// # Errors
    /// As for [`Segment::read`].
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

    /// Returns the page of the frame's last or current fill. It may have been evicted since.
    #[must_use]
    pub fn page_in(&self, frame: u32) -> Option<PageId> {
        let load = |number| self.word(frame, number).load(Ordering::Acquire);
        let page = PageId {
            inode: load(INODE),
            index: load(INDEX),
        };
        (load(GENERATION) != 0).then_some(page)
    }

    /// Fills a frame that this node has exclusively. `clean` states that the bytes are those of the
    /// store.
    pub fn fill(&self, page: PageId, place: Place, node: NodeId, bytes: &[u8], clean: bool) {
        self.open(page, place, node);
        self.store(place.frame, 0, bytes);
        let sequence = self.unlock(place.frame);
        if clean {
            self.set_clean(place, sequence);
        }
    }

    /// Starts a copy: the page is there if the frame is steady.
    #[must_use]
    pub fn look(&self, place: Place) -> Frame {
        self.drop_header(place.frame);
        let sequence = self.word(place.frame, SEQUENCE).load(Ordering::Acquire);
        // Checked first: a failed fill may have left a frame of another generation open.
        if !self.is_generation(place) {
            return Frame::Stale;
        }
        writer(sequence).map_or(Frame::Steady(sequence), Frame::Storing)
    }

    /// Ends a copy. Returns whether the loads since [`Segment::look`] are the page as of one
    /// moment.
    #[must_use]
    pub fn unchanged(&self, place: Place, sequence: u64) -> bool {
        // The loads of the copy precede these.
        fence(Ordering::Acquire);
        self.drop_header(place.frame);
        let now = self.word(place.frame, SEQUENCE).load(Ordering::Relaxed);
        now == sequence && self.is_generation(place)
    }

    /// Starts a store, if the frame is steady and no other node is faster.
    ///
    /// # Errors
    /// State of the frame. If it is steady, another node was faster, and a retry may succeed.
    pub fn lock(&self, place: Place, node: NodeId) -> Result<(), Frame> {
        let found = self.look(place);
        let Frame::Steady(sequence) = found else {
            return Err(found);
        };
        let locked = sequence | (u64::from(node.number()) + 1);
        self.word(place.frame, SEQUENCE)
            .compare_exchange(sequence, locked, Ordering::Acquire, Ordering::Relaxed)
            .map_err(|_| found)?;
        // The lock is visible before the bytes.
        fence(Ordering::Release);
        self.drop_header(place.frame);
        Ok(())
    }

    /// Ends a store or a fill. Returns the page's new sequence.
    pub fn unlock(&self, frame: u32) -> u64 {
        let word = self.word(frame, SEQUENCE);
        let sequence = (word.load(Ordering::Relaxed) & !WRITER) + STEP;
        word.store(sequence, Ordering::Release);
        self.drop_header(frame);
        sequence
    }

    /// Starts a fill. From now on the frame is stale for older generations.
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
        self.drop_header(place.frame);
    }

    /// Ends the actions of a dead node in all frames. Each byte that it was storing is old or new,
    /// its fills are discarded, and its words are released.
    pub fn end_stores(&self, dead: NodeId) {
        self.set_relaxed(dead, false);
        for frame in 0..self.frames {
            self.end_alone(frame, dead);
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

    /// Empties a frame: no node maps it, and no store must have its content.
    pub fn discard(&self, frame: u32) {
        self.word(frame, GENERATION).store(0, Ordering::Release);
        let sequence = self.unlock(frame);
        self.word(frame, CLEAN).store(sequence, Ordering::Release);
        self.drop_header(frame);
    }

    /// Marks the page in a frame as given up: it is lost, although the store may not have it, and
    /// its writers must be notified. Call it before [`Segment::discard`] and before any message
    /// about it. The mark outlives a directory that ends before all nodes are notified, until
    /// [`Segment::forget_given_up`].
    pub fn give_up(&self, frame: u32) {
        self.word(frame, GIVEN_UP).store(1, Ordering::Release);
        self.drop_header(frame);
    }

    /// Returns the page that was given up in a frame, if some nodes may not have been notified.
    /// Returns `None` if the page is still there.
    #[must_use]
    pub fn given_up(&self, frame: u32) -> Option<PageId> {
        let load = |number| self.word(frame, number).load(Ordering::Acquire);
        let page = PageId {
            inode: load(INODE),
            index: load(INDEX),
        };
        (load(GIVEN_UP) != 0 && load(GENERATION) == 0).then_some(page)
    }

    /// Clears the mark of a given-up page, after all nodes were notified.
    pub fn forget_given_up(&self, frame: u32) {
        self.word(frame, GIVEN_UP).store(0, Ordering::Release);
        self.drop_header(frame);
    }

    /// Resets all frames to the state of new memory.
    pub fn wipe(&self) {
        for frame in 0..self.frames {
            for number in 0..HEADER_BYTES / WORD_BYTES {
                self.word(frame, number).store(0, Ordering::Release);
            }
            self.drop_header(frame);
        }
    }

    /// Returns the page in a frame that the store may not have, according to the frame's header. A
    /// restarted directory learns of an unmapped page only from here.
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

    /// Returns a page that the store may not have, if there is one ([`Segment::unsaved`]).
    #[must_use]
    pub fn any_unsaved(&self) -> Option<PageId> {
        let unsaved = (0..self.frames).find_map(|frame| self.unsaved(frame));
        unsaved.map(|(page, _)| page)
    }

    /// Returns the number of frames.
    #[must_use]
    pub const fn frames(&self) -> u32 {
        self.frames
    }

    /// Returns whether the page differs from the content that the store is known to hold.
    #[must_use]
    pub fn is_dirty(&self, place: Place) -> bool {
        let sequence = self.word(place.frame, SEQUENCE).load(Ordering::Acquire);
        sequence != self.word(place.frame, CLEAN).load(Ordering::Acquire)
    }

    /// Notes that the store holds the page as of `sequence`.
    pub fn set_clean(&self, place: Place, mut sequence: u64) {
        if self.faults.has(Fault::CleanRacing) {
            sequence = self.word(place.frame, SEQUENCE).load(Ordering::Relaxed);
        }
        self.word(place.frame, CLEAN)
            .store(sequence, Ordering::Release);
        self.drop_header(place.frame);
    }

    /// Copies bytes out of a frame without checking its page. Offset and length are multiples of 8.
    ///
    /// # Panics
    /// If they are not, or if they reach beyond the page.
    pub fn load(&self, frame: u32, offset: usize, out: &mut [u8]) {
        let words = self.data(frame, offset, out.len());
        self.drop_lines(words);
        for (chunk, word) in out.chunks_exact_mut(WORD_BYTES).zip(words) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    /// Copies bytes into a frame that this node has locked or opened. In partially written words,
    /// the other bytes stay.
    ///
    /// # Panics
    /// If they reach beyond the page.
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
        self.drop_lines(words);
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
        // SAFETY: the callers' checks keep the words within the memory, which lives as long as
        // `self.memory`. It is aligned to cache lines (checked by `new`), and `start` is a multiple
        // of 8. Only this type uses the memory, in this process and in others, and only as atomics.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(start).cast(), count) }
    }
}

/// Attempts before an error is returned: far more than a store takes, unless its thread was
/// stopped.
const SPINS: u32 = 1 << 14;

/// Returns the storing node.
fn writer(sequence: u64) -> Option<NodeId> {
    let low = u8::try_from(sequence & WRITER & !FILLING).unwrap_or(0);
    low.checked_sub(1).and_then(NodeId::new)
}
