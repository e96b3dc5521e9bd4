//! A cache whose metadata lies on a device of its own: states of the two that do not belong
//! together.

use forebay_metadata::superblock::{COPY_BYTES, COPY_STRIDE_BYTES, Role};

use super::*;

/// Data and metadata device.
#[derive(Clone)]
struct Pair {
    data: TestFile,
    metadata: TestFile,
}

impl Pair {
    async fn formatted() -> Self {
        let pair = Self {
            data: TestFile::new(1, 1 << 20),
            metadata: TestFile::new(2, 1 << 20),
        };
        let options = FormatOptions::sizes(&[4096], UUID);
        format(&pair.devices(), &options).await.expect("formats");
        pair
    }

    fn devices(&self) -> Devices {
        Devices {
            data: self.data.device(),
            metadata: Some(self.metadata.device()),
        }
    }

    /// State that could be restored later.
    fn state(&self) -> Self {
        Self {
            data: self.data.copy(1),
            metadata: self.metadata.copy(2),
        }
    }

    /// The same devices on which the n-th write and all behind it do not end.
    fn limited(&self, nth: u64) -> (Devices, Rc<Cell<u64>>) {
        let left = Rc::new(Cell::new(nth));
        let limit = |file: &TestFile| -> Rc<dyn BlockDevice> {
            Rc::new(Both(file.clone(), Rc::clone(&left), RefCell::default()))
        };
        let devices = Devices {
            data: limit(&self.data),
            metadata: Some(limit(&self.metadata)),
        };
        (devices, left)
    }

    async fn superblocks(&self) -> [Superblock; 2] {
        let data = Superblock::read(&self.data).await.expect("sound");
        let metadata = Superblock::read(&self.metadata).await.expect("sound");
        [data, metadata]
    }
}

/// As [`Limited`], with a limit for both devices.
struct Both(TestFile, Rc<Cell<u64>>, RefCell<Vec<Completion>>);

impl BlockDevice for Both {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        if matches!(request.op, Op::Write { .. }) {
            if self.1.get() == 0 {
                return self.2.borrow_mut().push(done);
            }
            self.1.set(self.1.get() - 1);
        }
        self.0.submit(request, done);
    }
}

async fn open_on(devices: Devices, journal: &Buf) -> Result<Cache> {
    let options = CacheOptions {
        journal: Some(journal.clone()),
        cleaning: Cleaning::Nop,
        ..CacheOptions::new(BOOT)
    };
    Ok(Cache::open(devices, options).await?.0)
}

/// Writes `value` to the blocks that [`values`] reads.
async fn write(cache: &Cache, backing: &TestFile, value: u8) {
    let options = VolumeOptions::new(Mode::WriteBack);
    let volume = cache.attach("v", backing.device(), options).await;
    let volume = volume.expect("attaches");
    for block in 0..8 {
        let data = Buf::copied(&[value; 4096]);
        volume.write(block * 8192, data).await.expect("writes");
    }
}

/// States of a cache in three lives: as formatted, and of each life one in service and one behind
/// its clean end.
async fn states(backing: &TestFile) -> Vec<Pair> {
    let pair = Pair::formatted().await;
    let mut states = vec![pair.state()];
    for value in 1..4 {
        let journal = Buf::zeroed(1 << 16);
        let cache = open_on(pair.devices(), &journal).await.expect("opens");
        write(&cache, backing, value).await;
        states.push(pair.state());
        cache.close().await.expect("closes");
        states.push(pair.state());
    }
    states
}

#[test]
fn states_of_data_and_metadata_that_do_not_belong_together_are_refused() {
    let all_refused = |fault: Option<Fault>| {
        run(&World::new(1), async move |_| {
            let backing = TestFile::new(100, 1 << 20);
            plant(fault);
            let states = states(&backing).await;
            let mut refused = true;
            for (data, with) in states.iter().enumerate() {
                for (metadata, on) in states.iter().enumerate() {
                    // A process that dies in its clean end leaves the same. The state directory
                    // shows the difference.
                    let as_cut_off = metadata % 2 == 1 && data == metadata + 1;
                    let mixed = Pair {
                        data: with.data.copy(1),
                        metadata: on.metadata.copy(2),
                    };
                    // After a reboot there is no journal that could show it.
                    let opened = open_on(mixed.devices(), &Buf::zeroed(1 << 16)).await;
                    let found = inspect(&mixed.devices(), None, &[3; 16]).await;
                    let pair = format!("data {data}, metadata {metadata}");
                    if data == metadata || as_cut_off {
                        let is_journal_missed = metadata % 2 == 1;
                        assert_eq!(opened.is_err(), is_journal_missed, "{pair}");
                        assert!(found.is_ok(), "{pair}: {found:?}");
                        continue;
                    }
                    let is_named = |error: Option<Error>| {
                        let older = match data < metadata {
                            true => " (data) has an earlier state",
                            false => " (metadata) has an earlier state",
                        };
                        error.is_some_and(|error| {
                            let report = error.report();
                            error.kind() == ErrorKind::Lost
                                && report.contains(older)
                                && report.contains("help: ")
                        })
                    };
                    let is_reported = is_named(opened.err()) && is_named(found.err());
                    assert!(is_reported || fault.is_some(), "{pair}");
                    refused &= is_reported;
                }
            }
            plant(None);
            refused
        })
    };
    assert!(all_refused(None));
    for fault in [Fault::LeaveDataDevice, Fault::MixStates, Fault::EndUnraised] {
        assert!(!all_refused(Some(fault)), "{fault:?} was missed");
    }
}

/// Wherever a process dies while it opens the cache, and the next one too, the states of the
/// devices belong together. The n-th write to either device and all later ones fail. Corruption in
/// one of the two copies of the data device's superblock changes nothing.
#[test]
fn an_opening_that_is_cut_off_anywhere_leaves_devices_that_belong_together() {
    let belong =
        |fault: Option<Fault>| run(&World::new(1), async move |_| cut_openings_off(fault).await);
    assert!(belong(None));
    for fault in [Fault::ExpectUnwritten, Fault::LeaveSpareCopy] {
        assert!(!belong(Some(fault)), "{fault:?} was missed");
    }
}

/// Returns whether each start finds devices that belong together.
async fn cut_openings_off(fault: Option<Fault>) -> bool {
    let backing = TestFile::new(100, 1 << 20);
    let mut all_belong = true;
    for is_clean in [true, false] {
        let pair = Pair::formatted().await;
        let journal = Buf::zeroed(1 << 16);
        let cache = open_on(pair.devices(), &journal).await.expect("opens");
        write(&cache, &backing, 7).await;
        if is_clean {
            cache.close().await.expect("closes");
        }
        let (pair, journal) = (pair.state(), Buf::copied(&journal.to_vec()));
        let mut opened = false;
        for nth in 0.. {
            let (left, copied) = (pair.state(), Buf::copied(&journal.to_vec()));
            opened |= is_open_after(&left, &copied, nth, fault).await;
            for second in 0..10 {
                let (left, copied) = (left.state(), Buf::copied(&copied.to_vec()));
                is_open_after(&left, &copied, second, fault).await;
                for rotten in [None, Some(0), Some(COPY_STRIDE_BYTES)] {
                    let (left, copied) = (left.state(), Buf::copied(&copied.to_vec()));
                    if let Some(at) = rotten {
                        let rot = Buf::copied(&[0xa5; COPY_BYTES]);
                        left.data.write(at, rot).await.expect("rots");
                    }
                    match open_on(left.devices(), &copied).await {
                        Ok(cache) => {
                            let values = values(&cache, &backing).await;
                            assert_eq!(values, [7; 8], "{nth}, {second}, {rotten:?}");
                        }
                        Err(error) if fault.is_none() => {
                            let report = error.report();
                            panic!("clean {is_clean}, {nth}, {second}, {rotten:?}: {report}")
                        }
                        Err(_) => all_belong = false,
                    }
                }
            }
            if opened {
                assert!(nth > 4, "it writes both superblocks and the log");
                break;
            }
        }
    }
    all_belong
}

/// Opens the cache in a process that dies at its n-th write. Returns whether it came to the end.
async fn is_open_after(pair: &Pair, journal: &Buf, nth: u64, fault: Option<Fault>) -> bool {
    let (devices, _) = pair.limited(nth);
    plant(fault);
    let opening = open_on(devices, journal);
    let opened = rt::at_most(std::time::Duration::from_millis(100), opening);
    let opened = opened.await;
    plant(None);
    opened.is_some_and(|opened| opened.is_ok())
}

/// Wherever a process dies in its clean end, its devices and its journal belong together. A copy
/// made in service does not belong to the state after a clean end.
#[test]
fn a_clean_end_that_is_cut_off_anywhere_leaves_devices_that_belong_together() {
    run(&World::new(1), async |_| {
        let backing = TestFile::new(100, 1 << 20);
        let pair = Pair::formatted().await;
        for nth in 0.. {
            let (left, journal) = (pair.state(), Buf::zeroed(1 << 16));
            let (devices, limit) = left.limited(u64::MAX);
            let cache = open_on(devices, &journal).await.expect("opens");
            write(&cache, &backing, 7).await;
            let in_service = left.state();
            limit.set(nth);
            let closing = rt::at_most(std::time::Duration::from_millis(100), cache.close());
            let closed = closing.await.is_some_and(|closed| closed.is_ok());
            let (left, journal) = (left.state(), Buf::copied(&journal.to_vec()));
            let [_, before] = left.superblocks().await;
            let cache = open_on(left.devices(), &journal).await;
            let cache = cache.unwrap_or_else(|error| panic!("{nth}: {}", error.report()));
            assert_eq!(values(&cache, &backing).await, [7; 8], "{nth}");
            let opening = cache.service().generation;
            assert!(opening > before.service.generation, "{nth}");
            cache.close().await.expect("closes");
            let stale = Pair {
                data: in_service.data,
                metadata: left.metadata.copy(2),
            };
            let stale = open_on(stale.devices(), &Buf::zeroed(1 << 16)).await;
            assert_eq!(stale.err().map(|it| it.kind()), Some(ErrorKind::Lost));
            if closed {
                assert!(nth > 4, "it writes the log and both superblocks");
                break;
            }
        }
    });
}

#[test]
fn a_cache_of_an_earlier_version_opens_and_is_compared_from_then_on() {
    run(&World::new(1), async |_| {
        let backing = TestFile::new(100, 1 << 20);
        // States of versions that wrote the superblock of the data device only at `format`, or that
        // counted its changes of UUID. Also the state of one that opened the cache of a version
        // that compares.
        for (of_data, generation) in [(0, 0), (0, 5), (1, 6), (7, 9)] {
            let pair = Pair::formatted().await;
            let [mut data, mut metadata] = pair.superblocks().await;
            data.service.generation = of_data;
            metadata.service.generation = generation;
            metadata.service.data_generation = 0;
            for _ in 0..2 {
                data.sequence += 1;
                metadata.sequence += 1;
                data.write(&pair.data, Role::Data).await.expect("written");
                (metadata.write(&pair.metadata, Role::Metadata).await).expect("written");
            }
            let earlier = pair.state();
            let journal = Buf::zeroed(1 << 16);
            let cache = open_on(pair.devices(), &journal).await.expect("opens");
            write(&cache, &backing, 7).await;
            cache.close().await.expect("closes");
            let mixed = Pair {
                data: earlier.data,
                metadata: pair.metadata.copy(2),
            };
            let mixed = open_on(mixed.devices(), &journal).await;
            assert_eq!(mixed.err().map(|it| it.kind()), Some(ErrorKind::Lost));
            let cache = open_on(pair.devices(), &journal).await.expect("opens");
            assert_eq!(values(&cache, &backing).await, [7; 8]);
        }
    });
}

#[test]
fn a_copy_of_both_devices_with_a_uuid_of_its_own_opens() {
    run(&World::new(1), async |_| {
        let backing = TestFile::new(100, 1 << 20);
        let pair = Pair::formatted().await;
        let journal = Buf::zeroed(1 << 16);
        let cache = open_on(pair.devices(), &journal).await.expect("opens");
        write(&cache, &backing, 7).await;
        cache.close().await.expect("closes");
        let copy = Pair {
            data: pair.data.copy(3),
            metadata: pair.metadata.copy(4),
        };
        // Also where it was interrupted between the two.
        for uuid in [[6; 16], [7; 16]] {
            let changed = Superblock::change_uuid(&copy.data, Some(&copy.metadata), uuid, "copy");
            changed.await.expect("written");
        }
        for _ in 0..2 {
            let journal = Buf::zeroed(1 << 16);
            let cache = open_on(copy.devices(), &journal).await.expect("opens");
            assert_eq!(values(&cache, &backing).await, [7; 8]);
            cache.close().await.expect("closes");
        }
    });
}

/// One copy of the data device's superblock rots. The other one counts, and a start writes both.
#[test]
fn a_damaged_copy_of_the_data_devices_superblock_is_rewritten() {
    run(&World::new(1), async |_| {
        let backing = TestFile::new(100, 1 << 20);
        for at in [0, 65536] {
            let pair = Pair::formatted().await;
            let journal = Buf::zeroed(1 << 16);
            let cache = open_on(pair.devices(), &journal).await.expect("opens");
            write(&cache, &backing, 7).await;
            cache.close().await.expect("closes");
            pair.data.0.bytes.borrow_mut()[at + 150] ^= 1;
            assert_eq!(crate::spare_damage(&pair.devices()).await.len(), 1);
            let cache = open_on(pair.devices(), &journal).await.expect("opens");
            assert_eq!(values(&cache, &backing).await, [7; 8]);
            assert!(crate::spare_damage(&pair.devices()).await.is_empty());
        }
    });
}
