//! Compares a sample of clean content with the backing device before a volume is attached.
//!
//! A backing device may have been restored from an older copy, swapped for another of the same
//! name, or written to by others. Identities and epochs do not detect that. A clean granule claims
//! that the backing device has the same bytes, durably (rules 4 and 5). A difference therefore
//! proves that the device is not the one that the cache knew. The attach then fails before anything
//! is served from the cache or written back. docs/internals/sampled-comparison.md argues why no
//! crash leaves a difference.
//!
//! The superblock stores the place of a difference. The next start checks that place first, so a
//! retry does not succeed by chance.
//!
//! Service without the cache does not end a refusal. That place is compared before the clean copies
//! are dropped, unless a write touched it meanwhile. No others are compared then: a cache whose
//! device failed may have lost records.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_metadata::superblock::VolumeEntry;
use forebay_policy::{BlockId, BlockKey};

use crate::engine::Engine;
use crate::failpoints::{Fault, planted};
use crate::geometry::Block;
use crate::lock::lock_of;
use crate::map::{DYING, LIVE};
use crate::options::VolumeOptions;
use crate::parallel;

/// Time limit of a volume's first granule. A device that works answers within it, even across a
/// network or on a busy machine.
const FIRST: Duration = Duration::from_secs(1);
/// Time that the other samples of all volumes may take together.
const TIME: Duration = Duration::from_millis(100);
/// Most granules of a volume that are compared.
const MOST: usize = 256;
/// Granules that are read at a time.
const AT_ONCE: usize = 16;
/// Most blocks that are looked at for samples.
const MOST_LOOKS: u32 = 1 << 16;

/// A granule to compare.
#[derive(Clone, Copy, Debug)]
struct Granule {
    id: BlockId,
    block: Block,
    number: u32,
}

/// Result of a comparison so far.
#[derive(Debug, Default)]
struct Tally {
    compared: Cell<usize>,
    differs_at: Cell<Option<u64>>,
}

/// Draws numbers from a seed (splitmix64).
struct Draw(u64);

impl Draw {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    const fn below(&mut self, limit: u32) -> u32 {
        (self.next() % limit as u64) as u32
    }
}

const fn greatest_divisor(mut one: u32, mut other: u32) -> u32 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

impl Engine {
    /// Compares a sample of a volume's clean data with the backing device that the volume is about
    /// to be attached to. With `adopt`, clean copies are dropped if one differs, and dirty data
    /// stays.
    ///
    /// # Errors
    /// `InvalidInput` if a clean copy differs.
    pub(crate) async fn compare_sample(
        self: &Rc<Self>,
        known: &VolumeEntry,
        backing: &Rc<dyn BlockDevice>,
        options: &VolumeOptions,
    ) -> Result<()> {
        let (name, adopt) = (&known.name, options.adopt);
        let was_elsewhere = options.epoch > known.epoch;
        if adopt && let Some(at) = known.differs_at {
            // A sample that is drawn now may miss it.
            return self.drop_clean_of(known, at, backing).await;
        }
        let tally = Rc::new(Tally::default());
        // Where it differed last time no chance decides.
        if let Some(granule) = known
            .differs_at
            .and_then(|at| self.clean_granule_at(known.id, at))
            .filter(|granule| !was_elsewhere || !was_written(options, self.bytes_of(granule)))
        {
            self.compare_all(known, backing, &[granule], &tally).await;
        }
        if tally.differs_at.get().is_none() {
            if was_elsewhere {
                return Ok(());
            }
            let sample = self.draw_sample(known);
            if sample.is_empty() && tally.compared.get() == 0 {
                let dirty_bytes = self.map.borrow().share(known.id).dirty_bytes;
                match dirty_bytes {
                    0 => tracing::info!(volume = name, "no cached data can be compared"),
                    _ => tracing::warn!(
                        volume = name,
                        dirty_bytes,
                        "no clean data is cached: a change of the backing device cannot be detected"
                    ),
                }
                return Ok(());
            }
            let volumes = self.superblock.current().volumes.len();
            let limit = TIME / u32::try_from(volumes.max(1)).expect("at most MAX_VOLUMES");
            let (first, others) = sample.split_at(sample.len().min(1));
            let comparing = self.compare_all(known, backing, first, &tally);
            let is_slow = rt::at_most(FIRST, comparing).await.is_none();
            let comparing = async {
                for part in others.chunks(AT_ONCE) {
                    if tally.differs_at.get().is_some() {
                        break;
                    }
                    self.compare_all(known, backing, part, &tally).await;
                }
            };
            if is_slow || rt::at_most(limit, comparing).await.is_none() {
                tracing::info!(
                    volume = name,
                    "the backing device is slow: {} of {} clean granules were compared with it",
                    tally.compared.get(),
                    sample.len()
                );
            }
        }
        let Some(at) = tally.differs_at.get() else {
            tracing::debug!(
                volume = name,
                compared = tally.compared.get(),
                "no clean granule differs"
            );
            return Ok(());
        };
        if adopt {
            return self.drop_clean_of(known, at, backing).await;
        }
        let device = backing.info().name;
        self.superblock
            .change(|superblock| {
                let mut volumes = superblock.volumes.iter_mut();
                if let Some(entry) = volumes.find(|entry| entry.id == known.id) {
                    entry.differs_at = Some(at);
                }
            })
            .await?;
        let dirty = self.map.borrow().share(known.id).dirty_bytes;
        Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "volume {name:?}: {device} differs at byte {at} from a clean copy: the device or \
                 the cache has changed\n\
                 help: restore the device that the volume had, as it was. Or start with --adopt \
                 {name}: clean copies are dropped, and {dirty} bytes of dirty data are written to \
                 this device. Or start with --without-cache {name} to inspect the device: the \
                 cache keeps its data"
            ),
        ))
    }

    /// Drops all clean copies of a volume, since the backing device differs from one of them at
    /// byte `at`.
    async fn drop_clean_of(
        &self,
        known: &VolumeEntry,
        at: u64,
        backing: &Rc<dyn BlockDevice>,
    ) -> Result<()> {
        tracing::warn!(
            volume = known.name,
            offset = at,
            "{} differs from a clean copy in the cache: all clean copies are dropped, and dirty \
             data is kept for it",
            backing.info().name
        );
        self.drop_clean(known.id, |id| self.map.borrow().state(id).dirty)
            .await
    }

    /// Returns clean granules of a volume, drawn at random. The seed is the cache's identity and
    /// the state of its superblock. So each start draws other granules, and a replayed run draws
    /// the same ones.
    fn draw_sample(&self, known: &VolumeEntry) -> Vec<Granule> {
        let seed = {
            let superblock = self.superblock.current();
            let half = |at: usize| {
                superblock.uuid[at..at + 8]
                    .iter()
                    .fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
            };
            half(0) ^ half(8).rotate_left(32) ^ superblock.sequence ^ u64::from(known.id) << 48
        };
        let mut draw = Draw(seed);
        let map = self.map.borrow();
        let (numbers, share) = (map.numbers(), map.share(known.id));
        if numbers == 0 || share.blocks == 0 {
            return Vec::new();
        }
        // Each number once, in an arbitrary order.
        let mut step = 1 + draw.below(numbers);
        while greatest_divisor(step, numbers) != 1 {
            step = 1 + draw.below(numbers);
        }
        let first = u64::from(draw.below(numbers));
        let walk = (0..u64::from(numbers.min(MOST_LOOKS)))
            .map(|nth| ((first + nth * u64::from(step)) % u64::from(numbers)) as u32)
            .map(BlockId::new)
            .filter(|id| map.has(*id, LIVE) && map.volume(*id) == known.id);
        let has_clean = |id: &BlockId| self.clean_of(*id) != 0;
        let mut found: Vec<BlockId> = walk.filter(has_clean).take(MOST).collect();
        if found.is_empty() {
            // A small part of a large cache.
            let few = map.of_volume(known.id).take(MOST_LOOKS as usize);
            found = few.filter(has_clean).take(AT_ONCE).collect();
        }
        let rounds: Vec<u32> = found.iter().map(|_| draw.below(64)).collect();
        // One granule of each block, then a second one, and so on.
        (0..64)
            .flat_map(|nth| found.iter().zip(&rounds).map(move |id| (nth, id)))
            .filter_map(|(nth, (id, first))| self.clean_granule(*id, *first, nth))
            .take(MOST)
            .collect()
    }

    /// Returns the `nth` clean granule of a block, counted from `first`, if there is one.
    fn clean_granule(&self, id: BlockId, first: u32, nth: u32) -> Option<Granule> {
        let clean = self.clean_of(id);
        let count = clean.count_ones();
        let turn = (nth < count).then(|| (first + nth) % count)?;
        let number = (0..64)
            .filter(|bit| clean >> bit & 1 != 0)
            .nth(turn as usize)?;
        Some(Granule {
            id,
            block: self.map.borrow().state(id).block(),
            number,
        })
    }

    /// Returns the bytes of a granule in its volume.
    fn bytes_of(&self, granule: &Granule) -> Range<u64> {
        let Granule { block, number, .. } = granule;
        let len = self.geometry.granule_bytes(block.class);
        let start = self.geometry.backing_offset(*block, 0) + u64::from(*number) * len;
        start..start + len
    }

    /// Returns the granules of a block that claim to equal the backing device.
    fn clean_of(&self, id: BlockId) -> u64 {
        let entry = self.map.borrow().state(id);
        match entry.has(DYING) {
            true => 0,
            false if planted(Fault::SampleDirty) => entry.valid,
            false => entry.valid & !entry.dirty,
        }
    }

    /// Returns the clean granule that has this byte of a volume, if it is cached.
    fn clean_granule_at(&self, volume: u16, at: u64) -> Option<Granule> {
        let unit = self.geometry.unit_of(at);
        let id = self.map.borrow().find(BlockKey::new(volume, unit))?;
        let block = self.map.borrow().state(id).block();
        let within = at.checked_sub(self.geometry.backing_offset(block, 0))?;
        let number = u32::try_from(within / self.geometry.granule_bytes(block.class)).ok()?;
        let clean = number < 64 && self.clean_of(id) >> number & 1 != 0;
        clean.then_some(Granule { id, block, number })
    }

    async fn compare_all(
        self: &Rc<Self>,
        known: &VolumeEntry,
        backing: &Rc<dyn BlockDevice>,
        granules: &[Granule],
        tally: &Rc<Tally>,
    ) {
        let size_bytes = known.size_bytes.min(backing.info().size_bytes);
        let one = |granule: &Granule| {
            let (engine, backing, tally) = (Rc::clone(self), Rc::clone(backing), Rc::clone(tally));
            let (granule, volume) = (*granule, known.id);
            async move {
                let same =
                    (engine.compare_granule(volume, granule, size_bytes, backing.as_ref())).await;
                match same {
                    None => {}
                    Some(Ok(())) => tally.compared.set(tally.compared.get() + 1),
                    Some(Err(_)) if planted(Fault::ForgetDifference) => {}
                    Some(Err(at)) => tally.differs_at.set(Some(at)),
                }
            }
        };
        parallel::join(granules.iter().map(one).collect()).await;
    }

    /// Compares a granule, as far as it lies within `size_bytes` of the volume. An error is the
    /// first byte that differs. None if one of both cannot be read, the copy is known to be
    /// corrupt, or it has gone meanwhile.
    async fn compare_granule(
        &self,
        volume: u16,
        granule: Granule,
        size_bytes: u64,
        backing: &dyn BlockDevice,
    ) -> Option<Result<(), u64>> {
        let Granule { id, block, number } = granule;
        let (region, granules) = lock_of(self.geometry, volume, block);
        let _lock = self.locks.shared(region, granules).await;
        if !self.is_block(volume, id, block) || self.clean_of(id) >> number & 1 == 0 {
            return None;
        }
        let len = self.geometry.granule_bytes(block.class);
        let start = u32::try_from(u64::from(number) * len).expect("in a block");
        let at = self.geometry.backing_offset(block, start);
        let len = len.min(size_bytes.saturating_sub(at));
        let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
        let (ours, theirs) = (Buf::scratch(len), Buf::scratch(len));
        let reading = backing.read(at, theirs.clone());
        let read = self.slots.read(id, start, ours.clone()).await;
        if reading.await.is_err() || read.is_err() || !self.slots.is_known_sound(id, start, &ours) {
            return None;
        }
        Some(match first_difference(&ours, &theirs) {
            None => Ok(()),
            Some(byte) => Err(at + byte as u64),
        })
    }

    /// Drops everything of a volume that is not attached, except the granules that `dirty_of`
    /// names.
    pub(crate) async fn drop_clean(
        &self,
        volume: u16,
        dirty_of: impl Fn(BlockId) -> u64,
    ) -> Result<()> {
        let blocks: Vec<BlockId> = self.map.borrow().of_volume(volume).collect();
        let mut killed = Vec::new();
        for id in blocks {
            let entry = self.map.borrow().state(id);
            let dirty = dirty_of(id);
            if dirty == 0 {
                killed.push((id, entry.block()));
            } else {
                self.map.borrow_mut().set(id, dirty, dirty);
                self.committer.queue_record(id);
            }
        }
        self.kill(volume, killed).await
    }
}

/// Returns whether these bytes were written without this cache, as far as the ranges are known.
fn was_written(options: &VolumeOptions, bytes: Range<u64>) -> bool {
    let overlaps = |range: &Range<u64>| range.start < bytes.end && bytes.start < range.end;
    options.written_elsewhere.iter().flatten().any(overlaps)
}

fn first_difference(one: &Buf, other: &Buf) -> Option<usize> {
    if one.equals(other) {
        return None;
    }
    let (one, other) = (one.to_vec(), other.to_vec());
    one.iter().zip(&other).position(|(one, other)| one != other)
}
