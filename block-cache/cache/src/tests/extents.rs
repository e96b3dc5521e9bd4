//! Allocation of a volume during writes, discards and write-backs.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use forebay_block::{Allocation, Completion, DeviceInfo, Extents, ExtentsFuture, Request};
use forebay_io::sim::{FaultPlan, Trouble};

use super::*;
use crate::failpoints::{Fault, plant};

const BLOCK: u64 = 512;
const WRITERS: u64 = 6;

/// A backing device that answers with its blocks of zeroes, after a time.
struct Sparse {
    device: SimDisk,
    rng: Rng,
}

impl Sparse {
    fn over(disk: &SimDisk, seed: u64) -> Rc<Self> {
        Rc::new(Self {
            device: disk.clone(),
            rng: Rng::labelled(seed, 1),
        })
    }

    fn present(&self, range: Range<u64>) -> Extents {
        let mut found = Extents::default();
        for at in range.step_by(BLOCK as usize) {
            let block = self.device.peek(at, BLOCK as usize);
            let allocation = match block.iter().all(|&byte| byte == 0) {
                true => Allocation::Hole,
                false => Allocation::Data,
            };
            found.push(at..at + BLOCK, allocation);
        }
        found
    }

    async fn pause(&self) {
        rt::sleep(Duration::from_micros(self.rng.below(2000))).await;
    }
}

impl BlockDevice for Sparse {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        self.device.submit(request, done);
    }

    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        Box::pin(async move {
            self.pause().await;
            let found = self.present(range);
            self.pause().await;
            Ok(found)
        })
    }
}

/// Content of each block, as clients know it.
struct Model {
    /// Whether the last acknowledged change left zeroes.
    is_zero: RefCell<Vec<bool>>,
    /// Number of changes to zeroes in flight.
    zeroing: RefCell<Vec<u32>>,
    /// Blocks that a read could find zeroed at some moment of the query in progress.
    possible: RefCell<Vec<bool>>,
    running: Cell<u64>,
}

impl Model {
    fn blocks(bytes: &Range<u64>) -> Range<usize> {
        let number = |at: u64| usize::try_from(at / BLOCK).expect("small");
        number(bytes.start)..number(bytes.end)
    }

    fn begin_query(&self) {
        let both = |(zero, zeroing): (&bool, &u32)| *zero || *zeroing > 0;
        let (is_zero, zeroing) = (self.is_zero.borrow(), self.zeroing.borrow());
        let possible = is_zero.iter().zip(zeroing.iter()).map(both).collect();
        self.possible.replace(possible);
    }

    /// Returns the number of blocks that were not zero at any moment of the query.
    fn wrong(&self, found: &Extents) -> usize {
        let possible = self.possible.borrow();
        let zeroes =
            |extent: &&forebay_block::AllocationExtent| extent.allocation != Allocation::Data;
        let blocks = found.iter().filter(zeroes);
        let blocks = blocks.flat_map(|extent| Self::blocks(&extent.bytes));
        blocks.filter(|block| !possible[*block]).count()
    }
}

/// Changes a part of the volume that no other task changes.
async fn change(volume: Rc<dyn BlockDevice>, model: Rc<Model>, rng: Rng, part: Range<u64>) {
    let blocks = (part.end - part.start) / BLOCK;
    for _ in 0..60 {
        let first = rng.below(blocks);
        let len = (1 + rng.below([1, 8, 64][rng.index(3)])).min(blocks - first);
        let start = part.start + first * BLOCK;
        let bytes = start..start + len * BLOCK;
        let numbers = Model::blocks(&bytes);
        let len = bytes.end - bytes.start;
        let kind = rng.below(8);
        if kind < 3 {
            let data = Buf::copied(&vec![1; usize::try_from(len).expect("small")]);
            volume.write(start, data).await.expect("writes");
            model.is_zero.borrow_mut()[numbers].fill(false);
        } else if kind < 6 {
            for number in numbers.clone() {
                model.zeroing.borrow_mut()[number] += 1;
            }
            model.possible.borrow_mut()[numbers.clone()].fill(true);
            match kind {
                3 => volume.write_zeroes(start, len).await.expect("zeroes"),
                4 => volume.discard(start, len).await.expect("discards"),
                _ => {
                    let zeroes = Buf::zeroed(usize::try_from(len).expect("small"));
                    volume.write(start, zeroes).await.expect("writes");
                }
            }
            for number in numbers.clone() {
                model.zeroing.borrow_mut()[number] -= 1;
            }
            model.is_zero.borrow_mut()[numbers].fill(true);
        } else if kind == 6 {
            let buf = Buf::zeroed(usize::try_from(len).expect("small"));
            volume.read(start, buf).await.expect("reads");
        } else {
            volume.flush().await.expect("flushes");
        }
    }
    model.running.set(model.running.get() - 1);
}

/// Runs writers and queries at a time. Returns the numbers of wrong blocks and of holes.
fn life(seed: u64, mode: Mode, fault: Option<Fault>) -> (usize, usize) {
    run(&world(seed, 600 << 10, 512), async move |disks| {
        make_sizes(&disks, &[4096, 32 << 10]).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let backing = Sparse::over(&disks[1], seed);
        let options = VolumeOptions::new(mode);
        let volume = cache.attach("v", Rc::clone(&backing) as Rc<dyn BlockDevice>, options);
        let volume = volume.await.expect("attaches");
        plant(fault);
        let blocks = usize::try_from(VOLUME_BYTES / BLOCK).expect("small");
        let model = Rc::new(Model {
            is_zero: RefCell::new(vec![true; blocks]),
            zeroing: RefCell::new(vec![0; blocks]),
            possible: RefCell::new(vec![true; blocks]),
            running: Cell::new(WRITERS),
        });
        let rng = Rng::labelled(seed, 2);
        let part = VOLUME_BYTES / BLOCK / WRITERS * BLOCK;
        for writer in 0..WRITERS {
            let own = Rng::labelled(seed, 3 + writer);
            let part = writer * part..(writer + 1) * part;
            let (volume, model) = (Rc::clone(&volume), Rc::clone(&model));
            rt::spawn(change(volume, model, own, part));
        }
        let (mut wrong, mut holes) = (0, 0);
        while model.running.get() > 0 {
            let first = rng.below(VOLUME_BYTES / BLOCK);
            let range = first * BLOCK..match rng.chance(1, 2) {
                true => VOLUME_BYTES,
                false => (first + 1) * BLOCK,
            };
            model.begin_query();
            let found = volume.extents(range.clone()).await.expect("an answer");
            let end = found.end().expect("an extent");
            assert!(end > range.start && end <= range.end);
            wrong += model.wrong(&found);
            holes += usize::from(found != Extents::data(range.start..end));
        }
        // At rest the answer is that of the backing device.
        cache.write_back(None).await.expect("written back");
        volume.flush().await.expect("flushes");
        let found = volume.extents(0..VOLUME_BYTES).await.expect("an answer");
        let end = found.end().expect("an extent");
        assert_eq!(found, backing.present(0..end).with_data(&[]));
        plant(None);
        cache.close().await.expect("closes");
        (wrong, holes)
    })
}

#[test]
fn no_hole_has_data_beside_writes_of_any_mode() {
    let mut holes = 0;
    for (number, mode) in Mode::ALL.into_iter().enumerate() {
        for seed in 0..12 {
            let found = life(1000 * number as u64 + seed, mode, None);
            assert_eq!(found.0, 0, "{mode:?}, seed {seed}");
            holes += found.1;
        }
    }
    assert!(holes > 500, "the queries find holes: {holes}");
}

#[test]
fn a_merge_without_dirty_data_is_found_missing() {
    let wrong: usize = (0..4)
        .map(|seed| life(seed, Mode::WriteBack, Some(Fault::HoleOverDirty)).0)
        .sum();
    assert!(wrong > 0);
}

/// Returns whether a clean copy is called a hole after the backing device has lost its data.
fn copy_is_hole(fault: Option<Fault>) -> bool {
    run(&world(3, 2 << 20, 512), async move |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let backing = Sparse::over(&disks[1], 3);
        let options = VolumeOptions::new(Mode::WriteThrough);
        let device = backing as Rc<dyn BlockDevice>;
        let volume = cache.attach("v", device, options).await.expect("attaches");
        volume.flush().await.expect("flushes");
        let data = Buf::copied(&[3; 4096]);
        volume.write(8192, data).await.expect("writes");
        // A server that restarts may forget what no flush has covered.
        disks[1].write_zeroes(8192, 4096).await.expect("forgets");
        let read = Buf::zeroed(4096);
        volume.read(8192, read.clone()).await.expect("reads");
        assert_eq!(read.to_vec(), [3; 4096], "the copy is served");
        plant(fault);
        let found = volume.extents(0..16384).await.expect("an answer");
        plant(None);
        cache.close().await.expect("closes");
        let mut expected = Extents::default();
        expected.push(0..8192, Allocation::Hole);
        expected.push(8192..12288, Allocation::Data);
        expected.push(12288..16384, Allocation::Hole);
        found != expected
    })
}

#[test]
fn a_copy_of_data_that_the_backing_device_may_forget_is_data() {
    assert!(!copy_is_hole(None));
    assert!(copy_is_hole(Some(Fault::HoleOverCopy)));
}

#[test]
fn everything_is_data_once_the_cache_has_failed() {
    run(&world(5, 4 << 20, 512), async move |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let backing = Sparse::over(&disks[1], 5);
        let options = VolumeOptions::new(Mode::WriteBack);
        let device = backing as Rc<dyn BlockDevice>;
        let volume = cache.attach("v", device, options).await.expect("attaches");
        let data = Buf::copied(&[3; 4096]);
        volume.write(0, data).await.expect("writes");
        let all = 0..VOLUME_BYTES;
        let found = volume.extents(all.clone()).await.expect("an answer");
        assert_eq!(found.iter().count(), 2, "dirty data, and a hole");
        disks[0].set_faults(FaultPlan {
            from_nth: Some((1, Trouble::Vanishes)),
            ..FaultPlan::default()
        });
        let failed = volume.flush().await;
        failed.expect_err("the cache has failed");
        let found = volume.extents(all.clone()).await.expect("an answer");
        assert_eq!(found, Extents::data(all));
        drop(cache);
    });
}
