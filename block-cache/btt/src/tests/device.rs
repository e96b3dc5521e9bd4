//! The table as a block device, its counts, and media that fail.

use std::sync::Arc;

use forebay_block::{
    Basis, BlockDevice, BlockDeviceExt, Buf, DeviceInfo, ErrorKind, Identity, Persistence,
};
use forebay_io::rt::block_on_simulated;
use forebay_io::sim::Survival;

use super::{SIZE, formatted, holds, open, options, read, stamp};
use crate::BttDevice;

#[test]
fn a_table_names_a_medium_that_has_no_name() {
    let table = Arc::new(open(&formatted(SIZE, &options(4096))));
    let on = |number, basis| {
        let under = DeviceInfo {
            identity: Identity {
                basis,
                ..Identity::of(number)
            },
            ..DeviceInfo::new("pm", SIZE)
        };
        BttDevice::new(Arc::clone(&table), "atomic", &under)
            .info()
            .identity
    };
    let (here, there) = (on(5, Basis::Place), on(6, Basis::Place));
    assert!(here.basis == Basis::Name && here.is_same_as(there));
    assert_eq!(on(5, Basis::Name), Identity::of(5), "it has its own");
    assert!(!on(0, Basis::Name).is_known(), "memory has none");
}

#[test]
fn requests_of_several_blocks_are_served_or_name_the_error() {
    let memory = formatted(SIZE, &options(4096));
    let under = DeviceInfo {
        persistence: Persistence::Machine,
        identity: forebay_block::Identity::of(5),
        byte_addressable: true,
        atomic_write_bytes: 8,
        ..DeviceInfo::new("pm", SIZE)
    };
    let device = BttDevice::new(Arc::new(open(&memory)), "atomic", &under);
    let info = device.info();
    assert_eq!(
        (info.logical_block_bytes, info.atomic_write_bytes),
        (4096, 4096)
    );
    assert_eq!(info.size_bytes, 3829 * 4096);
    assert!(!info.volatile_cache && !info.byte_addressable && info.fua);
    assert_eq!(
        (info.persistence, info.identity),
        (Persistence::Machine, forebay_block::Identity::of(5))
    );
    block_on_simulated(1, async move {
        let buf = Buf::scratch(3 * 4096);
        for index in 0..3 {
            let part = buf.slice(index * 4096..(index + 1) * 4096);
            part.copy_from_buf(&stamp(index as u64, 1, 4096));
        }
        device.write(0, buf.clone()).await.expect("in range");
        device.write_zeroes(4096, 4096).await.expect("in range");
        device.discard(100 * 4096, 4096).await.expect("in range");
        device.flush().await.expect("nothing to do");
        let back = Buf::zeroed(3 * 4096);
        device.read(0, back.clone()).await.expect("in range");
        for (index, version) in [1, 0, 1].into_iter().enumerate() {
            let part = back.slice(index * 4096..(index + 1) * 4096);
            assert!(holds(&part, index as u64, version), "block {index}");
        }
        let error = device
            .read(512, Buf::zeroed(4096))
            .await
            .expect_err("misaligned");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.report().contains("atomic"), "{error:?}");
        let error = device.read(3829 * 4096, Buf::zeroed(4096)).await;
        assert_eq!(error.expect_err("the end").kind(), ErrorKind::OutOfRange);
    });
}

#[test]
fn a_write_costs_its_block_three_words_and_three_fences() {
    let memory = formatted(SIZE, &options(4096));
    let table = open(&memory);
    let cost = |what: &dyn Fn()| {
        let before = memory.counts();
        what();
        let after = memory.counts();
        (
            after.streamed_bytes - before.streamed_bytes,
            after.stores - before.stores,
            after.flushed_lines - before.flushed_lines,
            after.fences - before.fences,
        )
    };
    let write = || table.write(9, &stamp(9, 1, 4096)).expect("written");
    assert_eq!(cost(&write), (4096, 3, 3, 3));
    let read = || drop(read(&table, 9));
    assert_eq!(cost(&read), (0, 0, 0, 0));
    let zero = || table.zero(16, 32).expect("zeroed");
    assert_eq!(cost(&zero), (0, 32, 2, 2), "a fence a line of the map");
    assert_eq!(cost(&zero), (0, 0, 2, 2), "they are zeroes already");
}

#[test]
fn a_block_that_the_medium_loses_fails_until_it_is_written() {
    let memory = formatted(SIZE, &options(4096));
    let table = open(&memory);
    table.write(2, &stamp(2, 1, 4096)).expect("written");
    let (arena, premap) = table.place(2);
    let entry = arena.entry(&*memory, premap).expect("sound");
    memory.spoil(4096 + u64::from(entry.block()) * 4096 + 1000, 1);
    let buf = Buf::zeroed(4096);
    let error = table.read(2, &buf).expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.report().contains("reading block 2"), "{error:?}");
    let memory = memory.crash(Survival::None);
    let table = open(&memory);
    assert_eq!(table.check().expect("sound").unreadable, 1);
    let error = table.read(2, &buf).expect_err("marked");
    assert!(error.report().contains("write it, or restore"), "{error:?}");
    table.write(2, &stamp(2, 2, 4096)).expect("written");
    assert!(holds(&read(&table, 2), 2, 2));
    let usage = table.check().expect("sound");
    assert_eq!((usage.unreadable, usage.data), (0, 1));
    // The same lane reuses its internal block.
    table.write(3, &stamp(3, 3, 4096)).expect("written");
    assert!(holds(&read(&table, 3), 3, 3));
}

#[test]
fn ranges_are_checked_without_overflow() {
    let table = open(&formatted(SIZE, &options(4096)));
    assert!(table.check_range(3828, 1).is_ok());
    assert!(table.check_range(3829, 0).is_ok());
    assert!(table.check_range(3829, 1).is_err());
    assert!(table.check_range(u64::MAX, 2).is_err());
}
