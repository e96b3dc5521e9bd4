//! The table against a naive model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const K: u64 = 1 << 10;

/// The model's blocks: region and span.
type Known = BTreeMap<BlockId, (u16, u64, Span)>;

fn check(table: &BlockTable, known: &Known, recent: &[BlockId], groups: &[GroupId]) {
    let sizes = table.sizes();
    assert_eq!(table.len(), known.len());
    let mut taken = BTreeSet::new();
    let mut by_group: BTreeMap<GroupId, Vec<BlockId>> = BTreeMap::new();
    for (&id, &(volume, region, span)) in known {
        assert_eq!(table.address(id), (volume, region, span));
        assert!(table.find(volume, region).any(|found| found == (id, span)));
        for unit in 0..span.units() {
            let mut at = table.find_at(volume, region, u32::from(span.first) + unit);
            assert!(at.any(|found| found == (id, span)));
        }
        let all = table.find(volume, region);
        let units = all.fold(0, |units, (_, span)| units | span.mask());
        assert_eq!(table.gather(volume, region, |_, span| span.mask()), units);
        assert_eq!(table.block_at(table.slot(id)), Some(id));
        for unit in 0..span.units() {
            assert!(
                taken.insert(table.slot(id).get() + unit),
                "two blocks in one slot"
            );
        }
        by_group.entry(table.group_of(id)).or_default().push(id);
    }
    for (group, blocks) in &by_group {
        let mut listed: Vec<BlockId> = table.blocks_of(*group).collect();
        listed.sort_unstable();
        assert_eq!(&listed, blocks);
        let class = table.class(blocks[0]);
        assert!(
            blocks.iter().all(|id| table.class(*id) == class),
            "one size a group"
        );
        let slots = if sizes.top() == 0 {
            64
        } else {
            sizes.region_units() >> class
        };
        assert!(blocks.len() as u32 <= slots);
    }
    assert_eq!(table.free_groups(), table.groups() - by_group.len());
    for segment in [Segment::Probation, Segment::Protected] {
        let coldest = |class: Option<u8>| {
            let oldest = recent.iter().rev().copied();
            oldest
                .filter(|id| table.segment(*id) == segment)
                .find(|id| class.is_none_or(|class| table.class(*id) == class))
        };
        assert_eq!(table.coldest(segment), coldest(None));
        for class in sizes.classes() {
            assert_eq!(table.coldest_of(segment, class), coldest(Some(class)));
        }
    }
    let protected = recent
        .iter()
        .filter(|id| table.segment(**id) == Segment::Protected);
    let units: u32 = protected.map(|id| 1 << table.class(*id)).sum();
    assert_eq!(table.protected_units(), units);
    let bytes: u64 = recent
        .iter()
        .map(|id| sizes.block_bytes(table.class(*id)))
        .sum();
    assert_eq!(table.cached_bytes(), bytes);
    let mut blocks: Vec<BlockId> = table.blocks().collect();
    blocks.sort_unstable();
    assert_eq!(blocks, known.keys().copied().collect::<Vec<_>>());
    let listed: BTreeSet<GroupId> = groups.iter().copied().collect();
    assert!(listed.iter().eq(by_group.keys()));
    for (group, blocks) in &by_group {
        let ages = blocks.iter().map(|id| table.age(*id));
        assert_eq!(table.group_age(*group), ages.min());
    }
    // A class with a free slot in one of its groups has room.
    for class in sizes.classes() {
        let slots = |group: GroupId| table.slots(group, class) as usize;
        let open = by_group.iter().filter(|(group, blocks)| {
            table.class(blocks[0]) == class && blocks.len() < slots(**group)
        });
        let room = open.count() > 0 || table.free_groups() > 0;
        assert_eq!(table.has_room(class), room, "class {class}");
        let holes = by_group
            .iter()
            .filter(|(_, blocks)| table.class(blocks[0]) == class)
            .map(|(group, blocks)| (table.slots(*group, class) - blocks.len() as u32) << class);
        let free = (0..table.groups() as GroupId)
            .filter(|group| !by_group.contains_key(group))
            .map(|group| table.slots(group, 0));
        assert_eq!(table.room(class), holes.sum::<u32>() + free.sum::<u32>());
    }
}

/// Whether a group of this class has a free slot.
fn has_hole(table: &BlockTable, class: u8) -> bool {
    (0..table.groups() as GroupId).any(|group| {
        let blocks: Vec<BlockId> = table.blocks_of(group).collect();
        let slots = table.slots(group, class) as usize;
        !blocks.is_empty() && table.class(blocks[0]) == class && blocks.len() < slots
    })
}

proptest! {
    #[test]
    fn the_table_matches_a_naive_model(
        steps in prop::collection::vec((0u8..9, 0u16..2, 0u64..12, 0u64..8, 1u64..9), 1..400),
        some in prop::sample::select(vec![vec![32u64], vec![32, 64, 128, 256], vec![4, 256]]),
    ) {
        let bytes: Vec<u64> = some.iter().map(|size| size * K).collect();
        let sizes = BlockSizes::new(&bytes).expect("right");
        let mut table = BlockTable::new(sizes, 5);
        let mut known = Known::new();
        let mut recent: Vec<BlockId> = Vec::new();
        let mut groups: Vec<GroupId> = Vec::new();
        for (step, volume, region, start, len) in steps {
            let units = u64::from(sizes.region_units());
            let (first, last) = (start % units, (start % units + len).min(units));
            let wanted = sizes.touched(first * sizes.unit_bytes(), last * sizes.unit_bytes());
            if step == 0 {
                // The coldest block goes.
                let coldest = table.coldest(Segment::Probation);
                if let Some(id) = coldest {
                    table.remove(id);
                    known.remove(&id);
                    recent.retain(|other| *other != id);
                }
            } else if step == 1 {
                // The coldest group goes.
                let coldest = groups.last().filter(|_| sizes.top() > 0);
                if let Some(&group) = coldest {
                    let blocks: Vec<BlockId> = table.blocks_of(group).collect();
                    for id in blocks {
                        table.remove(id);
                        known.remove(&id);
                        recent.retain(|other| *other != id);
                    }
                }
            } else if step == 2 {
                // A block changes segment.
                let chosen = recent.get(start as usize).copied();
                if let Some(id) = chosen {
                    table.change_segment(id);
                    recent.retain(|other| *other != id);
                    recent.insert(0, id);
                }
            } else {
                let mut missing = wanted;
                let found: Vec<(BlockId, Span)> = table.find(volume, region).collect();
                for (id, span) in found {
                    prop_assert_eq!(known.get(&id), Some(&(volume, region, span)));
                    if span.mask() & wanted != 0 {
                        if table.age(id) > 0 {
                            groups.retain(|group| *group != table.group_of(id));
                            groups.insert(0, table.group_of(id));
                        }
                        table.touch(id);
                        recent.retain(|other| *other != id);
                        recent.insert(0, id);
                    }
                    missing &= !span.mask();
                }
                for span in sizes.cut(missing) {
                    let room = table.has_room(span.class);
                    let (free, hole) = (table.free_groups(), has_hole(&table, span.class));
                    let placed = table.allocate(volume, region, span);
                    prop_assert_eq!(placed.is_some(), room);
                    let opened = free - table.free_groups();
                    prop_assert_eq!(opened, usize::from(room && !hole), "holes are filled first");
                    if let Some(id) = placed {
                        prop_assert!(known.insert(id, (volume, region, span)).is_none());
                        recent.insert(0, id);
                        groups.retain(|group| *group != table.group_of(id));
                        groups.insert(0, table.group_of(id));
                    }
                }
            }
            groups.retain(|group| table.blocks_of(*group).next().is_some());
            check(&table, &known, &recent, &groups);
        }
    }
}
