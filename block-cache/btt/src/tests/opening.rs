//! Opening damaged, foreign or interrupted tables.

use std::sync::Arc;

use forebay_block::{Buf, ErrorKind};
use forebay_io::pmem::Pmem as _;
use forebay_io::sim::{Rng, SimPmem, Survival};

use super::{SIZE, formatted, holds, open, options, read, stamp};
use crate::layout::{Flog, InfoBlock, MapEntry, State, Version};
use crate::{Btt, FormatOptions};

fn info(options: &FormatOptions) -> InfoBlock {
    InfoBlock::split(
        SIZE,
        options.block_bytes,
        options.free_blocks,
        options.version,
    )
    .expect("16 MiB")
}

fn refused(memory: &Arc<SimPmem>) -> forebay_block::Error {
    Btt::open(Arc::clone(memory)).expect_err("it is damaged")
}

#[test]
fn either_info_block_is_repaired_from_the_other() {
    let options = options(4096);
    let copy = info(&options).copy_offset;
    for (broken, other) in [(0, copy), (copy, 0)] {
        let memory = formatted(SIZE, &options);
        open(&memory).write(3, &stamp(3, 1, 4096)).expect("written");
        memory.rot(broken + 100, 3);
        assert!(holds(&read(&open(&memory), 3), 3, 1));
        // Both are whole again, durably.
        let memory = memory.crash(Survival::None);
        memory.rot(other + 60, 1);
        assert!(holds(&read(&open(&memory), 3), 3, 1));
        let memory = memory.crash(Survival::None);
        memory.spoil(broken, 64);
        assert!(holds(&read(&open(&memory), 3), 3, 1), "unreadable");
        memory.read(broken, &Buf::zeroed(4096)).expect("repaired");
        memory.rot(broken + 20, 1);
        memory.rot(other + 20, 1);
        let error = refused(&memory);
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.report().contains("both info blocks"), "{error:?}");
    }
}

#[test]
fn a_later_arena_is_repaired_or_named() {
    let mut options = options(4096);
    options.arena_max_bytes = SIZE;
    let memory = formatted(2 * SIZE, &options);
    let copy = SIZE + info(&options).copy_offset;
    memory.rot(SIZE + 8, 0);
    assert_eq!(open(&memory).blocks(), 2 * 3829);
    memory.rot(copy + 8, 0);
    assert_eq!(open(&memory).blocks(), 2 * 3829);
    memory.rot(SIZE + 8, 0);
    memory.rot(copy + 8, 0);
    let error = refused(&memory);
    assert!(error.report().contains("arena 1, at 16777216"), "{error:?}");
}

#[test]
fn no_table_and_unknown_versions_are_said_to_be_that() {
    let memory = SimPmem::new(SIZE);
    let error = refused(&memory);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.report().contains("forebay format --btt"), "{error:?}");
}

#[test]
fn an_info_block_that_lies_is_refused() {
    let options = options(4096);
    let memory = formatted(SIZE, &options);
    let mut lying = info(&options);
    lying.uuid = options.uuid;
    lying.map_offset += 4096 * 1000;
    for at in [0, lying.copy_offset] {
        memory.stream(at, &Buf::copied(&lying.encode()));
    }
    let error = refused(&memory);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.report().contains("its map would end at"), "{error:?}");
}

/// A flog entry of lane 0 as another implementation may have left it.
fn put(memory: &SimPmem, at: u64, flog: Flog) {
    for (index, word) in flog.words().into_iter().enumerate() {
        memory.store_u64(at + 8 * index as u64, word);
    }
}

#[test]
fn an_interrupted_map_update_is_finished_in_either_padding() {
    let options = options(4096);
    let info = info(&options);
    for second in [16, 32] {
        let memory = formatted(SIZE, &options);
        // Lane 0 had its first block free. Plain numbers, as Linux writes them.
        let flog = Flog {
            block: 9,
            old: MapEntry::from_raw(9),
            new: MapEntry::from_raw(info.blocks),
            sequence: 2,
        };
        let data = info.data_offset + u64::from(info.blocks) * 4096;
        memory.stream(data, &stamp(9, 5, 4096));
        put(&memory, info.flog_offset + second, flog);
        let table = open(&memory);
        assert!(holds(&read(&table, 9), 9, 5), "entry at {second}");
        assert_eq!(
            memory.load_u32(info.map_offset + 36),
            0xc000_0000 | info.blocks
        );
        assert_eq!(table.check().expect("sound").data, 1);
        // The next writes of the lane use the same entries.
        let mut lane = table.lanes.take_this(0);
        for version in 6..9 {
            table
                .write_on(&mut lane, 9, &stamp(9, version, 4096))
                .expect("written");
        }
        let table = open(&memory.crash(Survival::None));
        assert!(holds(&read(&table, 9), 9, 8), "entry at {second}");
        table.check().expect("sound");
        let unused = memory.load_u64(info.flog_offset + 48 - second);
        assert_eq!(unused, 0, "the other place stays empty");
    }
}

#[test]
fn a_damaged_flog_is_refused_by_lane() {
    let options = options(4096);
    let info = info(&options);
    let entry = |block, new, sequence| Flog {
        block,
        old: MapEntry::from_raw(1),
        new: MapEntry::from_raw(new),
        sequence,
    };
    let lane_3 = info.flog_offset + 3 * 64;
    for (flog, said) in [
        (entry(1, 2, 1), "sequence numbers 1 and 1"),
        (entry(1, 2, 7), "sequence numbers 1 and 7"),
        (entry(info.blocks, 2, 2), "do not exist"),
        (entry(1, info.internal_blocks, 2), "do not exist"),
    ] {
        let memory = formatted(SIZE, &options);
        put(&memory, lane_3 + 16, flog);
        let error = refused(&memory);
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.report().contains("lane 3"), "{error:?}");
        assert!(error.report().contains(said), "{error:?}");
    }
    let memory = formatted(SIZE, &options);
    let free = MapEntry::from_raw(info.blocks);
    let twice = Flog {
        block: 0,
        old: free,
        new: free,
        sequence: 2,
    };
    put(&memory, lane_3 + 16, twice);
    let error = refused(&memory);
    assert!(error.report().contains("free for two lanes"), "{error:?}");
    let memory = formatted(SIZE, &options);
    memory.store_u64(lane_3 + 48, 1);
    assert!(refused(&memory).report().contains("more than two"));
}

#[test]
fn a_map_that_leads_nowhere_fails_its_block_alone() {
    let options = options(4096);
    let info = info(&options);
    let memory = formatted(SIZE, &options);
    let table = open(&memory);
    table.write(4, &stamp(4, 1, 4096)).expect("written");
    let nowhere = MapEntry::new(State::Normal, info.internal_blocks);
    memory.store_u32(info.map_offset + 20, nowhere.raw());
    let table = open(&memory);
    let buf = Buf::zeroed(4096);
    for error in [table.read(5, &buf), table.write(5, &buf), table.zero(5, 1)] {
        let error = error.expect_err("nowhere");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.report().contains("block 5"), "{error:?}");
    }
    assert!(holds(&read(&table, 4), 4, 1));
    assert_eq!(
        table.check().expect_err("nowhere").kind(),
        ErrorKind::Corrupt
    );
    let twice = MapEntry::new(State::Normal, 7);
    memory.store_u32(info.map_offset + 20, twice.raw());
    let error = open(&memory).check().expect_err("block 7 has it, too");
    assert!(error.report().contains("a second owner"), "{error:?}");
}

#[test]
fn the_older_layout_is_found_behind_its_page_and_not_under_the_newer() {
    let mut old = options(4096);
    old.version = Version::V1_1;
    let memory = formatted(SIZE + 8192, &old);
    assert_eq!(open(&memory).version(), Version::V1_1);
    crate::format(&*memory, &options(4096)).expect("large enough");
    assert_eq!(open(&memory).version(), Version::V2_0);
    crate::format(&*memory, &old).expect("large enough");
    assert_eq!(open(&memory).version(), Version::V1_1);
}

/// A valid info block in which some fields are arbitrary.
fn anything(rng: &Rng, good: &InfoBlock) -> InfoBlock {
    let mut info = good.clone();
    let small = |old: u32| match rng.below(4) {
        0 => rng.draw() as u32,
        1 => old.wrapping_add(rng.below(3) as u32).wrapping_sub(1),
        _ => old,
    };
    info.block_bytes = small(info.block_bytes);
    info.blocks = small(info.blocks);
    info.internal_block_bytes = small(info.internal_block_bytes);
    info.internal_blocks = small(info.internal_blocks);
    info.free_blocks = small(info.free_blocks);
    let large = |old: u64| match rng.below(6) {
        0 => rng.draw(),
        1 => rng.below(2 * SIZE) & !4095,
        2 => old.wrapping_add(4096 * rng.below(5)).wrapping_sub(8192),
        _ => old,
    };
    info.next_offset = large(info.next_offset);
    info.data_offset = large(info.data_offset);
    info.map_offset = large(info.map_offset);
    info.flog_offset = large(info.flog_offset);
    info.copy_offset = large(info.copy_offset);
    info
}

#[test]
fn whatever_is_on_the_medium_is_opened_or_refused() {
    let options = options(4096);
    let good = info(&options);
    let formatted = formatted(SIZE, &options);
    let (mut opened, mut refused) = (0, 0);
    for seed in 0..3000 {
        let rng = Rng::new(seed);
        let memory = formatted.crash(Survival::None);
        if rng.chance(1, 2) {
            let info = anything(&rng, &good);
            memory.stream(0, &Buf::copied(&info.encode()));
            // Otherwise the copy is valid, and repairs it.
            memory.stream(good.copy_offset, &Buf::copied(&info.encode()));
        }
        for _ in 0..rng.below(4) {
            let area = [good.map_offset, good.flog_offset][rng.index(2)];
            memory.store_u64(area + 8 * rng.below(2048), rng.draw());
        }
        let Ok(table) = Btt::open(memory) else {
            refused += 1;
            continue;
        };
        opened += 1;
        let _ = table.check();
        let buf = Buf::zeroed(table.block_bytes() as usize);
        for _ in 0..20 {
            let block = rng.below(table.blocks());
            let _ = table.read(block, &buf);
            let _ = table.write(block, &buf);
            let _ = table.zero(block, 1);
        }
    }
    assert!(opened > 300 && refused > 300, "{opened} and {refused}");
}
