use std::cell::RefCell;
use std::rc::Rc;

use forebay_block::{BlockDeviceExt, Buf};

use super::*;
use crate::pmem::Pmem;
use crate::rt;
use crate::sync::Promise;

fn one_disk(seed: u64, change: impl FnOnce(&mut DiskConfig)) -> (World, SimDisk) {
    let mut world = World::new(seed);
    let mut config = DiskConfig::new("disk", 1 << 20);
    change(&mut config);
    let disk = world.add_disk(&config);
    (world, disk)
}

fn filled(byte: u8, len: usize) -> Buf {
    let buf = Buf::scratch(len);
    buf.fill(byte);
    buf
}

/// Runs steps that must come to their end.
fn finish<T: 'static>(world: &World, future: impl Future<Output = T> + 'static) -> T {
    match world.run(1, future) {
        Outcome::Finished(value) => value,
        other => panic!("the run ended as {:?}", matches!(other, Outcome::Crashed)),
    }
}

#[test]
fn flushed_and_fua_writes_survive_power_loss_and_others_may_not() {
    let (world, disk) = one_disk(1, |_| ());
    let device = disk.clone();
    finish(&world, async move {
        device.write(0, filled(1, 512)).await.unwrap();
        device.flush().await.unwrap();
        device.write(512, filled(2, 512)).await.unwrap();
        device.write_fua(1024, filled(3, 512)).await.unwrap();
        device.write(0, filled(4, 512)).await.unwrap();
    });
    assert_eq!(world.unflushed(), 2);
    assert_eq!(disk.peek(0, 1536), [[4; 512], [2; 512], [3; 512]].concat());
    let after = |keep| {
        let world = world.fork();
        world.crash_power(keep);
        let bytes = world.disks()[0].peek(0, 1536);
        [bytes[0], bytes[512], bytes[1024]]
    };
    assert_eq!(after(Keep::None), [1, 0, 3]);
    assert_eq!(after(Keep::All), [4, 2, 3]);
    assert_eq!(after(Keep::Only(0)), [1, 2, 3]);
    assert_eq!(after(Keep::Only(1)), [4, 0, 3]);
    assert_eq!(after(Keep::AllBut(1)), [1, 2, 3]);
    let mut seen: Vec<_> = (0..64).map(|seed| after(Keep::Random(seed))).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 4, "every subset comes up: {seen:?}");
    world.crash_process(9);
    assert_eq!(disk.peek(0, 1536), [[4; 512], [2; 512], [3; 512]].concat());
    world.crash_power(Keep::None);
    assert_eq!(disk.peek(512, 512), vec![0; 512], "still not flushed");
}

/// Alike is what holds the same, however it came to that; any difference that could ever be seen
/// tells worlds apart.
#[test]
fn crashes_that_leave_the_same_are_alike() {
    let (mut world, disk) = one_disk(1, |_| ());
    world.add_disk(&DiskConfig::new("other", 1 << 20));
    let memory = world.add_memory(4096);
    let device = disk.clone();
    finish(&world, async move {
        device.write(0, filled(1, 512)).await.unwrap();
        device.flush().await.unwrap();
        device.write(0, filled(2, 512)).await.unwrap();
        device.write(512, filled(0, 512)).await.unwrap();
        memory.store_u64(8, 1);
    });
    let after = |crash: &dyn Fn(&World)| {
        let copy = world.fork();
        crash(&copy);
        copy
    };
    let power = |keep| after(&|world| world.crash_power(keep));
    // The store into memory was durable when the process ended.
    assert_eq!(world.unflushed(), 2);
    for (one, other, expected) in [
        (Keep::None, Keep::Disk(1), true),
        (Keep::None, Keep::Disk(2), true),
        (Keep::All, Keep::Disk(0), true),
        (Keep::None, Keep::Only(0), false),
        (Keep::Only(0), Keep::AllBut(1), true),
        (Keep::Only(1), Keep::Only(0), false),
    ] {
        let is_like = power(one).is_like(&power(other));
        assert_eq!(is_like, expected, "{one:?}, {other:?}");
    }
    let dead = || after(&|world| world.crash_process(1));
    assert!(dead().is_like(&dead()));
    assert!(!dead().is_like(&power(Keep::All)), "it may still be lost");
    let changed = power(Keep::None);
    changed.memories()[0].store_u64(16, 1);
    assert!(!changed.is_like(&power(Keep::None)), "a word");
    let changed = power(Keep::None);
    changed.disks()[1].rot(0, 1, 1);
    assert!(!changed.is_like(&power(Keep::None)), "a bit");
    let ran = power(Keep::None);
    let device = ran.disks()[1].clone();
    finish(&ran, async move { device.flush().await.unwrap() });
    assert!(!ran.is_like(&power(Keep::None)), "what is drawn next");
}

#[test]
fn fua_over_an_unflushed_write_is_never_undone_by_it() {
    for seed in 0..50 {
        let (world, disk) = one_disk(seed, |_| ());
        let device = disk.clone();
        finish(&world, async move {
            device.write(0, filled(1, 1024)).await.unwrap();
            device.write_fua(0, filled(2, 512)).await.unwrap();
        });
        let fork = world.fork();
        fork.crash_power(Keep::All);
        assert_eq!(fork.disks()[0].peek(0, 512), vec![2; 512]);
        world.crash_power(Keep::Random(seed));
        assert_eq!(disk.peek(0, 512), vec![2; 512]);
    }
}

#[test]
fn a_write_in_flight_is_torn_between_blocks_only() {
    let (mut torn, mut whole, mut none) = (0, 0, 0);
    for seed in 0..200 {
        let (world, disk) = one_disk(seed, |config| config.volatile_cache = seed % 2 == 0);
        let device = disk.clone();
        world.set_stop(Some(Stop::BeforeIo(2)));
        let outcome = world.run(seed, async move {
            let write = device.write(0, filled(1, 4096));
            rt::yield_now().await;
            device.flush().await.unwrap();
            write.await.unwrap();
        });
        assert_eq!(outcome, Outcome::Crashed);
        if seed % 3 == 0 {
            world.crash_process(seed);
        } else {
            world.crash_power(Keep::Random(seed));
        }
        let bytes = disk.peek(0, 4096);
        let blocks: Vec<_> = bytes.chunks(512).map(|block| block[0]).collect();
        assert!(bytes.chunks(512).zip(&blocks).all(|(b, &v)| b == [v; 512]));
        match blocks.iter().filter(|&&byte| byte == 1).count() {
            0 => none += 1,
            8 => whole += 1,
            _ => torn += 1,
        }
    }
    assert!(
        torn > 20 && whole > 20 && none > 20,
        "{torn} {whole} {none}"
    );
}

#[test]
fn the_stop_falls_before_or_after_the_effect() {
    for (stop, expected) in [
        (Stop::BeforeIo(1), 0),
        (Stop::AfterIo(1), 0),
        (Stop::BeforeIo(2), 0),
        (Stop::AfterIo(2), 7),
        (Stop::AfterIo(3), 7),
    ] {
        let (world, disk) = one_disk(5, |_| ());
        world.set_stop(Some(stop));
        let outcome = world.run(5, async move {
            disk.write(0, filled(7, 512)).await.unwrap();
            disk.flush().await.unwrap();
            disk.write(0, filled(8, 512)).await.unwrap();
        });
        assert_eq!(outcome, Outcome::Crashed);
        world.crash_power(Keep::None);
        assert_eq!(world.disks()[0].peek(0, 1), [expected], "{stop:?}");
    }
}

#[test]
fn a_memory_is_cut_off_between_its_steps_and_its_copy_is_apart() {
    let life = |stop| {
        let mut world = World::new(3);
        let memory = world.add_memory(4096);
        world.set_stop(stop);
        let outcome = world.run(1, async move {
            memory.stream(0, &filled(1, 64));
            memory.fence();
            memory.stream(0, &filled(2, 64));
        });
        (world, outcome)
    };
    let word = |byte: u8| u64::from_le_bytes([byte; 8]);
    for (stop, visible, durable) in [
        (Stop::BeforeIo(1), 0, 0),
        (Stop::AfterIo(1), 1, 0),
        (Stop::BeforeIo(2), 1, 0),
        (Stop::AfterIo(2), 1, 1),
        (Stop::AfterIo(3), 2, 1),
    ] {
        let (world, outcome) = life(Some(stop));
        assert_eq!(outcome, Outcome::Crashed, "{stop:?}");
        let found = |world: &World| world.memories()[0].load_u64(56);
        assert_eq!(found(&world), word(visible), "{stop:?}");
        let words = if visible == durable { 0 } else { 8 };
        assert_eq!(world.unflushed(), words, "{stop:?}");
        for (keep, expected) in [
            (Keep::None, durable),
            (Keep::All, visible),
            (Keep::Disk(0), visible),
            (Keep::Disk(1), durable),
        ] {
            let copy = world.fork();
            copy.crash_power(keep);
            assert_eq!(found(&copy), word(expected), "{stop:?}, {keep:?}");
            assert_eq!(copy.unflushed(), 0);
        }
        if words > 0 {
            for (keep, expected) in [(Keep::Only(7), visible), (Keep::AllBut(7), durable)] {
                let copy = world.fork();
                copy.crash_power(keep);
                assert_eq!(found(&copy), word(expected), "{stop:?}, {keep:?}");
            }
        }
        world.crash_process(1);
        assert_eq!(world.unflushed(), 0, "the kernel has fenced");
    }
    let (world, outcome) = life(None);
    assert_eq!(outcome, Outcome::Finished(()));
    assert_eq!(world.unflushed(), 0);
}

#[test]
fn a_failed_flush_is_not_made_good_by_the_next() {
    let (mut lost, mut survived, mut gone_at_once) = (0, 0, 0);
    for seed in 0..100 {
        let (world, disk) = one_disk(seed, |_| ());
        disk.set_faults(FaultPlan {
            fail_nth: Some((OpClass::Flush, 1)),
            lose_at_failed_flush: seed % 2 == 0,
            ..FaultPlan::default()
        });
        let device = disk.clone();
        let live = finish(&world, async move {
            device.write(0, filled(1, 512)).await.unwrap();
            device.flush().await.unwrap_err();
            device.write(512, filled(2, 512)).await.unwrap();
            device.flush().await.unwrap();
            let buf = Buf::scratch(512);
            device.read(0, buf.clone()).await.unwrap();
            buf.to_vec()[0]
        });
        world.crash_power(Keep::All);
        assert_eq!(disk.peek(512, 1), [2]);
        match (live, disk.peek(0, 1)[0]) {
            (1, 1) => survived += 1,
            (1, 0) => lost += 1,
            (0, 0) => gone_at_once += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(survived > 10 && lost > 10 && gone_at_once > 10);
}

#[test]
fn failures_are_counted_by_kind() {
    let (world, disk) = one_disk(3, |_| ());
    let device = disk.clone();
    finish(&world, async move {
        device.set_faults(FaultPlan {
            fail_nth: Some((OpClass::Write, 2)),
            bad_range: Some(8192..8704),
            ..FaultPlan::default()
        });
        device.write(0, filled(1, 512)).await.unwrap();
        device.write(512, filled(1, 512)).await.unwrap_err();
        device.write(1024, filled(1, 512)).await.unwrap();
        device.discard(0, 512).await.unwrap();
        device.read(4096, Buf::scratch(4096)).await.unwrap();
        device.read(4096, Buf::scratch(8192)).await.unwrap_err();
        device.write_zeroes(2048, 512).await.unwrap();
    });
    let counters = disk.counters();
    assert_eq!((counters.writes, counters.write_bytes), (3, 1536));
    assert_eq!(
        (counters.failed, counters.reads, counters.zeroes),
        (2, 2, 1)
    );
    disk.rot(1024, 512, 1);
    let ones: u32 = disk
        .peek(1024, 512)
        .iter()
        .map(|b| (b ^ 1).count_ones())
        .sum();
    assert_eq!(ones, 1);
}

#[test]
fn a_discard_is_decided_once_for_each_block() {
    let (mut old, mut zero) = (0, 0);
    for seed in 0..40 {
        let (world, disk) = one_disk(seed, |config| config.logical_block_bytes = 4096);
        let device = disk.clone();
        finish(&world, async move {
            device.write(0, filled(1, 32768)).await.unwrap();
            device.discard(0, 32768).await.unwrap();
            device.flush().await.unwrap();
        });
        let before = disk.peek(0, 32768);
        world.crash_power(Keep::None);
        assert_eq!(before, disk.peek(0, 32768));
        for block in before.chunks(4096) {
            assert!(block.iter().all(|&byte| byte == block[0]));
            *(if block[0] == 1 { &mut old } else { &mut zero }) += 1;
        }
    }
    assert!(old > 50 && zero > 50);
}

#[test]
fn completions_are_reordered_and_repeat_with_the_seed() {
    let order = |seed| {
        let (world, disk) = one_disk(seed, |_| ());
        let order = finish(&world, async move {
            let log = Rc::new(RefCell::new(Vec::new()));
            let done = Promise::new();
            for number in 0..16u64 {
                let (log, done, disk) = (Rc::clone(&log), done.clone(), disk.clone());
                rt::spawn(async move {
                    disk.write(number * 512, filled(1, 512)).await.unwrap();
                    log.borrow_mut().push(number);
                    if log.borrow().len() == 16 {
                        done.set(());
                    }
                });
            }
            done.get().await;
            log.take()
        });
        (order, world.digest())
    };
    assert_eq!(order(4), order(4));
    assert_ne!(order(4), order(5));
    assert_ne!(order(4).0, (0..16).collect::<Vec<_>>());
}

#[test]
fn a_crash_drops_layers_in_any_order() {
    // A layer that holds its client's completion while it waits for the device, as an engine does.
    let (world, disk) = one_disk(9, |_| ());
    world.set_stop(Some(Stop::AfterIo(1)));
    let outcome = world.run(9, async move {
        let (done, future) = forebay_block::completion_pair();
        rt::spawn(async move {
            let result = disk.write(0, filled(1, 512)).await;
            done.complete(result);
        });
        future.await.unwrap();
    });
    assert_eq!(outcome, Outcome::Crashed);
    let deadlock = {
        world.crash_process(9);
        world.run(9, std::future::pending::<()>())
    };
    assert!(matches!(deadlock, Outcome::Deadlock(_)));
}

#[test]
fn failed_writes_of_a_spell_show_until_power_loss_despite_flushes() {
    let mut durable = [0, 0];
    for seed in 0..200 {
        let (world, disk) = one_disk(seed, |config| config.volatile_cache = seed % 2 == 0);
        let device = disk.clone();
        disk.set_faults(FaultPlan {
            spell: Some(Spell {
                changes: 2..4,
                flushes: false,
            }),
            ..FaultPlan::default()
        });
        let shown = finish(&world, async move {
            device.write(0, filled(1, 4096)).await.unwrap();
            for _ in 0..2 {
                device.write(0, filled(2, 4096)).await.unwrap_err();
            }
            device.flush().await.unwrap();
            let shown = device.peek(0, 4096);
            device.flush().await.unwrap();
            assert_eq!(device.peek(0, 4096), shown, "a flush changes nothing");
            shown
        });
        world.crash_process(seed);
        assert_eq!(disk.peek(0, 4096), shown, "nor does process death");
        world.crash_power(Keep::All);
        let survived = disk.peek(0, 4096);
        for (survived, shown) in survived.chunks(512).zip(shown.chunks(512)) {
            assert!(survived == [1; 512] || (survived == [2; 512] && shown == [2; 512]));
            if shown == [2; 512] {
                durable[usize::from(survived[0]) - 1] += 1;
            }
        }
    }
    assert!(durable.iter().all(|&blocks| blocks > 100), "{durable:?}");
}

#[test]
fn writes_after_a_spell_are_durable_when_flushed() {
    for (seed, flushes) in (0..100).flat_map(|seed| [(seed, false), (seed, true)]) {
        let (world, disk) = one_disk(seed, |config| config.volatile_cache = seed % 2 == 0);
        let (device, spell) = (
            disk.clone(),
            Spell {
                changes: 1..3,
                flushes,
            },
        );
        disk.set_faults(FaultPlan {
            spell: Some(spell),
            ..FaultPlan::default()
        });
        finish(&world, async move {
            device.write(0, filled(1, 4096)).await.unwrap_err();
            assert_eq!(device.flush().await.is_err(), flushes);
            device.write(0, filled(2, 4096)).await.unwrap();
            device.flush().await.unwrap();
        });
        world.crash_power(Keep::None);
        assert_eq!(disk.peek(0, 4096), vec![2; 4096], "seed {seed}");
    }
}
