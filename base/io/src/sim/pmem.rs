//! Byte-addressable memory behind a store buffer that loses all that it may. It simulates
//! [`PmemMapping`](crate::pmem::PmemMapping). The contract stands at the top of [`crate::pmem`].
//!
//! Memory is words of 8 bytes. For each word this records the values that it had since it was last
//! durable. Power loss leaves one of them, or the durable one. A flush marks how far a word would
//! be written back, and the fence of the same *strand* makes that much durable. Strands stand for
//! threads. A test says which one is running ([`SimPmem::set_strand`]), so that their interleaving
//! is deterministic.
//!
//! An observer sees every step before it takes effect, and may take the state after a crash at this
//! moment ([`SimPmem::crash`]). So one run explores as many crashes as it has steps. Flushes and
//! fences are identified by their places in the source. A test can leave each out and must then
//! find lost data.

mod word;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_block::{Buf, Error, ErrorKind, Result};

use super::cut::Cut;
use super::rng::Rng;
use super::shared::tracing_enabled;
use crate::pmem::{LINE_BYTES, Pmem};
use word::Word;

const WORD_BYTES: u64 = 8;
const PAGE_BYTES: u64 = 4096;
/// Unit of a medium for the counters, in bytes.
const UNIT_BYTES: u64 = 256;
const PAGE_WORDS: usize = (PAGE_BYTES / WORD_BYTES) as usize;

type Page = [u64; PAGE_WORDS];

/// Operation of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PmemStep {
    /// A word is stored.
    Store,
    /// Lines are stored round the caches.
    Stream,
    /// Lines begin to be written back.
    Flush,
    /// A strand waits for its flushes and streams.
    Fence,
}

/// A flush or fence, by its place in the source: file, line, column.
pub type PmemSite = (PmemStep, &'static str, u32, u32);

/// Selection of the undurable stores that survive power loss. Words are counted from zero in the
/// order of their offsets; [`SimPmem::undurable_words`] says how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// The i-th word only, in its newest value.
    Only(usize),
    /// All but the i-th word.
    AllBut(usize),
    /// For each word one of the values that it had, by seed.
    Random(u64),
}

/// Counters of a memory's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PmemCounts {
    /// Words stored.
    pub stores: u64,
    /// Bytes stored round the caches.
    pub streamed_bytes: u64,
    /// Number of units of 256 bytes that were stored into by streams, counted for each stream
    /// separately. A medium with such units writes as many internally if it combines nothing.
    pub streamed_units: u64,
    /// Lines flushed.
    pub flushed_lines: u64,
    /// Fences.
    pub fences: u64,
    /// Bits that rotted.
    pub rotted: u64,
}

type Observer = Arc<dyn Fn(&SimPmem, PmemStep) + Send + Sync>;

/// Simulated byte-addressable memory; all zeroes when it is new.
pub struct SimPmem {
    size_bytes: u64,
    /// End of the process that uses it, in a world.
    cut: Option<Arc<Cut>>,
    state: Mutex<State>,
}

#[derive(Clone, Default)]
struct State {
    /// Content that loads see. Pages of zeroes are absent.
    seen: Vec<Option<Arc<Page>>>,
    durable: Vec<Option<Arc<Page>>>,
    /// The words of which `seen` is not known to be durable.
    undurable: BTreeMap<u64, Word>,
    strand: u32,
    /// For each strand the words that its next fence makes durable.
    covered: BTreeMap<u32, BTreeSet<u64>>,
    spoiled: BTreeSet<u64>,
    counts: PmemCounts,
    observer: Option<Observer>,
    sites: BTreeSet<PmemSite>,
    left_out: Option<PmemSite>,
}

fn load(pages: &[Option<Arc<Page>>], word: u64) -> u64 {
    let (page, index) = (word as usize / PAGE_WORDS, word as usize % PAGE_WORDS);
    pages[page].as_ref().map_or(0, |page| page[index])
}

fn store(pages: &mut [Option<Arc<Page>>], word: u64, value: u64) {
    let (page, index) = (word as usize / PAGE_WORDS, word as usize % PAGE_WORDS);
    if pages[page].is_none() && value == 0 {
        return;
    }
    let page = pages[page].get_or_insert_with(|| Arc::new([0; PAGE_WORDS]));
    Arc::make_mut(page)[index] = value;
}

impl State {
    fn holding(pages: Vec<Option<Arc<Page>>>) -> Self {
        Self {
            seen: pages.clone(),
            durable: pages,
            ..Self::default()
        }
    }

    /// Returns the content after power loss.
    fn surviving(&self, survival: Survival) -> Vec<Option<Arc<Page>>> {
        let mut pages = self.durable.clone();
        let rng = match survival {
            Survival::Random(seed) => Rng::new(seed),
            _ => Rng::new(0),
        };
        // Words of few or of most lines survive, as it happens.
        let eighths = rng.below(9);
        for (index, (&number, word)) in self.undurable.iter().enumerate() {
            let newest = word.values.len();
            let survivor = match survival {
                Survival::None => 0,
                Survival::All => newest,
                Survival::Only(one) => newest * usize::from(one == index),
                Survival::AllBut(one) => newest * usize::from(one != index),
                Survival::Random(_) if rng.chance(eighths, 8) => 1 + rng.index(newest),
                Survival::Random(_) => 0,
            };
            if let Some(value) = survivor.checked_sub(1).map(|last| word.values[last]) {
                store(&mut pages, number, value);
            }
        }
        pages
    }

    fn put(&mut self, word: u64, value: u64) {
        // A value that equals the durable one need not be recorded.
        if value == load(&self.seen, word) && !self.undurable.contains_key(&word) {
            return;
        }
        store(&mut self.seen, word, value);
        self.undurable.entry(word).or_default().values.push(value);
    }

    /// A flush by the running strand.
    fn cover(&mut self, first_word: u64, end_word: u64) {
        let strand = self.strand;
        let covered = self.covered.entry(strand).or_default();
        for (&number, word) in self.undurable.range_mut(first_word..end_word) {
            word.flush(strand);
            covered.insert(number);
        }
    }

    fn fence(&mut self) {
        for number in self.covered.remove(&self.strand).unwrap_or_default() {
            let Some(word) = self.undurable.get_mut(&number) else {
                continue;
            };
            if let Some(value) = word.fence(self.strand) {
                store(&mut self.durable, number, value);
            }
            if word.values.is_empty() {
                self.undurable.remove(&number);
            }
        }
    }

    /// Returns whether the site is to be left out.
    fn reach(&mut self, step: PmemStep, at: &'static Location<'static>) -> bool {
        let site = (step, at.file(), at.line(), at.column());
        self.sites.insert(site);
        self.left_out == Some(site)
    }
}

impl fmt::Debug for SimPmem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimPmem")
            .field("size_bytes", &self.size_bytes)
            .field("undurable_words", &self.undurable_words())
            .finish_non_exhaustive()
    }
}

impl SimPmem {
    /// A memory of zeroes, all durable.
    ///
    /// # Panics
    /// If the size is zero or no multiple of 4,096.
    #[must_use]
    pub fn new(size_bytes: u64) -> Arc<Self> {
        assert!(
            size_bytes > 0 && size_bytes.is_multiple_of(PAGE_BYTES),
            "whole pages"
        );
        let pages = vec![None; (size_bytes / PAGE_BYTES) as usize];
        Self::with(size_bytes, None, State::holding(pages))
    }

    /// A memory of zeroes in a world.
    pub(super) fn in_world(size_bytes: u64, cut: Arc<Cut>) -> Arc<Self> {
        let state = Self::new(size_bytes).state().clone();
        Self::with(size_bytes, Some(cut), state)
    }

    fn with(size_bytes: u64, cut: Option<Arc<Cut>>, state: State) -> Arc<Self> {
        Arc::new(Self {
            size_bytes,
            cut,
            state: Mutex::new(state),
        })
    }

    /// Returns a copy in another world, with undurable data and without an observer.
    pub(super) fn fork(&self, cut: Arc<Cut>) -> Arc<Self> {
        let state = State {
            observer: None,
            ..self.state().clone()
        };
        Self::with(self.size_bytes, Some(cut), state)
    }

    /// Returns whether two memories would behave the same from now on. Counters and observers are
    /// not compared.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let (one, other) = (self.state(), other.state());
        one.seen == other.seen
            && one.durable == other.durable
            && one.undurable == other.undurable
            && one.covered == other.covered
            && one.spoiled == other.spoiled
            && one.strand == other.strand
            && one.left_out == other.left_out
            && one.counts.rotted == other.counts.rotted
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the memory that a machine would find after power loss now and a restart: a separate
    /// one, all of it durable. Spoiled words stay spoiled.
    #[must_use]
    pub fn crash(&self, survival: Survival) -> Arc<Self> {
        let (pages, spoiled) = {
            let state = self.state();
            (state.surviving(survival), state.spoiled.clone())
        };
        let state = State {
            spoiled,
            ..State::holding(pages)
        };
        Self::with(self.size_bytes, None, state)
    }

    /// Leaves in this memory what survives, all of it durable.
    pub(super) fn lose(&self, survival: Survival) {
        let state = &mut *self.state();
        let pages = state.surviving(survival);
        (state.seen, state.durable) = (pages.clone(), pages);
        state.undurable.clear();
        state.covered.clear();
    }

    /// Returns the number of words of which power loss now might lose a value.
    #[must_use]
    pub fn undurable_words(&self) -> usize {
        self.state().undurable.len()
    }

    /// From now on, stores, flushes and fences are those of this strand.
    pub fn set_strand(&self, strand: u32) {
        self.state().strand = strand;
    }

    /// The strand that runs.
    #[must_use]
    pub fn strand(&self) -> u32 {
        self.state().strand
    }

    /// Calls `observer` before every step from now on. `None` removes it.
    pub fn observe(&self, observer: Option<Observer>) {
        self.state().observer = observer;
    }

    /// Returns the counters of its operations so far.
    #[must_use]
    pub fn counts(&self) -> PmemCounts {
        self.state().counts
    }

    /// The flushes and fences that were reached so far.
    #[must_use]
    pub fn sites(&self) -> BTreeSet<PmemSite> {
        self.state().sites.clone()
    }

    /// Does nothing at this place from now on.
    pub fn leave_out(&self, site: PmemSite) {
        self.state().left_out = Some(site);
    }

    /// Makes reads of the lines that hold this range fail until they are streamed over.
    pub fn spoil(&self, offset: u64, len: u64) {
        let lines = offset / LINE_BYTES..(offset + len).div_ceil(LINE_BYTES);
        self.state().spoiled.extend(lines);
    }

    /// Flips a stored bit, without any report.
    pub fn rot(&self, byte: u64, bit: u32) {
        let (word, flip) = (
            byte / WORD_BYTES,
            1 << (byte % WORD_BYTES * 8 + u64::from(bit)),
        );
        let state = &mut *self.state();
        state.counts.rotted += 1;
        for pages in [&mut state.seen, &mut state.durable] {
            let value = load(pages, word) ^ flip;
            store(pages, word, value);
        }
    }

    /// Panics outside the memory. The observer sees the step before it is taken. None if the
    /// process is over.
    fn step(
        &self,
        step: PmemStep,
        offset: u64,
        len: u64,
        align: u64,
    ) -> Option<MutexGuard<'_, State>> {
        self.check(offset, len, align);
        let observer = self.state().observer.clone();
        if let Some(observer) = observer {
            observer(self, step);
        }
        if let Some(cut) = &self.cut {
            if cut.is_stopped() || cut.stops_before_io() {
                return None;
            }
            if tracing_enabled() {
                let (nth, step) = (cut.io_count(), format!("{step:?}"));
                eprintln!("           io {nth:>5} {step:<11} memory     {offset:>19} +{len}");
            }
            // It has its effect, and nothing comes after it.
            let _ = cut.stops_after_io();
        }
        Some(self.state())
    }

    fn check(&self, offset: u64, len: u64, align: u64) {
        assert!(
            offset <= self.size_bytes
                && len <= self.size_bytes - offset
                && offset.is_multiple_of(align),
            "{len} bytes at {offset}, aligned to {align}, in a memory of {} bytes",
            self.size_bytes
        );
    }
}

impl Pmem for SimPmem {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&self, offset: u64, target: &Buf) -> Result<()> {
        let end = offset + target.len() as u64;
        self.check(offset, target.len() as u64, 1);
        let state = self.state();
        let mut lines = state
            .spoiled
            .range(offset / LINE_BYTES..end.div_ceil(LINE_BYTES));
        if let Some(line) = lines.next() {
            return Err(Error::new(
                ErrorKind::Io,
                format!("the medium cannot read its line at {}", line * LINE_BYTES),
            ));
        }
        let mut at = offset;
        while at < end {
            let start = at % WORD_BYTES;
            let bytes = load(&state.seen, at / WORD_BYTES).to_le_bytes();
            let part = &bytes[start as usize..][..(WORD_BYTES - start).min(end - at) as usize];
            target.copy_from((at - offset) as usize, part);
            at += part.len() as u64;
        }
        Ok(())
    }

    fn load_u32(&self, offset: u64) -> u32 {
        self.check(offset, 4, 4);
        let word = load(&self.state().seen, offset / WORD_BYTES);
        (word >> (offset % WORD_BYTES * 8)) as u32
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.check(offset, 8, 8);
        load(&self.state().seen, offset / WORD_BYTES)
    }

    fn store_u32(&self, offset: u64, value: u32) {
        let Some(mut state) = self.step(PmemStep::Store, offset, 4, 4) else {
            return;
        };
        let (word, shift) = (offset / WORD_BYTES, offset % WORD_BYTES * 8);
        let other = load(&state.seen, word) & !(0xffff_ffff << shift);
        state.put(word, other | u64::from(value) << shift);
        state.counts.stores += 1;
    }

    fn store_u64(&self, offset: u64, value: u64) {
        let Some(mut state) = self.step(PmemStep::Store, offset, 8, 8) else {
            return;
        };
        state.put(offset / WORD_BYTES, value);
        state.counts.stores += 1;
    }

    fn stream(&self, offset: u64, source: &Buf) {
        let len = source.len() as u64;
        assert!(len.is_multiple_of(LINE_BYTES), "a stream of {len} bytes");
        let Some(mut state) = self.step(PmemStep::Stream, offset, len, LINE_BYTES) else {
            return;
        };
        let first = offset / WORD_BYTES;
        for (word, bytes) in (first..).zip(source.to_vec().chunks_exact(WORD_BYTES as usize)) {
            let bytes = bytes.try_into().expect("chunks of a word");
            state.put(word, u64::from_le_bytes(bytes));
        }
        state.cover(first, first + len / WORD_BYTES);
        for line in offset / LINE_BYTES..(offset + len) / LINE_BYTES {
            state.spoiled.remove(&line);
        }
        state.counts.streamed_bytes += len;
        state.counts.streamed_units += (offset + len).div_ceil(UNIT_BYTES) - offset / UNIT_BYTES;
    }

    fn flush(&self, offset: u64, len: u64) {
        let at = Location::caller();
        let Some(mut state) = self.step(PmemStep::Flush, offset, len, 1) else {
            return;
        };
        let lines = offset / LINE_BYTES..(offset + len).div_ceil(LINE_BYTES);
        state.counts.flushed_lines += lines.end - lines.start;
        if !state.reach(PmemStep::Flush, at) {
            let words = LINE_BYTES / WORD_BYTES;
            state.cover(lines.start * words, lines.end * words);
        }
    }

    fn fence(&self) {
        let at = Location::caller();
        let Some(mut state) = self.step(PmemStep::Fence, 0, 0, 1) else {
            return;
        };
        state.counts.fences += 1;
        if !state.reach(PmemStep::Fence, at) {
            state.fence();
        }
    }
}

#[cfg(test)]
mod tests;
