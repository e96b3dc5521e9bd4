//! A cache that fails in service under volumes that need it for what is dirty alone: they continue
//! at their backing devices.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use forebay_block::{Error, Request};
use forebay_io::sim::{FaultPlan, OpClass, Spell, Trouble};

use super::*;
use crate::volume::fallback::{Fallback, Remains};

mod later;

const BLOCK: u64 = 4096;
const CLEAN_MODES: [Mode; 4] = [
    Mode::WriteThrough,
    Mode::WriteAround,
    Mode::WriteInvalidate,
    Mode::PassThrough,
];

/// Stands for the state directory.
#[derive(Default)]
struct State {
    /// Dirty data at the time when the epoch was raised.
    listed: RefCell<Option<Vec<Range<u64>>>>,
    raised: Cell<u32>,
    failures: Cell<u32>,
}

/// Has the volume continue without the cache in the modes that leave nothing dirty.
fn agree(cache: &Cache) -> Rc<State> {
    agree_of(cache, "v", Fallback::CleanModes)
}

fn agree_of(cache: &Cache, name: &str, fallback: Fallback) -> Rc<State> {
    let state = Rc::<State>::default();
    let shared = Rc::clone(&state);
    let begin = move |Remains { backing, dirty }| {
        let state = Rc::clone(&shared);
        async move {
            rt::sleep(Duration::from_millis(3)).await;
            if state.failures.get() > 0 {
                state.failures.set(state.failures.get() - 1);
                return Err(Error::new(ErrorKind::NoSpace, "state/v.epoch: no room"));
            }
            state.raised.set(state.raised.get() + 1);
            state.listed.replace(dirty);
            Ok(backing)
        }
    };
    (cache.allow_degraded(name, fallback, begin)).expect("agrees");
    state
}

/// Failing devices of a cache whose metadata lies on a separate device, or not.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    /// The only device.
    Device,
    Data,
    Metadata,
    Both,
    Flush,
    LogWrites,
}

const FAILURES: [Failure; 6] = [
    Failure::Device,
    Failure::Data,
    Failure::Metadata,
    Failure::Both,
    Failure::Flush,
    Failure::LogWrites,
];

impl Failure {
    fn world(self) -> World {
        let mut world = world(1, 4 << 20, 512);
        if self != Self::Device {
            world.add_disk(&config("metadata", 4 << 20, 512));
        }
        world
    }

    fn devices(self, disks: &[SimDisk]) -> Devices {
        let apart = disks.get(2).filter(|_| self != Self::Device);
        Devices {
            data: Rc::new(disks[0].clone()),
            metadata: apart.map(|disk| Rc::new(disk.clone()) as Rc<dyn BlockDevice>),
        }
    }

    fn happens(self, disks: &[SimDisk]) {
        let vanishes = FaultPlan {
            from_nth: Some((1, Trouble::Vanishes)),
            ..FaultPlan::default()
        };
        match self {
            Self::Device | Self::Data => disks[0].set_faults(vanishes),
            Self::Metadata => disks[2].set_faults(vanishes),
            Self::Both => {
                disks[0].set_faults(vanishes.clone());
                disks[2].set_faults(vanishes);
            }
            Self::Flush => disks[0].set_faults(FaultPlan {
                fail_nth: Some((OpClass::Flush, 1)),
                lose_at_failed_flush: true,
                ..FaultPlan::default()
            }),
            Self::LogWrites => disks[2].set_faults(FaultPlan {
                spell: Some(Spell {
                    changes: 1..1000,
                    flushes: false,
                }),
                ..FaultPlan::default()
            }),
        }
    }
}

fn page(byte: u8) -> Buf {
    Buf::copied(&[byte; BLOCK as usize])
}

async fn first_byte(volume: &Rc<dyn BlockDevice>, block: u64) -> forebay_block::Result<u8> {
    let found = page(0);
    volume.read(block * BLOCK, found.clone()).await?;
    Ok(found.to_vec()[0])
}

async fn format_as(devices: &Devices, tracking: DirtyTracking) {
    let options = FormatOptions {
        dirty_tracking: tracking,
        ..FormatOptions::sizes(&[BLOCK], [5; 16])
    };
    format(devices, &options).await.expect("formats");
}

async fn open_at(devices: Devices) -> Cache {
    let options = CacheOptions {
        journal: Some(Buf::zeroed(1 << 16)),
        cleaning: Cleaning::Nop,
        commit_interval: Duration::from_secs(3600),
        ..CacheOptions::new([9; 16])
    };
    Cache::open(devices, options).await.expect("opens").0
}

/// Attaches in the next process: the cache's devices are back in their earlier state.
async fn reattached(
    disks: &[SimDisk],
    failure: Failure,
    state: &State,
) -> forebay_block::Result<(Cache, Rc<dyn BlockDevice>)> {
    for disk in disks {
        disk.set_faults(FaultPlan::default());
    }
    let options = CacheOptions::new([8; 16]);
    let opened = Cache::open(failure.devices(disks), options).await;
    let (cache, _) = opened.expect("opens");
    let options = VolumeOptions {
        epoch: 1 + u64::from(state.raised.get() > 0),
        written_elsewhere: Some(Vec::new()),
        dirty_at_failure: state.listed.borrow().clone(),
        ..VolumeOptions::new(Mode::WriteBack)
    };
    let backing = Rc::new(disks[1].clone());
    let volume = cache.attach("v", backing, options).await?;
    Ok((cache, volume))
}

#[test]
fn in_each_mode_that_leaves_nothing_dirty_a_volume_goes_on_whatever_fails() {
    for (mode, failure) in
        (CLEAN_MODES.into_iter()).flat_map(|mode| FAILURES.map(|failure| (mode, failure)))
    {
        run(&failure.world(), async move |disks| {
            let devices = failure.devices(&disks);
            format_as(&devices, DirtyTracking::Exact).await;
            let cache = open_at(devices).await;
            let volume = attach(&cache, &disks, Mode::WriteThrough).await;
            let state = agree(&cache);
            for block in 0..8 {
                volume.write(block * BLOCK, page(1)).await.expect("writes");
                assert_eq!(first_byte(&volume, block).await.expect("there"), 1);
            }
            volume.flush().await.expect("flushes");
            cache.set_mode("v", mode).expect("attached");
            failure.happens(&disks);
            let what = format!("{mode:?}, {failure:?}");
            for block in [0, 5, 20] {
                let written = volume.write(block * BLOCK, page(2)).await;
                assert!(written.is_ok(), "{what}: {written:?}");
            }
            let zeroes = volume.write_zeroes(BLOCK, BLOCK).await;
            assert!(zeroes.is_ok(), "{what}: {zeroes:?}");
            let part = Buf::copied(&[3; 512]);
            let part = volume.start(Request::write(2 * BLOCK, part, true)).await;
            assert!(part.is_ok(), "{what}: {part:?}");
            for _ in 0..2 {
                let flushed = volume.flush().await;
                assert!(flushed.is_ok(), "{what}: {flushed:?}");
            }
            let expected = [(0, 2), (1, 0), (2, 3), (3, 1), (5, 2), (20, 2)];
            for (block, byte) in expected {
                let found = first_byte(&volume, block).await;
                assert_eq!(found.expect("there"), byte, "{what}, block {block}");
            }
            let stats = cache.stats();
            let has_failed = stats.failure.is_some();
            // The failure of a data device alone may go unnoticed, as long as the cache can serve
            // all requests.
            assert!(
                has_failed || matches!(failure, Failure::Data | Failure::Flush),
                "{what}"
            );
            assert_eq!(stats.volumes[0].diverged, has_failed, "{what}");
            assert!(!stats.volumes[0].refuses_writes, "{what}");
            assert_eq!(state.raised.get(), u32::from(has_failed), "{what}");
            let (_, volume) = (reattached(&disks, failure, &state).await).expect("attaches");
            for (block, byte) in expected {
                let found = first_byte(&volume, block).await;
                assert_eq!(found.expect("there"), byte, "{what}, block {block}, later");
            }
        });
    }
}

#[test]
fn dirty_data_of_an_earlier_mode_is_neither_written_over_nor_lost() {
    for (earlier, mode) in [
        (Mode::WriteBack, Mode::WriteThrough),
        (Mode::WriteOnly, Mode::WriteAround),
        (Mode::WriteBack, Mode::WriteInvalidate),
        (Mode::WriteOnly, Mode::PassThrough),
    ] {
        run(&Failure::Device.world(), async move |disks| {
            let devices = Failure::Device.devices(&disks);
            format_as(&devices, DirtyTracking::Exact).await;
            let cache = open_at(devices).await;
            let volume = attach(&cache, &disks, earlier).await;
            let state = agree(&cache);
            // Dirty and clean data share a region. Its mark is to be changed when the cache fails,
            // and the records rewritten for that say nothing new.
            let dirty = 4..8;
            for block in (0..4).chain(dirty.clone()) {
                volume.write(block * BLOCK, page(1)).await.expect("writes");
            }
            cache.write_back(None).await.expect("writes back");
            for block in dirty {
                volume.write(block * BLOCK, page(2)).await.expect("writes");
            }
            volume.flush().await.expect("flushes");
            cache.set_mode("v", mode).expect("attached");
            Failure::Device.happens(&disks);
            volume.write(0, page(3)).await.expect("is clean");
            volume.write(200 * BLOCK, page(3)).await.expect("is absent");
            // Whole, in part, with clean data next to it, and as zeroes.
            let at = |block: u64| block * BLOCK;
            let whole = volume.write(at(5), page(4)).await;
            let part = Buf::copied(&[4; 512]);
            let part = volume.write(at(6) + 512, part).await;
            let bypassing = Buf::copied(&[4; 2 * BLOCK as usize]);
            let bypassing = volume.start(Request::write(at(3), bypassing, true)).await;
            let zeroes = volume.write_zeroes(at(7), BLOCK).await;
            let refused = [
                (whole, at(5)),
                (part, at(6) + 512),
                (bypassing, at(4)),
                (zeroes, at(7)),
            ];
            for (refused, at) in refused {
                let message = refused.expect_err("is dirty").report();
                let named = message.contains("volume v: ")
                    && message.contains(&format!("dirty data at {at}"));
                assert!(named, "{message}");
            }
            let message = first_byte(&volume, 5).await.expect_err("dirty").report();
            let named = format!("4096 bytes at {} are dirty", at(5));
            assert!(message.contains(&named), "{message}");
            volume.discard(at(4), BLOCK).await.expect("may leave it");
            volume.flush().await.expect("what is dirty was flushed");
            let dirty = std::iter::once(at(4)..at(8)).collect();
            assert_eq!(*state.listed.borrow(), Some(dirty));
            let (cache, volume) =
                (reattached(&disks, Failure::Device, &state).await).expect("attaches");
            let expected = [(0, 3), (1, 1), (4, 2), (5, 2), (6, 2), (7, 2), (200, 3)];
            for (block, byte) in expected {
                assert_eq!(
                    first_byte(&volume, block).await.expect("there"),
                    byte,
                    "{block}"
                );
            }
            cache.write_back(None).await.expect("writes back");
            for (block, byte) in expected {
                assert_eq!(disks[1].peek(block * BLOCK, 1), [byte], "{block}");
            }
        });
    }
}

#[test]
fn a_volume_whose_mode_needs_the_cache_goes_on_once_its_mode_does_not() {
    for mode in [Mode::WriteBack, Mode::WriteOnly] {
        run(&Failure::Device.world(), async move |disks| {
            let devices = Failure::Device.devices(&disks);
            format_as(&devices, DirtyTracking::Exact).await;
            let cache = open_at(devices).await;
            let volume = attach(&cache, &disks, mode).await;
            let state = agree(&cache);
            for block in 0..4 {
                volume.write(block * BLOCK, page(1)).await.expect("writes");
            }
            cache.write_back(None).await.expect("writes back");
            Failure::Device.happens(&disks);
            assert_eq!(first_byte(&volume, 0).await.expect("clean"), 1);
            for _ in 0..2 {
                volume.write(0, page(2)).await.expect_err("is refused");
            }
            volume.flush().await.expect_err("is refused");
            assert!(cache.stats().volumes[0].refuses_writes);
            assert_eq!(state.raised.get(), 0);
            cache.set_mode("v", Mode::WriteThrough).expect("attached");
            // The failed write may have marked its granule dirty, which then stays.
            volume.write(BLOCK, page(2)).await.expect("goes on");
            volume.flush().await.expect("goes on");
            assert_eq!(state.raised.get(), 1);
            for other in [Mode::WriteBack, Mode::WriteOnly] {
                let refused = cache.set_mode("v", other).expect_err("would refuse writes");
                assert_eq!(refused.kind(), ErrorKind::Busy);
                assert!(
                    refused.report().contains("the cache has failed"),
                    "{refused:?}"
                );
            }
            cache.set_mode("v", Mode::PassThrough).expect("goes on");
            volume.write(2 * BLOCK, page(2)).await.expect("goes on");
            let (_, volume) =
                (reattached(&disks, Failure::Device, &state).await).expect("attaches");
            for (block, byte) in [(1, 2), (2, 2), (3, 1)] {
                assert_eq!(first_byte(&volume, block).await.expect("there"), byte);
            }
        });
    }
}

#[test]
fn a_state_directory_that_fails_fails_the_write_by_name_and_is_retried() {
    run(&Failure::Device.world(), async |disks| {
        let devices = Failure::Device.devices(&disks);
        format_as(&devices, DirtyTracking::Exact).await;
        let cache = open_at(devices).await;
        let volume = attach(&cache, &disks, Mode::WriteThrough).await;
        let state = agree(&cache);
        volume.write(0, page(1)).await.expect("writes");
        Failure::Device.happens(&disks);
        state.failures.set(3);
        let before = disks[1].counters().writes;
        let write = volume.write(0, page(2)).await;
        let zeroes = volume.write_zeroes(0, BLOCK).await;
        let flush = volume.flush().await;
        for refused in [write, zeroes, flush] {
            let message = refused.expect_err("is refused").report();
            assert!(
                message.contains("volume \"v\" cannot continue"),
                "{message}"
            );
            assert!(message.contains("state/v.epoch: no room"), "{message}");
        }
        assert_eq!(disks[1].counters().writes, before, "no byte was sent");
        assert_eq!(first_byte(&volume, 0).await.expect("is read"), 1);
        volume.write(0, page(2)).await.expect("goes on");
        assert_eq!(state.raised.get(), 1);
    });
}

#[test]
fn volumes_of_one_cache_go_each_its_own_way() {
    let mut world = Failure::Device.world();
    world.add_disk(&config("second", VOLUME_BYTES, 512));
    world.add_disk(&config("third", VOLUME_BYTES, 512));
    run(&world, async |disks| {
        let devices = Failure::Device.devices(&disks);
        format_as(&devices, DirtyTracking::Exact).await;
        let cache = open_at(devices).await;
        let mut volumes = Vec::new();
        let kinds = [
            ("v", 1, Mode::WriteThrough, Fallback::CleanModes),
            ("w", 2, Mode::WriteBack, Fallback::CleanModes),
            ("x", 3, Mode::WriteBack, Fallback::AllModes),
        ];
        for (name, disk, mode, fallback) in kinds {
            let backing = Rc::new(disks[disk].clone());
            let options = VolumeOptions::new(mode);
            let volume = cache.attach(name, backing, options).await;
            let volume = volume.expect("attaches");
            volume.write(0, page(1)).await.expect("writes");
            let state = agree_of(&cache, name, fallback);
            volumes.push((volume, state));
        }
        cache.write_back(None).await.expect("writes back");
        Failure::Device.happens(&disks);
        for (volume, _) in &volumes {
            assert_eq!(first_byte(volume, 0).await.expect("clean"), 1);
        }
        let mut continued = Vec::new();
        for (volume, _) in &volumes {
            // In write-back, the first may find out that the cache has failed.
            let first = volume.write(0, page(2)).await;
            let second = volume.write(BLOCK, page(2)).await;
            continued.push((first.is_ok(), second.is_ok()));
        }
        assert_eq!(continued, [(true, true), (false, false), (true, true)]);
        let raised: Vec<u32> = volumes
            .iter()
            .map(|(_, state)| state.raised.get())
            .collect();
        assert_eq!(raised, [1, 0, 1]);
        let stats = cache.stats().volumes;
        let flags: Vec<_> = (stats.iter())
            .map(|volume| (volume.diverged, volume.refuses_writes))
            .collect();
        assert_eq!(flags, [(true, false), (false, true), (true, false)]);
        // Nothing was dirty in the third either: nothing need be logged.
        assert_eq!(*volumes[2].1.listed.borrow(), Some(Vec::new()));
    });
}
