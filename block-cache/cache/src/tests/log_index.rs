//! Reads of possibly dirty data while the cache is being opened. Answers from the index equal later
//! answers from the map.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use forebay_block::{Completion, DeviceInfo, Op, Request};
use forebay_io::sync::Promise;
use forebay_metadata::superblock::Superblock;

use super::*;
use crate::failpoints::{Fault, plant};

const ZONE: u64 = 16 << 10;
const PIECE: u64 = 4096;

/// A life whose end another one finds.
#[derive(Clone, Copy, Debug)]
struct Life {
    seed: u64,
    sizes: &'static [u64],
    dirty_tracking: DirtyTracking,
    checksums: bool,
    /// Whether it ends with the power, or the process alone.
    power: bool,
    cache_bytes: u64,
}

fn options(journal: &Buf, boot: u8) -> CacheOptions {
    CacheOptions {
        journal: Some(journal.clone()),
        ..CacheOptions::new([boot; 16])
    }
}

fn format_options(sizes: &[u64]) -> FormatOptions {
    FormatOptions {
        zone_shift: ZONE.ilog2() as u8,
        region_shift: 2,
        ..FormatOptions::sizes(sizes, [5; 16])
    }
}

/// The volume before the cache is open, with `map`.
async fn opening_volume(
    devices: &Devices,
    backing: &SimDisk,
    durability: Durability,
    map: &OpeningMap,
) -> Rc<OpeningVolume> {
    let known = (Superblock::read(devices.data.as_ref()).await).expect("has a superblock");
    let (backing, options) = (
        Rc::new(backing.clone()),
        VolumeOptions::new(Mode::WriteBack),
    );
    OpeningVolume::new(
        devices,
        &known,
        durability,
        "v",
        backing,
        &options,
        Some(map),
    )
    .expect("nothing has changed")
}

/// Result of a read.
type Read = Promise<Result<Vec<u8>, ErrorKind>>;

fn read(volume: &Rc<OpeningVolume>, offset: u64, len: u64) -> Read {
    let (over, volume) = (Promise::new(), Rc::clone(volume));
    let set = over.clone();
    rt::spawn(async move {
        let buf = Buf::zeroed(len as usize);
        let read = volume.read(offset, buf.clone()).await;
        set.set(read.map(|()| buf.to_vec()).map_err(|error| error.kind()));
    });
    over
}

impl Life {
    /// Writes in modes that leave all kinds of marks. Returns the volume's final content.
    async fn live(self, disks: &[SimDisk], journal: &Buf) -> Vec<u8> {
        let devices = devices(disks);
        let formatted = FormatOptions {
            dirty_tracking: self.dirty_tracking,
            checksums: self.checksums,
            ..format_options(self.sizes)
        };
        format(&devices, &formatted).await.expect("formats");
        let (cache, _) = (Cache::open(devices, options(journal, 9)).await).expect("opens");
        let volume = attach(&cache, disks, Mode::WriteBack).await;
        let mut model = vec![0; VOLUME_BYTES as usize];
        let rng = Rng::labelled(self.seed, 78);
        for _ in 0..6 {
            let mode = Mode::ALL[rng.index(Mode::ALL.len())];
            for mode in [Mode::WriteBack, mode] {
                cache.set_mode("v", mode).expect("attached");
                exercise(&volume, &mut model, &rng, 30).await;
            }
            match rng.below(4) {
                0 => cache.write_back(None).await.expect("writes back"),
                1 => rt::sleep(Duration::from_secs(rng.below(8))).await,
                2 => volume.flush().await.expect("flushes"),
                _ => {}
            }
        }
        model
    }

    /// Reads all of the volume in pieces while the cache is being opened, and once more when it is
    /// open. Returns how many reads the index answered, and how many differ.
    async fn read_while_opening(self, disks: &[SimDisk], journal: &Buf) -> (u64, usize, Vec<u8>) {
        let (devices, map) = (devices(disks), OpeningMap::default());
        let volume = opening_volume(&devices, &disks[1], Durability::Flush, &map).await;
        let rng = Rng::labelled(self.seed, 79);
        let mut reads = Vec::new();
        let mut at = 0;
        while at < VOLUME_BYTES {
            let len = (512 * (1 + rng.below(80))).min(VOLUME_BYTES - at);
            reads.push((at, read(&volume, at, len)));
            at += len;
        }
        let options = CacheOptions {
            opening_map: Some(map.clone()),
            ..options(journal, if self.power { 10 } else { 9 })
        };
        let (cache, _) = Cache::open(devices, options).await.expect("opens");
        volume.hand_over(Ok(attach(&cache, disks, Mode::WriteBack).await));
        let mut all = Vec::new();
        let mut differ = 0;
        for (offset, read) in reads {
            let read = read.get().await.expect("reads");
            let late = Buf::zeroed(read.len());
            volume.read(offset, late.clone()).await.expect("reads");
            differ += usize::from(read != late.to_vec());
            all.extend(late.to_vec());
        }
        (map.answered(), differ, all)
    }

    /// As [`Life::read_while_opening`], after the life, with a fault in what reads.
    fn compare(self, fault: Option<Fault>) -> (u64, usize) {
        let world = world(self.seed, self.cache_bytes, 512);
        let journal = Buf::zeroed(1 << 16);
        let copied = journal.clone();
        let model = run(&world, async move |disks| self.live(&disks, &copied).await);
        match self.power {
            true => world.crash_power(Keep::Random(self.seed)),
            false => world.crash_process(self.seed),
        }
        let found = run(&world, async move |disks| {
            plant(fault);
            let found = self.read_while_opening(&disks, &journal).await;
            plant(None);
            found
        });
        let (answered, differ, all) = found;
        assert!(
            self.power || all == model,
            "{self:?}: lost what was acknowledged"
        );
        (answered, differ)
    }
}

fn devices(disks: &[SimDisk]) -> Devices {
    Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    }
}

/// Runs of each kind. Returns how many reads were answered before the opening ended, and how many
/// of these differed from later answers.
fn compare_all(seeds: std::ops::Range<u64>, fault: Option<Fault>) -> (u64, usize) {
    let mut sum = (0, 0);
    for seed in seeds {
        for dirty_tracking in [
            DirtyTracking::Exact,
            DirtyTracking::Abt,
            DirtyTracking::None,
        ] {
            let sizes: [&[u64]; 3] = [&[4096], &[16 << 10], &[4096, 8192, 16 << 10]];
            let life = Life {
                seed,
                sizes: sizes[seed as usize % 3],
                dirty_tracking,
                checksums: seed % 2 == 1,
                power: seed / 3 % 2 == 0,
                cache_bytes: [600 << 10, 3 << 20][seed as usize / 6 % 2],
            };
            let (answered, differ) = life.compare(fault);
            assert!(
                fault.is_some() || differ == 0,
                "{life:?}: {differ} reads differ"
            );
            sum = (sum.0 + answered, sum.1 + differ);
        }
    }
    sum
}

#[test]
fn answers_before_the_map_is_complete_equal_those_of_the_map() {
    let (answered, _) = compare_all(0..24, None);
    assert!(answered > 1000, "only {answered} reads were answered early");
}

#[test]
fn a_sketch_that_does_not_mind_all_is_found() {
    for fault in [Fault::IndexWithoutMarks, Fault::IndexWithoutJournal] {
        let (_, differ) = compare_all(0..24, Some(fault));
        assert!(differ > 0, "{fault:?} is not found");
    }
}

/// A cache with block 0 dirty, closed cleanly, over a backing device that has something else.
async fn leave_dirty(disks: &[SimDisk], journal: &Buf, checksums: bool) {
    let devices = devices(disks);
    let formatted = FormatOptions {
        checksums,
        ..format_options(&[4096])
    };
    format(&devices, &formatted).await.expect("formats");
    for at in (0..VOLUME_BYTES - PIECE).step_by(PIECE as usize) {
        let data = Buf::copied(&[7; PIECE as usize]);
        disks[1].write(at, data).await.expect("writes");
    }
    let (cache, _) = (Cache::open(devices, options(journal, 9)).await).expect("opens");
    let volume = attach(&cache, disks, Mode::WriteBack).await;
    let data = Buf::copied(&[9; PIECE as usize]);
    volume.write(0, data).await.expect("writes");
    cache.close().await.expect("closes");
}

#[test]
fn a_dirty_block_is_read_before_the_cache_is_open_unless_it_must_wait() {
    let opened_behind = |durability: Durability| {
        // With `sync`, data that a backing device may still lose is not read before it is flushed.
        let mut world = World::new(1);
        world.add_disk(&config("cache", 2 << 20, 512));
        world.add_disk(&DiskConfig {
            volatile_cache: false,
            ..config("backing", VOLUME_BYTES, 512)
        });
        run(&world, async move |disks| {
            let journal = Buf::zeroed(1 << 16);
            leave_dirty(&disks, &journal, false).await;
            let (devices, map) = (devices(&disks), OpeningMap::default());
            let volume = opening_volume(&devices, &disks[1], durability, &map).await;
            let dirty = read(&volume, 0, PIECE);
            let mixed = read(&volume, 0, ZONE);
            rt::sleep(Duration::from_secs(1)).await;
            assert_eq!(
                (volume.waiting(), map.answered()),
                (2, 0),
                "nobody reads the log"
            );
            let options = CacheOptions {
                durability,
                opening_map: Some(map.clone()),
                ..options(&journal, 9)
            };
            let opened = Cache::open(devices, options).await;
            let (at_once, (cache, _)) = (dirty.is_set() && mixed.is_set(), opened.expect("opens"));
            assert_eq!(volume.waiting(), if at_once { 0 } else { 2 });
            assert_eq!(map.answered(), if at_once { 2 } else { 0 });
            volume.hand_over(Ok(attach(&cache, &disks, Mode::WriteBack).await));
            assert!(dirty.get().await == Ok(vec![9; PIECE as usize]));
            let mut expected = vec![7; ZONE as usize];
            expected[..PIECE as usize].fill(9);
            assert_eq!(mixed.get().await, Ok(expected));
            at_once
        })
    };
    assert!(opened_behind(Durability::Flush));
    assert!(!opened_behind(Durability::Sync), "it may not be durable");
}

/// A device that keeps the first read of data until it is let go.
struct Held {
    device: SimDisk,
    from: u64,
    is_over: Cell<bool>,
    held: RefCell<Option<(Request, Completion)>>,
}

impl BlockDevice for Held {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        let is_data = request.op == Op::Read && request.offset >= self.from;
        if is_data && !self.is_over.replace(true) {
            *self.held.borrow_mut() = Some((request, done));
        } else {
            self.device.submit(request, done);
        }
    }
}

/// The block's slot is reused for another block before the device answers a read during the
/// opening.
#[test]
fn an_answer_that_comes_behind_the_opening_does_not_count() {
    let read_with = |fault: Option<Fault>| {
        let world = world(2, 600 << 10, 512);
        run(&world, async move |disks| {
            let journal = Buf::zeroed(1 << 16);
            leave_dirty(&disks, &journal, false).await;
            let known = (Superblock::read(&disks[0]).await).expect("has a superblock");
            let held = Rc::new(Held {
                device: disks[0].clone(),
                from: known.data_offset,
                is_over: Cell::new(false),
                held: RefCell::default(),
            });
            let (devices, map) = (
                Devices {
                    data: Rc::clone(&held) as Rc<dyn BlockDevice>,
                    metadata: None,
                },
                OpeningMap::default(),
            );
            let volume = opening_volume(&devices, &disks[1], Durability::Flush, &map).await;
            let dirty = read(&volume, 0, PIECE);
            let options = CacheOptions {
                opening_map: Some(map.clone()),
                ..options(&journal, 9)
            };
            let (cache, _) = Cache::open(devices, options).await.expect("opens");
            assert!(held.held.borrow().is_some(), "the slot is being read");
            volume.hand_over(Ok(attach(&cache, &disks, Mode::WriteBack).await));
            cache.write_back(None).await.expect("writes back");
            // Twice as much as the cache holds, so earlier blocks are evicted.
            for _ in 0..2 {
                for at in (PIECE..VOLUME_BYTES - PIECE).step_by(PIECE as usize) {
                    let read = read(&volume, at, PIECE).get().await;
                    assert!(read == Ok(vec![7; PIECE as usize]), "at {at}");
                }
            }
            plant(fault);
            let (request, done) = held.held.take().expect("it was there");
            held.device.submit(request, done);
            let found = dirty.get().await;
            plant(None);
            found.expect("reads")[0]
        })
    };
    assert_eq!(read_with(None), 9);
    assert_eq!(read_with(Some(Fault::AnswerLate)), 7, "it is found missing");
}

#[test]
fn corrupt_entries_are_not_answered_before_the_map_is_complete() {
    let read_with = |fault: Option<Fault>| {
        let world = world(3, 2 << 20, 512);
        run(&world, async move |disks| {
            let journal = Buf::zeroed(1 << 16);
            leave_dirty(&disks, &journal, true).await;
            let (devices, map) = (devices(&disks), OpeningMap::default());
            let mut places = (0..disks[0].info().size_bytes).step_by(PIECE as usize);
            let place = places.find(|at| disks[0].peek(*at, 4096) == [9; 4096]);
            let volume = opening_volume(&devices, &disks[1], Durability::Flush, &map).await;
            disks[0].rot(place.expect("it is cached"), 512, 1);
            let (dirty, clean) = (read(&volume, 0, PIECE), read(&volume, PIECE, PIECE));
            let options = CacheOptions {
                opening_map: Some(map.clone()),
                ..options(&journal, 9)
            };
            plant(fault);
            let (cache, _) = Cache::open(devices, options).await.expect("opens");
            let answered = map.answered();
            plant(None);
            volume.hand_over(Ok(attach(&cache, &disks, Mode::WriteBack).await));
            assert_eq!(clean.get().await, Ok(vec![7; PIECE as usize]));
            (answered, dirty.get().await.err())
        })
    };
    assert_eq!(read_with(None), (1, Some(ErrorKind::Corrupt)));
    let unverified = read_with(Some(Fault::SkipVerify));
    assert_eq!(unverified, (2, None), "it is found missing");
}
