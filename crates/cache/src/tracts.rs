//! Tracts: what can be known of a volume before the map is there (rule 3's twin, docs/internals/online-open.md).
//!
//! A tract is an aligned stretch of a volume, 64 MiB unless the format says otherwise. Its bit in the superblock is durable
//! before the first byte of a write that makes something in it dirty, and stays while anything is. So where a bit is clear
//! the backing device has everything, and the next process may read there while it reads the log
//! ([`early`](crate::early)).
//!
//! Bits go lazily: when nothing in the tract was dirty for a while. A block turns clean in the map after its write-back was
//! flushed on the backing device, so from then on that has what was acknowledged. That a record may call the block dirty
//! still does no harm once what was written to its slot is flushed there, which the bit waits for: the copy holds the same,
//! until something is written there, which sets the bit first (or goes round the cache, after the record that calls it clean).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::Result;
use forebay_io::rt;
use forebay_io::sync::Semaphore;
use forebay_metadata::order::{Part, Site};
use forebay_metadata::superblock::{TRACT_BITS, Tracts};
use forebay_policy::BlockKey;

use crate::engine::Engine;
use crate::map::LIVE;
use crate::plant::{Fault, planted};

/// The bit of a tract goes when nothing in it was dirty at two ticks, so far apart, one after the other.
const TICK: Duration = Duration::from_secs(3);

/// By the bit of their tracts: dirty blocks, and writes under way that may make some.
#[derive(Debug)]
pub(crate) struct Holds(Vec<u32>);

impl Default for Holds {
    fn default() -> Self {
        Self(vec![0; TRACT_BITS])
    }
}

impl Holds {
    /// A block was dirty (1) or not (0), and is now.
    #[inline]
    pub(crate) fn turned(&mut self, bit: usize, was: u64, is: u64) {
        self.0[bit] += u32::from(is > was);
        self.0[bit] -= u32::from(is < was);
    }

    /// Whether nothing in the tracts with this bit is dirty, or about to turn so.
    fn is_clean(&self, bit: usize) -> bool {
        self.0[bit] == 0
    }

    /// The others, in order.
    fn held(&self) -> impl Iterator<Item = usize> + '_ {
        let counts = (0..).zip(&self.0).filter(|(_, count)| **count != 0);
        counts.map(|(bit, _)| bit)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.len() * size_of::<u32>()
    }
}

/// What media is known to say of tracts.
#[derive(Debug)]
pub(crate) struct TractBits {
    /// Bits that are set durably and that nobody is clearing.
    set: RefCell<Tracts>,
    /// Bits that somebody waits for.
    wanted: RefCell<Vec<usize>>,
    /// Bits are changed by one at a time.
    turn: Semaphore,
}

impl TractBits {
    /// What the superblock says; nothing where it says nothing.
    pub(crate) fn new(found: Option<&Tracts>, shift: u8) -> Self {
        Self {
            set: RefCell::new(found.cloned().unwrap_or_else(|| Tracts::new(shift))),
            wanted: RefCell::default(),
            turn: Semaphore::new(1),
        }
    }
}

/// While this lives, the tract's bit stays.
#[must_use = "dropping it lets the bit go"]
#[derive(Debug)]
pub(crate) struct TractUse {
    engine: Rc<Engine>,
    bit: usize,
}

impl Drop for TractUse {
    fn drop(&mut self) {
        self.engine.map.borrow_mut().tracts.0[self.bit] -= 1;
    }
}

impl Engine {
    /// Waits until media says that the tract of `key` may be dirty, and keeps it so for as long as the returned value
    /// lives.
    #[track_caller]
    pub(crate) fn enter_tract(
        self: &Rc<Self>,
        key: BlockKey,
    ) -> impl Future<Output = Result<TractUse>> + '_ {
        let site = Site::here();
        let bit = self.geometry.tract_bit(key.volume(), key.block());
        // From now on nobody clears it.
        self.map.borrow_mut().tracts.0[bit] += 1;
        let held = TractUse {
            engine: Rc::clone(self),
            bit,
        };
        async move {
            if self.tracts.set.borrow().has(bit) || site.lacks(Part::Step) {
                return Ok(held);
            }
            if site.lacks(Part::Wait) {
                let engine = Rc::clone(self);
                rt::spawn(async move { _ = engine.set_tract(bit).await });
                return Ok(held);
            }
            // Boxed, since it is seldom: every write's future would have room for it.
            Box::pin(self.set_tract(bit)).await?;
            Ok(held)
        }
    }

    /// Sets a bit durably, with all that others wait for.
    async fn set_tract(&self, bit: usize) -> Result<()> {
        let tracts = &self.tracts;
        tracts.wanted.borrow_mut().push(bit);
        tracts.turn.acquire(1).await;
        // Who had the turn before may have taken it along, or have failed.
        let missing = !tracts.set.borrow().has(bit);
        let result = match self.check_alive() {
            Ok(()) if missing => {
                let wanted = tracts.wanted.take();
                self.write_tracts(&wanted, true).await
            }
            alive => alive,
        };
        tracts.turn.release(1);
        result
    }

    async fn write_tracts(&self, bits: &[usize], dirty: bool) -> Result<()> {
        let shift = self.geometry.tract_shift();
        let change = |set: &mut Tracts| bits.iter().for_each(|bit| set.set(*bit, dirty));
        if !dirty && !planted(Fault::ClearTractBehind) {
            // Who comes from here on sets it again, and has his turn after this.
            change(&mut self.tracts.set.borrow_mut());
        }
        self.change_superblock(|superblock| {
            change(superblock.tracts.get_or_insert_with(|| Tracts::new(shift)));
        })
        .await?;
        change(&mut self.tracts.set.borrow_mut());
        Ok(())
    }

    /// At the end of an opening: what counts as dirty is so on media, and media says something.
    pub(crate) async fn settle_tracts(&self) -> Result<()> {
        let shift = self.geometry.tract_shift();
        let mut dirty = Tracts::new(shift);
        let mut lacks = self.superblock.borrow().tracts.is_none();
        for bit in self.map.borrow().tracts.held() {
            dirty.set(bit, true);
            lacks |= !self.tracts.set.borrow().has(bit);
        }
        if !lacks || planted(Fault::LeaveTractsUnsettled) {
            return Ok(());
        }
        let known = dirty.clone();
        self.change_superblock(|superblock| superblock.tracts = Some(dirty))
            .await?;
        *self.tracts.set.borrow_mut() = known;
        Ok(())
    }

    /// Bits that are set, of tracts in which nothing is dirty, nor was written to the cache since that was last flushed:
    /// what a slot holds after power loss may be older than what the backing device has, and called dirty.
    fn clean_tracts(&self) -> Vec<usize> {
        let (map, set) = (self.map.borrow(), self.tracts.set.borrow());
        let not_flushed = self.commit.not_flushed();
        let doubtful = not_flushed.into_iter().filter(|slot| map.has(*slot, LIVE));
        let mut doubtful: Vec<usize> = doubtful
            .map(|slot| map.slot(slot).key)
            .map(|key| self.geometry.tract_bit(key.volume(), key.block()))
            .collect();
        doubtful.sort_unstable();
        let is_flushed = |bit: &usize| {
            doubtful.binary_search(bit).is_err() || planted(Fault::ClearUnflushedTract)
        };
        let is_clean = |bit: &usize| {
            map.tracts.is_clean(*bit) && is_flushed(bit) || planted(Fault::ClearDirtyTract)
        };
        set.dirty().filter(is_clean).collect()
    }

    /// Waits for who changes bits just now: when the cache is closing, nobody does from then on.
    pub(crate) async fn tracts_are_quiet(&self) {
        self.tracts.turn.acquire(1).await;
        self.tracts.turn.release(1);
    }

    /// The task that clears bits of tracts that have been clean for a while.
    pub(crate) async fn tract_timer(self: Rc<Self>) {
        let mut clean_before: Vec<usize> = Vec::new();
        loop {
            rt::sleep(TICK).await;
            if self.stopping.get() || !self.commit.is_alive() {
                return;
            }
            self.tracts.turn.acquire(1).await;
            if self.stopping.get() || !self.commit.is_alive() {
                self.tracts.turn.release(1);
                return;
            }
            let clean = self.clean_tracts();
            let twice: Vec<usize> = (clean.iter().copied())
                .filter(|bit| clean_before.binary_search(bit).is_ok())
                .collect();
            if !twice.is_empty() {
                // A cache that failed meanwhile said so.
                let _ = self.write_tracts(&twice, false).await;
            }
            // Here, since the end of a cache waits for this turn: the superblock is not written behind it.
            self.forget_failures().await;
            self.tracts.turn.release(1);
            clean_before = clean;
        }
    }
}
