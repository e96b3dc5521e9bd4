use super::*;

const SIZES: [u64; 4] = [16 << 20, (64 << 20) + 12345, 1 << 30, ARENA_MAX_BYTES];

#[test]
fn an_arena_is_split_without_gaps_or_overlaps() {
    for size in SIZES {
        for block_bytes in [512, 4096] {
            let info = InfoBlock::split(size, block_bytes, FREE_BLOCKS, Version::V2_0)
                .expect("large enough");
            assert_eq!(info.check(size), Ok(()), "{info:?}");
            assert_eq!(info.copy_offset + PAGE_BYTES, size & !4095);
            let data = u64::from(info.internal_blocks) * u64::from(block_bytes);
            let spare = info.map_offset - (info.data_offset + data);
            assert!(spare < 3 * PAGE_BYTES, "{spare} bytes of {size} are lost");
        }
    }
    assert_eq!(
        InfoBlock::split((16 << 20) - 1, 4096, 256, Version::V2_0),
        None
    );
}

#[test]
fn known_numbers_of_a_16_mib_arena() {
    // Computed by hand from the specification's rules.
    let info = InfoBlock::split(16 << 20, 4096, 256, Version::V2_0).expect("16 MiB");
    assert_eq!(
        info.internal_blocks,
        (16_777_216 - 8192 - 16384 - 4096) / 4100
    );
    assert_eq!((info.internal_blocks, info.blocks), (4085, 3829));
    assert_eq!(info.copy_offset, 16_773_120);
    assert_eq!(info.flog_offset, 16_756_736);
    assert_eq!(info.map_offset, 16_740_352);
}

#[test]
fn an_info_block_has_its_fields_where_they_belong() {
    let mut info = InfoBlock::split(16 << 20, 512, 256, Version::V1_1).expect("16 MiB");
    info.uuid = [0x11; 16];
    info.parent_uuid = [0x22; 16];
    info.next_offset = 0x0102_0304_0506_0708;
    let bytes = info.encode();
    assert_eq!(&bytes[..16], b"BTT_ARENA_INFO\0\0");
    assert_eq!(
        (bytes[16], bytes[31], bytes[32], bytes[47]),
        (0x11, 0x11, 0x22, 0x22)
    );
    assert_eq!(bytes[52..56], [1, 0, 1, 0]);
    assert_eq!(u32_at(&bytes, 56), 512);
    assert_eq!(u32_at(&bytes, 60), info.blocks);
    assert_eq!(u32_at(&bytes, 68), info.internal_blocks);
    assert_eq!((u32_at(&bytes, 72), u32_at(&bytes, 76)), (256, 4096));
    assert_eq!(bytes[80..88], [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(u64_at(&bytes, 112), info.copy_offset);
    assert!(bytes[120..4088].iter().all(|byte| *byte == 0));
    assert_eq!(InfoBlock::decode(&bytes), Ok(info));
}

#[test]
fn the_checksum_is_fletchers() {
    assert_eq!(fletcher64(&[1, 0, 0, 0, 2, 0, 0, 0]), 4 << 32 | 3);
    assert_eq!(fletcher64(&[0xff; 8]), 0xffff_fffd << 32 | 0xffff_fffe);
}

#[test]
fn damage_and_invalid_fields_are_distinguished() {
    let good = InfoBlock::split(16 << 20, 4096, 256, Version::V2_0).expect("16 MiB");
    let bytes = good.encode();
    for at in [20, 60, 2000, 4090] {
        let mut damaged = bytes;
        damaged[at] ^= 4;
        assert_eq!(InfoBlock::decode(&damaged), Err(NoInfo::Damaged), "{at}");
    }
    let mut other = bytes;
    other[3] = b'x';
    assert_eq!(InfoBlock::decode(&other), Err(NoInfo::Absent));
    let mut future = bytes;
    future[52] = 3;
    future[CHECKSUM_AT..].fill(0);
    let checksum = fletcher64(&future).to_le_bytes();
    future[CHECKSUM_AT..].copy_from_slice(&checksum);
    assert_eq!(
        InfoBlock::decode(&future),
        Err(NoInfo::UnknownVersion(3, 0))
    );
    let size = 16 << 20;
    let wrong = |change: fn(&mut InfoBlock)| {
        let mut info = good.clone();
        change(&mut info);
        info.check(size).expect_err("nonsense")
    };
    assert!(wrong(|i| i.block_bytes = 520).contains("512"));
    assert!(wrong(|i| i.internal_block_bytes = 2048).contains("fit"));
    assert!(wrong(|i| i.blocks += 1).contains("internal"));
    assert!(wrong(|i| i.free_blocks = 0).contains("free"));
    assert!(wrong(|i| i.map_offset -= 8192).contains("its map"));
    assert!(wrong(|i| i.flog_offset += 4096).contains("its copy"));
    assert!(wrong(|i| i.copy_offset = 1 << 60).contains("its copy"));
    assert!(wrong(|i| i.next_offset = 8192).contains("next"));
    assert!(wrong(|i| i.flags = 1).contains("flag"));
    let truncated = good.check(size - 4096).expect_err("it ends early");
    assert!(
        truncated.contains("its copy would end at 16777216, of 16773120 bytes"),
        "{truncated}"
    );
}

#[test]
fn map_entries_have_their_flags_on_top() {
    for (state, raw) in [
        (State::Initial, 7),
        (State::Zero, 0x8000_0007),
        (State::Error, 0x4000_0007),
        (State::Normal, 0xc000_0007),
    ] {
        let entry = MapEntry::new(state, 7);
        assert_eq!((entry.raw(), entry.state(), entry.block()), (raw, state, 7));
        assert_eq!(MapEntry::from_raw(raw), entry);
        let resolved = if state == State::Initial { 9 } else { 7 };
        assert_eq!(entry.resolve(9).block(), resolved);
    }
}

#[test]
fn the_newer_of_a_pair_is_known_by_its_sequence() {
    let newer = |first, second| {
        let of = |sequence: u64| Flog::from_words([0, sequence << 32]);
        Flog::newer([of(first), of(second)])
    };
    for (first, second) in [(1, 2), (2, 3), (3, 1), (0, 1), (0, 3)] {
        assert_eq!(newer(first, second), Some(1), "{first} {second}");
        assert_eq!(newer(second, first), Some(0), "{second} {first}");
    }
    for (first, second) in [(0, 0), (1, 1), (3, 3), (4, 1), (1, 4)] {
        assert_eq!(newer(first, second), None, "{first} {second}");
    }
    let flog = Flog {
        block: 1,
        old: MapEntry::new(State::Normal, 2),
        new: MapEntry::new(State::Normal, 3),
        sequence: 2,
    };
    assert_eq!(flog.words(), [0xc000_0002_0000_0001, 0x0000_0002_c000_0003]);
    assert_eq!(Flog::from_words(flog.words()), flog);
    assert_eq!([1, 2, 3].map(next_sequence), [2, 3, 1]);
}
