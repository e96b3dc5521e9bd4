//! Records on media that tear them: each piece of 8 bytes is that of the record, or what stood
//! there before.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

use super::*;
use crate::checksums::{UNKNOWN, digest};

/// Records of a ring.
const RING: u64 = 300;

/// The pieces that `mask` names of `new`, the others of `old`.
fn torn(old: &[u8; RECORD_BYTES], new: &[u8; RECORD_BYTES], mask: u32) -> [u8; RECORD_BYTES] {
    let mut mixed = *old;
    for piece in (0..RECORD_BYTES / 8).filter(|piece| mask >> piece & 1 != 0) {
        let bytes = piece * 8..piece * 8 + 8;
        mixed[bytes.clone()].copy_from_slice(&new[bytes]);
    }
    mixed
}

/// The digest of a block in this slot whose cells have no checksums that are known, or whatever
/// `drawn` says.
fn sums(slot: u32, valid: u64, drawn: Option<u32>) -> u32 {
    let unknown = std::iter::repeat_n(UNKNOWN, valid.count_ones() as usize);
    drawn.unwrap_or_else(|| digest(Seed::new(&[1; 16]), slot, unknown))
}

fn body() -> impl Strategy<Value = Body> {
    let block = (
        0..3_u16,
        0..40_u64,
        0..20_u32,
        any::<(u8, u8, Option<u32>)>(),
    );
    prop_oneof![
        4 => block.prop_map(|(volume, block, slot, (valid, dirty, drawn))| {
            let valid = u64::from(valid);
            let sums = sums(slot, valid, drawn);
            Body::Block(BlockRecord {
                volume,
                class: 0,
                block,
                slot,
                valid,
                dirty: valid & u64::from(dirty),
                bad: 0,
                sums,
            })
        }),
        2 => proptest::collection::vec(0..20_u32, 1..=KILL_SLOTS).prop_map(|dead| {
            let mut slots = [0; KILL_SLOTS];
            slots[..dead.len()].copy_from_slice(&dead);
            Body::Kill { slots, count: dead.len() as u8 }
        }),
        1 => (0..3_u16, 0..9_u64).prop_map(|(volume, region)| Body::Mark {
            volume,
            region,
            state: MarkState::Intent,
        }),
        1 => Just(Body::Pad),
        1 => Just(Body::Close),
    ]
}

/// Earlier content of a position of the ring, a lap before the record that is written there. Empty
/// in the first lap.
fn lap() -> impl Strategy<Value = ([u8; RECORD_BYTES], [u8; RECORD_BYTES])> {
    (body(), body(), 0..5_u64, 0..RING, 0..200_u64, any::<bool>()).prop_map(
        |(before, after, laps, position, age, first)| {
            let seed = Seed::new(&[1; 16]);
            let lsn = (laps + 1) * RING + position;
            let at = |lsn: u64| Position {
                lsn,
                tail: lsn.saturating_sub(age),
                units_back: (age % 7) as u16,
            };
            let (mut old, mut new) = ([0; RECORD_BYTES], [0; RECORD_BYTES]);
            if !first {
                encode(&mut old, seed, at(lsn - RING), &before);
            }
            encode(&mut new, seed, at(lsn), &after);
            (old, new)
        },
    )
}

proptest! {
    #[test]
    fn a_torn_record_is_none((old, new) in lap()) {
        let seed = Seed::new(&[1; 16]);
        for mask in 0..256 {
            let mixed = torn(&old, &new, mask);
            if mixed != old && mixed != new {
                prop_assert_eq!(decode(&mixed, seed), None, "pieces {:#b}", mask);
            }
        }
    }
}

/// Two blocks with as many cells that have the same checksums, in slots of their own.
#[test]
fn a_torn_record_with_a_digest_is_none() {
    let seed = Seed::new(&[1; 16]);
    for valid in [1, 3, 7, 15, u64::MAX] {
        for (old_slot, new_slot) in [(1, 18), (0, 1), (7, 1 << 20)] {
            let record = |lsn, block, slot| {
                let position = Position {
                    lsn,
                    tail: lsn - 5,
                    units_back: 0,
                };
                let body = Body::Block(BlockRecord {
                    volume: 1,
                    class: 0,
                    block,
                    slot,
                    valid,
                    dirty: valid,
                    bad: 0,
                    sums: sums(slot, valid, None),
                });
                let mut bytes = [0; RECORD_BYTES];
                encode(&mut bytes, seed, position, &body);
                bytes
            };
            let (old, new) = (record(100, 0, old_slot), record(100 + RING, 10, new_slot));
            for mask in 0..256 {
                let mixed = torn(&old, &new, mask);
                if mixed != old && mixed != new {
                    let found = decode(&mixed, seed);
                    assert_eq!(found, None, "{valid:#x}, {old_slot}, {new_slot}, {mask:#b}");
                }
            }
        }
    }
}

/// With a checksum that fits any content, torn records would be accepted. The test above depends on
/// that.
#[test]
fn without_its_checksum_a_torn_record_would_be_believed() {
    let seed = Seed::new(&[1; 16]);
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut believed = 0;
    for _ in 0..20 {
        let (old, new) = lap().new_tree(&mut runner).expect("a record").current();
        for mut mixed in (0..256).map(|mask| torn(&old, &new, mask)) {
            if mixed != old && mixed != new {
                let checksum = seed.checksum(&mixed[4..]);
                put_u32(&mut mixed, 0, checksum);
                believed += u32::from(decode(&mixed, seed).is_some());
            }
        }
    }
    assert!(believed > 100, "{believed}");
}
