//! Reads before the cache is open, and the zones that decide which reads may be served.

use std::cell::RefCell;
use std::time::Duration;

use forebay_block::{Completion, DeviceInfo, Error, Request};
use forebay_io::sim::{FaultPlan, OpClass};
use forebay_io::sync::Promise;
use forebay_metadata::superblock::{DirtyZones, Superblock};

use super::*;
use crate::failpoints::{Fault, plant};

const ZONE: u64 = 16 << 10;

fn devices(disks: &[SimDisk]) -> Devices {
    Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    }
}

async fn make_with_zones(disks: &[SimDisk]) {
    let options = FormatOptions {
        zone_shift: ZONE.ilog2() as u8,
        ..FormatOptions::new(4096, [5; 16])
    };
    format(&devices(disks), &options).await.expect("formats");
}

async fn superblock(disks: &[SimDisk]) -> Superblock {
    (Superblock::read(&disks[0]).await).expect("has a superblock")
}

/// The zones of the one volume that may be dirty.
async fn dirty_zones(disks: &[SimDisk]) -> Vec<u64> {
    let zones = superblock(disks).await.zones.expect("it is known");
    let numbers = 0..VOLUME_BYTES.div_ceil(ZONE);
    let dirty = |zone: &u64| zones.may_be_dirty(1, zone * ZONE..(zone + 1) * ZONE);
    numbers.filter(dirty).collect()
}

async fn opening_volume(disks: &[SimDisk]) -> Option<Rc<OpeningVolume>> {
    let known = superblock(disks).await;
    read_at_once(disks, &known, &VolumeOptions::new(Mode::WriteBack))
}

fn read_at_once(
    disks: &[SimDisk],
    known: &Superblock,
    options: &VolumeOptions,
) -> Option<Rc<OpeningVolume>> {
    let (devices, backing) = (devices(disks), Rc::new(disks[1].clone()));
    OpeningVolume::new(
        &devices,
        known,
        Durability::Flush,
        "v",
        backing,
        options,
        None,
    )
}

/// How a request ended, and the data of a read.
type Ended = (Result<(), ErrorKind>, Vec<u8>);

fn send(volume: &Rc<OpeningVolume>, request: Request) -> Promise<Ended> {
    let (over, volume) = (Promise::new(), Rc::clone(volume));
    let set = over.clone();
    rt::spawn(async move {
        let buf = request.buf.clone();
        let result = volume.start(request).await;
        let result = result.map_err(|error| error.kind());
        set.set((result, buf.map_or_else(Vec::new, |buf| buf.to_vec())));
    });
    over
}

fn read(volume: &Rc<OpeningVolume>, offset: u64) -> Promise<Ended> {
    send(volume, Request::read(offset, Buf::zeroed(4096)))
}

fn write(volume: &Rc<OpeningVolume>, offset: u64, byte: u8) -> Promise<Ended> {
    let data = Buf::copied(&[byte; 4096]);
    send(volume, Request::write(offset, data, false))
}

/// A cache with block 0 dirty; the backing device has other data there.
async fn leave_dirty(disks: &[SimDisk]) {
    make_with_zones(disks).await;
    for at in (0..VOLUME_BYTES - 4096).step_by(4096) {
        let data = Buf::copied(&[7; 4096]);
        disks[1].write(at, data).await.expect("writes");
    }
    disks[1].flush().await.expect("flushes");
    let (cache, _) = open(disks, Durability::Flush).await;
    let volume = attach(&cache, disks, Mode::WriteBack).await;
    let data = Buf::copied(&[9; 4096]);
    volume.write(0, data).await.expect("writes");
    volume.flush().await.expect("flushes");
    cache.close().await.expect("closes");
}

#[test]
fn reads_of_clean_zones_are_served_at_once_and_the_rest_waits() {
    let world = world(1, 2 << 20, 512);
    run(&world, async |disks| {
        leave_dirty(&disks).await;
        let volume = opening_volume(&disks).await.expect("nothing has changed");
        let clean = read(&volume, ZONE);
        let waiting = [
            read(&volume, 0),
            read(&volume, ZONE - 4096),
            write(&volume, 2 * ZONE, 5),
            send(&volume, Request::flush()),
            send(&volume, Request::discard(3 * ZONE, 4096)),
        ];
        let astray = send(&volume, Request::discard(VOLUME_BYTES, 512));
        rt::sleep(Duration::from_secs(1)).await;
        assert_eq!(clean.get().await, (Ok(()), vec![7; 4096]));
        assert!(astray.get().await.0.is_err(), "it is beyond the end");
        assert!(!waiting.iter().any(Promise::is_set));
        assert_eq!((volume.served(), volume.waiting()), (1, 5));

        let (cache, report) = open(&disks, Durability::Flush).await;
        assert_eq!(report.dirty_blocks, 1);
        let device = attach(&cache, &disks, Mode::WriteBack).await;
        let (before, after) = (volume.info(), device.info());
        assert_eq!(format!("{before:?}"), format!("{after:?}"));
        volume.hand_over(Ok(device));
        let [dirty, beside, written, flushed, discarded] = waiting;
        assert_eq!(dirty.get().await, (Ok(()), vec![9; 4096]));
        assert_eq!(beside.get().await, (Ok(()), vec![7; 4096]));
        for over in [written, flushed, discarded] {
            over.get().await.0.expect("is done");
        }
        let back = read(&volume, 2 * ZONE).get().await;
        assert_eq!(back, (Ok(()), vec![5; 4096]));
        assert_eq!((volume.served(), volume.waiting()), (1, 0));
    });
}

/// A backing device that holds its requests until they are released.
struct Held {
    device: SimDisk,
    held: RefCell<Vec<(Request, Completion)>>,
}

impl BlockDevice for Held {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        self.held.borrow_mut().push((request, done));
    }
}

#[test]
fn a_write_waits_for_a_read_during_the_open_of_the_same_blocks() {
    let waits_with = |fault: Option<Fault>| {
        let world = world(2, 2 << 20, 512);
        run(&world, async move |disks| {
            leave_dirty(&disks).await;
            let (cache, _) = open(&disks, Durability::Flush).await;
            let device = attach(&cache, &disks, Mode::WriteBack).await;
            let backing = Rc::new(Held {
                device: disks[1].clone(),
                held: RefCell::default(),
            });
            let known = superblock(&disks).await;
            let volume = OpeningVolume::new(
                &devices(&disks),
                &known,
                Durability::Flush,
                "v",
                Rc::clone(&backing) as Rc<dyn BlockDevice>,
                &VolumeOptions::new(Mode::WriteBack),
                None,
            )
            .expect("nothing has changed");
            let reading = read(&volume, 2 * ZONE);
            rt::sleep(Duration::from_millis(1)).await;
            volume.hand_over(Ok(device));
            plant(fault);
            let (same, other) = (write(&volume, 2 * ZONE, 5), write(&volume, 0, 6));
            rt::sleep(Duration::from_secs(1)).await;
            plant(None);
            assert!(other.is_set(), "it touches nothing that is being read");
            assert!(!reading.is_set());
            let waits = !same.is_set();
            for (request, done) in backing.held.take() {
                backing.device.submit(request, done);
            }
            let (read, found) = reading.get().await;
            read.expect("reads");
            // If the change does not wait, the result of the read depends on the cleaner.
            assert!(!waits || found == [7; 4096], "a later write was read");
            same.get().await.0.expect("writes");
            waits
        })
    };
    assert!(waits_with(None));
    assert!(
        !waits_with(Some(Fault::ChangeDuringOpeningRead)),
        "it is found missing"
    );
}

/// Clean data that an opening takes for dirty is overwritten without another record. The next read
/// during an opening must know that.
#[test]
fn blocks_presumed_dirty_at_opening_have_their_zone_bit() {
    let read_with = |fault: Option<Fault>| {
        let world = world(10, 2 << 20, 512);
        run(&world, async |disks| {
            let options = FormatOptions {
                zone_shift: ZONE.ilog2() as u8,
                dirty_tracking: DirtyTracking::None,
                ..FormatOptions::new(4096, [5; 16])
            };
            format(&devices(&disks), &options).await.expect("formats");
            let (cache, _) = open(&disks, Durability::Flush).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            let data = Buf::copied(&[3; 4096]);
            volume.write(0, data).await.expect("writes");
            cache.write_back(None).await.expect("writes back");
            volume.flush().await.expect("flushes");
            rt::sleep(Duration::from_secs(20)).await;
            assert_eq!(dirty_zones(&disks).await, [0; 0]);
        });
        world.crash_power(Keep::All);
        run(&world, async move |disks| {
            plant(fault);
            let options = CacheOptions::new([10; 16]);
            let opened = Cache::open(devices(&disks), options).await;
            plant(None);
            let (cache, report) = opened.expect("opens");
            assert_eq!(report.dirty_blocks, 1, "nothing says that it is clean");
            cache.set_cleaning(Cleaning::Nop);
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            let data = Buf::copied(&[9; 4096]);
            volume.write(0, data).await.expect("writes");
            volume.flush().await.expect("flushes");
        });
        world.crash_power(Keep::All);
        run(&world, async |disks| {
            let volume = opening_volume(&disks).await.expect("nothing has changed");
            let reading = read(&volume, 0);
            rt::sleep(Duration::from_secs(1)).await;
            match reading.is_set() {
                true => Some(reading.get().await.1[0]),
                false => None,
            }
        })
    };
    assert_eq!(read_with(None), None, "it waits for the cache");
    let older = read_with(Some(Fault::SkipFoundZones));
    assert_eq!(older, Some(3), "it is found missing");
}

#[test]
fn waiting_requests_get_the_error_of_the_open() {
    let world = world(3, 2 << 20, 512);
    run(&world, async |disks| {
        leave_dirty(&disks).await;
        let volume = opening_volume(&disks).await.expect("nothing has changed");
        let waits = write(&volume, 0, 1);
        rt::yield_now().await;
        volume.hand_over(Err(Error::new(ErrorKind::Lost, "the journal is gone")));
        for over in [waits, read(&volume, ZONE)] {
            assert_eq!(over.get().await.0, Err(ErrorKind::Lost));
        }
    });
}

#[test]
fn requests_that_need_the_map_wait_for_the_open() {
    let world = world(4, 2 << 20, 512);
    run(&world, async |disks| {
        leave_dirty(&disks).await;
        let known = superblock(&disks).await;
        let plain = VolumeOptions::new(Mode::WriteBack);
        let is_at_once = |known: &Superblock, options: &VolumeOptions| {
            read_at_once(&disks, known, options).is_some()
        };
        assert!(is_at_once(&known, &plain));
        let unknown = Superblock {
            reached: 0,
            zones: None,
            ..known.clone()
        };
        assert!(!is_at_once(&unknown, &plain), "an earlier version was here");
        let newer = VolumeOptions {
            epoch: known.volumes[0].epoch + 1,
            ..plain.clone()
        };
        assert!(!is_at_once(&known, &newer), "it was written elsewhere");
        let adopted = VolumeOptions {
            adopt: true,
            ..plain.clone()
        };
        assert!(!is_at_once(&known, &adopted));
        let mut other = known.clone();
        other.volumes[0].size_bytes -= 512;
        assert!(!is_at_once(&other, &plain), "it has grown");
        other.volumes[0] = known.volumes[0].clone();
        other.volumes[0].identity = forebay_block::Identity::of(77);
        assert!(!is_at_once(&other, &plain), "it is another device");
        other.volumes[0] = known.volumes[0].clone();
        other.volumes[0].flush_failed = true;
        assert!(
            !is_at_once(&other, &plain),
            "possible losses are reported first"
        );
        other.volumes.clear();
        assert!(!is_at_once(&other, &plain), "it is new");
        let (devices, backing) = (devices(&disks), Rc::new(disks[1].clone()));
        let opened = OpeningVolume::new(
            &devices,
            &known,
            Durability::Sync,
            "v",
            backing,
            &plain,
            None,
        );
        assert!(opened.is_none(), "what was left there is flushed first");
    });
}

#[test]
fn a_zone_is_dirty_on_media_while_something_in_it_is() {
    let world = world(5, 2 << 20, 512);
    run(&world, async |disks| {
        make_with_zones(&disks).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        cache.set_cleaning(Cleaning::Nop);
        assert_eq!(dirty_zones(&disks).await, [0; 0]);
        let data = || Buf::copied(&[3; 8192]);
        volume.write(ZONE - 4096, data()).await.expect("writes");
        volume.write(5 * ZONE, data()).await.expect("writes");
        assert_eq!(dirty_zones(&disks).await, [0, 1, 5]);
        rt::sleep(Duration::from_secs(30)).await;
        assert_eq!(dirty_zones(&disks).await, [0, 1, 5]);
        // Two blocks written in place need no more records.
        let written = disks[0].counters().writes;
        volume.write(5 * ZONE, data()).await.expect("writes");
        assert_eq!(disks[0].counters().writes, written + 2);
        cache.write_back(None).await.expect("writes back");
        assert_eq!(dirty_zones(&disks).await, [0, 1, 5], "not at once");
        rt::sleep(Duration::from_secs(10)).await;
        assert_eq!(dirty_zones(&disks).await, [0; 0]);
        volume.write(5 * ZONE, data()).await.expect("writes");
        assert_eq!(dirty_zones(&disks).await, [5]);
    });
}

/// Leaves a cache that issues no I/O on its own, with one block. Its value 3 is durable and dirty.
/// Its value 4 is on the backing device, and no flush of the cache covered it.
async fn leave_overwritten(disks: &[SimDisk]) -> (Cache, Rc<dyn BlockDevice>) {
    let options = CacheOptions {
        journal: Some(Buf::zeroed(1 << 16)),
        commit_interval: Duration::from_secs(3600),
        ..CacheOptions::new([9; 16])
    };
    let (cache, _) = Cache::open(devices(disks), options).await.expect("opens");
    let volume = attach(&cache, disks, Mode::WriteBack).await;
    cache.set_cleaning(Cleaning::Nop);
    let data = |byte| Buf::copied(&[byte; 4096]);
    volume.write(0, data(3)).await.expect("writes");
    volume.flush().await.expect("flushes");
    volume.write(0, data(4)).await.expect("writes");
    cache.set_cleaning(Cleaning::Acp);
    while cache.stats().dirty_blocks > 0 {
        rt::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(disks[1].peek(0, 1), [4]);
    (cache, volume)
}

/// After power loss, a slot that was not flushed may be older than the backing device, and be
/// called dirty.
#[test]
fn a_zone_bit_stays_until_written_back_slots_are_flushed_in_the_cache() {
    let stays_with = |fault: Option<Fault>| {
        run(&world(8, 2 << 20, 512), async move |disks| {
            make_with_zones(&disks).await;
            let (_cache, volume) = leave_overwritten(&disks).await;
            plant(fault);
            rt::sleep(Duration::from_secs(20)).await;
            plant(None);
            let stays = dirty_zones(&disks).await == [0];
            volume.flush().await.expect("flushes");
            rt::sleep(Duration::from_secs(20)).await;
            assert_eq!(dirty_zones(&disks).await, [0; 0]);
            stays
        })
    };
    assert!(stays_with(None));
    assert!(
        !stays_with(Some(Fault::ClearUnflushedZone)),
        "it is found missing"
    );
}

/// The cache may have a copy.
#[test]
fn a_read_that_the_backing_device_fails_is_the_caches() {
    run(&world(9, 2 << 20, 512), async |disks| {
        leave_dirty(&disks).await;
        let volume = opening_volume(&disks).await.expect("nothing has changed");
        disks[1].set_faults(FaultPlan {
            fail_nth: Some((OpClass::Read, 1)),
            ..FaultPlan::default()
        });
        let reading = read(&volume, ZONE);
        rt::sleep(Duration::from_secs(1)).await;
        assert!(!reading.is_set(), "it waits for the cache");
        let (cache, _) = open(&disks, Durability::Flush).await;
        volume.hand_over(Ok(attach(&cache, &disks, Mode::WriteBack).await));
        assert_eq!(reading.get().await, (Ok(()), vec![7; 4096]));
    });
}

#[test]
fn a_cache_of_an_earlier_version_gets_its_zones_when_it_is_opened() {
    let world = world(6, 2 << 20, 512);
    run(&world, async |disks| {
        leave_dirty(&disks).await;
        let mut former = superblock(&disks).await;
        former.zones = None;
        for _ in 0..2 {
            former.sequence += 1;
            let written = former.write(&disks[0], former.role).await;
            written.expect("writes");
        }
        assert_eq!(superblock(&disks).await.zones, None);
        let (_cache, report) = open(&disks, Durability::Flush).await;
        assert_eq!(report.dirty_blocks, 1);
        let found = superblock(&disks).await.zones.expect("it is known now");
        let mut expected = DirtyZones::new(found.shift());
        expected.set(DirtyZones::bit(found.shift(), 1, 0), true);
        assert_eq!(found, expected);
    });
}

/// A write that arrives while the bit of its zone is being cleared sets the bit once more.
#[test]
fn a_bit_that_is_being_cleared_is_not_believed() {
    let lacks_with = |fault: Option<Fault>| {
        let world = world(7, 2 << 20, 512);
        run(&world, async move |disks| {
            make_with_zones(&disks).await;
            let (cache, _) = open(&disks, Durability::Flush).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            let data = || Buf::copied(&[3; 4096]);
            volume.write(0, data()).await.expect("writes");
            cache.write_back(None).await.expect("writes back");
            volume.flush().await.expect("flushes");
            plant(fault);
            let written = disks[0].counters().writes;
            // Until the bit is being cleared, which takes two writes.
            while disks[0].counters().writes == written {
                rt::sleep(Duration::from_micros(10)).await;
            }
            volume.write(8192, data()).await.expect("writes");
            rt::sleep(Duration::from_millis(100)).await;
            plant(None);
            !dirty_zones(&disks).await.contains(&0)
        })
    };
    assert!(!lacks_with(None));
    assert!(
        lacks_with(Some(Fault::ClearZoneBehind)),
        "it is found missing"
    );
}
