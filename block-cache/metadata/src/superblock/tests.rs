use super::*;
use crate::Media;

fn plan(data: u64, metadata: Option<u64>, block: u32) -> Result<Superblock> {
    tracked(DirtyTracking::Exact, data, metadata, block)
}

fn tracked(
    dirty_tracking: DirtyTracking,
    data: u64,
    metadata: Option<u64>,
    block: u32,
) -> Result<Superblock> {
    planned(dirty_tracking, false, data, metadata, block)
}

fn planned(
    dirty_tracking: DirtyTracking,
    checksums: bool,
    data: u64,
    metadata: Option<u64>,
    block: u32,
) -> Result<Superblock> {
    Superblock::plan(PlanInput {
        checksums,
        classes: 1,
        data_bytes: data,
        metadata_bytes: metadata,
        unit_bytes: 4096,
        region_shift: 6,
        dirty_tracking,
        block_size_bytes: block,
        uuid: [3; 16],
    })
}

#[test]
fn plans_fit_their_devices() {
    for block in [4096, 32768, 1 << 20] {
        for size in [3 << 20, 100 << 20, (1 << 30) + 12288, 1 << 40] {
            let found = plan(size, None, block).expect("fits");
            let slots = u64::from(found.slots);
            let end = found.data_offset + slots * u64::from(block);
            assert!(end <= size, "{found:?}");
            assert!(size - end < 3 * u64::from(block).max(8192) || slots == 1 << 31);
            let log_end = found.log.offset + found.log.records * RECORD_BYTES as u64;
            assert!(log_end <= found.data_offset);
            assert!(found.log.records >= slots * 4);
            found.sound("test").expect("sound");
        }
    }
    let apart = plan(1 << 30, Some(16 << 20), 32768).expect("fits");
    assert_eq!(apart.slots, ((1 << 30) - (128 << 10)) / 32768);
    let starved = plan(1 << 30, Some(1 << 20), 4096).expect("fits");
    assert!(starved.slots < 5000, "the metadata device limits the slots");
}

#[test]
fn checksums_lie_before_the_data_and_behind_the_rest() {
    for tracking in DirtyTracking::ALL {
        for block in [4096, 32768, 1 << 20] {
            for (data, metadata) in [
                (3 << 20, None),
                (1 << 40, None),
                ((1 << 30) + 12288, Some(1 << 20)),
                (1 << 30, Some(64 << 20)),
            ] {
                let found = planned(tracking, true, data, metadata, block).expect("fits");
                found.sound("test").expect("sound");
                let sums = found.checksum_table().expect("it has some");
                let end = metadata.unwrap_or(found.data_offset);
                assert!(sums.offset + sums.bytes() <= end, "{found:?}");
                let data_end = found.data_offset + u64::from(found.slots) * u64::from(block);
                assert!(data_end <= data);
                assert!(sums.cells >= u64::from(found.slots));
                assert_eq!(Superblock::decode(&found.encode()), Some(found.clone()));
                let without = planned(tracking, false, data, metadata, block).expect("fits");
                assert_eq!(
                    (without.checksum_table(), without.checksums_offset),
                    (None, 0)
                );
                assert!(found.slots <= without.slots);
                // Of blocks of 1 MiB, checksums take more metadata than records.
                let share = if block == 1 << 20 { 5 } else { 1 };
                assert!((u64::from(found.slots) + 3) * 5 * share > u64::from(without.slots) * 4);
            }
        }
    }
}

#[test]
fn a_tree_lies_between_the_log_and_the_data() {
    for (data, metadata) in [
        (100 << 20, None),
        (1 << 40, None),
        (1 << 30, Some(16 << 20)),
    ] {
        let found = tracked(DirtyTracking::Abt, data, metadata, 32768).expect("fits");
        found.sound("test").expect("sound");
        let tree = found.tree().expect("it has one");
        let log_end = found.log.offset + found.log.records * RECORD_BYTES as u64;
        let end = metadata.unwrap_or(found.data_offset);
        assert_eq!(tree.offset, log_end);
        assert!(tree.offset + tree.bytes() <= end, "{found:?}");
        assert!(tree.shape.leaf_of(u64::from(found.slots) - 1) < tree.shape.leaves());
        assert_eq!(Superblock::decode(&found.encode()), Some(found));
    }
    for tracking in [DirtyTracking::Exact, DirtyTracking::None] {
        let found = tracked(tracking, 1 << 30, None, 32768).expect("fits");
        assert_eq!((found.tree(), found.tree_offset), (None, 0));
        assert_eq!(Superblock::decode(&found.encode()), Some(found.clone()));
        let plain = plan(1 << 30, None, 32768).expect("fits");
        assert_eq!((found.slots, found.log), (plain.slots, plain.log));
    }
}

#[test]
fn tracking_that_older_versions_misread_is_marked_incompatible() {
    for tracking in DirtyTracking::ALL {
        let mut found = tracked(tracking, 1 << 30, None, 32768).expect("fits");
        let older = tracking == DirtyTracking::Exact;
        assert_eq!(found.incompat & INCOMPAT_TRACKING == 0, older);
        // A way of tracking that contradicts the features is not guessed at.
        found.incompat ^= INCOMPAT_TRACKING;
        assert_eq!(
            found.sound("test").expect_err("refused").kind(),
            ErrorKind::Corrupt
        );
    }
}

#[test]
fn nonsense_is_refused() {
    let kind = |result: Result<Superblock>| result.expect_err("refused").kind();
    assert_eq!(kind(plan(1 << 30, None, 3000)), ErrorKind::InvalidInput);
    assert_eq!(kind(plan(1 << 30, None, 2 << 20)), ErrorKind::InvalidInput);
    assert_eq!(kind(plan(1 << 16, None, 4096)), ErrorKind::NoSpace);
}

#[test]
fn the_error_of_a_small_device_names_the_smallest_size_that_fits() {
    let needed = |data, metadata, block| {
        let error = plan(data, metadata, block).expect_err("too small").report();
        let numbers = error
            .rsplit_once("at least")
            .expect("it says so")
            .1
            .to_owned();
        let numbers = numbers.split(' ').filter_map(|word| word.parse().ok());
        numbers.collect::<Vec<u64>>()
    };
    for block in [4096, 32768, 1 << 20] {
        let [least] = needed(0, None, block)[..] else {
            panic!("one device");
        };
        assert_eq!(plan(least, None, block).expect("fits").slots, 1);
        assert_eq!(needed(least - 512, None, block), [least]);
        let [data, metadata] = needed(0, Some(0), block)[..] else {
            panic!("two devices");
        };
        assert_eq!(plan(data, Some(metadata), block).expect("fits").slots, 1);
        assert_eq!(needed(data - 512, Some(metadata), block), [data, metadata]);
        assert_eq!(needed(data, Some(metadata - 512), block), [data, metadata]);
    }
}

#[test]
fn a_copy_survives_a_round_trip_and_damage_is_seen() {
    let mut superblock = plan(1 << 30, None, 32768).expect("fits");
    superblock.volumes.push(VolumeEntry {
        flush_failed: true,
        may_show_lost: true,
        has_unreported_loss: true,
        id: 5,
        name: "db".into(),
        epoch: 9,
        size_bytes: 1 << 40,
        identity: Identity {
            medium: u64::MAX - 3,
            birth: u64::MAX - 5,
            start: Some(u64::MAX - 9),
            instance: u64::MAX - 7,
            ..Identity::default()
        },
        differs_at: Some(0),
    });
    let mut zones = DirtyZones::new(20);
    for bit in [0, 77, ZONE_BITS - 1] {
        zones.set(bit, true);
    }
    superblock.zones = Some(zones);
    superblock.place = "/dev/disk/by-id/x".into();
    superblock.service = Service {
        generation: 7,
        media: Media {
            metadata: Identity::of(8),
            data: Identity {
                birth: 10,
                ..Identity::of(9)
            },
        },
        cut_bytes: 11,
        is_sparse: true,
        is_closed: true,
        was_cut: true,
        data_generation: 12,
        next: 13,
    };
    superblock.lineage = [4; 16];
    superblock.incompat |= INCOMPAT_LINEAGE;
    let mut bytes = superblock.encode();
    assert_eq!(Superblock::decode(&bytes), Some(superblock));
    for at in (0..COPY_BYTES).step_by(97) {
        bytes[at] ^= 1;
        assert_eq!(Superblock::decode(&bytes), None, "byte {at}");
        bytes[at] ^= 1;
    }
}

#[test]
fn a_superblock_from_a_version_without_zones_decodes_with_none() {
    let superblock = plan(1 << 30, None, 32768).expect("fits");
    assert_eq!(superblock.zones, Some(DirtyZones::new(ZONE_SHIFT)));
    // It writes zeroes where it knows of nothing.
    let former = Superblock {
        service: Service::default(),
        place: String::new(),
        reached: 0,
        zones: None,
        ..superblock
    };
    let bytes = former.encode();
    assert!(
        bytes[COPY_BYTES - ZONE_BITS / 8..]
            .iter()
            .all(|byte| *byte == 0)
    );
    assert_eq!(bytes[128], 0);
    assert_eq!(Superblock::decode(&bytes), Some(former));
}
