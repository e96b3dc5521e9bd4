//! AdaCache's own rule of replacement on two levels (CLOUD'23, section III-D).

use forebay_policy::{BlockId, BlockTable, GroupId, GroupOrder, TwoLevel};

use crate::policies::{Links, List, NONE};

/// AdaCache's rule: evicts the least recently used block if it has the wanted size, and otherwise
/// the least recently used group.
///
/// The owner of the table reports each block that it places or removes.
#[derive(Debug)]
pub struct AdaCache {
    /// Order of groups; `None` for blocks of one size, since no group is evicted whole then.
    groups: Option<GroupRecency>,
}

/// Groups in use, by their last use.
#[derive(Debug)]
struct GroupRecency {
    list: List,
    links: Links,
    listed: Vec<bool>,
}

impl GroupRecency {
    fn note_use(&mut self, group: GroupId) {
        if std::mem::replace(&mut self.listed[group as usize], true) {
            self.links.touch(&mut self.list, group);
        } else {
            self.links.push(&mut self.list, group);
        }
    }
}

impl AdaCache {
    /// Returns the rule for an empty table.
    #[must_use]
    pub fn new(table: &BlockTable) -> Self {
        let groups = (table.sizes().top() > 0).then(|| GroupRecency {
            list: List::new(),
            links: Links::new(table.groups()),
            listed: vec![false; table.groups()],
        });
        Self { groups }
    }

    /// Records that a block was placed.
    pub fn placed(&mut self, table: &BlockTable, id: BlockId) {
        if let Some(groups) = &mut self.groups {
            groups.note_use(table.group_of(id));
        }
    }

    /// Records that a block of a group was removed from the table.
    pub fn removed(&mut self, table: &BlockTable, group: GroupId) {
        if let Some(groups) = &mut self.groups
            && table.blocks_of(group).next().is_none()
        {
            groups.listed[group as usize] = false;
            groups.links.unlink(&mut groups.list, group);
        }
    }

    /// Returns the memory of the rule, bytes: nine for each group.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.groups.as_ref().map_or(0, |groups| {
            groups.links.memory_bytes() + groups.listed.len() * size_of::<bool>()
        })
    }
}

impl TwoLevel for AdaCache {
    type Groups<'a> = LruGroups<'a>;

    #[inline]
    fn used(&mut self, table: &mut BlockTable, id: BlockId, _repeated: u64, _granules: u32) {
        table.touch(id);
        if let Some(groups) = &mut self.groups {
            groups.note_use(table.group_of(id));
        }
    }

    fn is_as_cold(&self, _table: &BlockTable, block: BlockId, coldest: BlockId) -> bool {
        block == coldest
    }

    fn groups<'a>(&'a self, _table: &BlockTable) -> LruGroups<'a> {
        let groups = self.groups.as_ref();
        LruGroups {
            next: groups.map_or(NONE, |groups| groups.list.oldest()),
            groups,
        }
    }
}

/// Iterator over groups in use, from the least recently used one on.
#[derive(Debug)]
pub struct LruGroups<'a> {
    groups: Option<&'a GroupRecency>,
    /// Next group, or [`NONE`].
    next: GroupId,
}

impl GroupOrder for LruGroups<'_> {
    fn pass(&mut self, _table: &BlockTable, _id: BlockId) {}

    fn next(&mut self, _table: &BlockTable) -> Option<GroupId> {
        let group = self.next;
        if group == NONE {
            return None;
        }
        self.next = self.groups?.links.newer(group);
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use forebay_policy::{BlockSizes, Segment, Span, Victim};
    use proptest::prelude::*;

    use super::*;

    /// Returns a table of 32K and 64K blocks in `groups` groups, and its rule.
    fn empty(groups: u32) -> (BlockTable, AdaCache) {
        let sizes = BlockSizes::new(&[32 << 10, 64 << 10]).expect("right");
        let table = BlockTable::new(sizes, groups);
        let rule = AdaCache::new(&table);
        (table, rule)
    }

    fn place(table: &mut BlockTable, rule: &mut AdaCache, region: u64, span: Span) -> BlockId {
        let id = table.allocate(0, region, span).expect("there is room");
        rule.placed(table, id);
        id
    }

    #[test]
    fn the_papers_rule_takes_the_coldest_block_or_the_coldest_group() {
        let (mut table, mut rule) = empty(4);
        let span = Span { first: 0, class: 0 };
        let place = |region| place(&mut table, &mut rule, region, span);
        let ids: Vec<BlockId> = (0..8).map(place).collect();
        assert_eq!(rule.victim(&table, 0), Some(Victim::Block(ids[0])));
        rule.used(&mut table, ids[0], 1, 1);
        assert_eq!(rule.victim(&table, 0), Some(Victim::Block(ids[1])));
        // The group of 0 and 1 was used through 0, so that of 2 and 3 is the coldest.
        let group = table.group_of(ids[2]);
        assert_eq!(rule.victim(&table, 1), Some(Victim::Group(group)));
    }

    #[test]
    fn a_rule_for_one_size_lists_no_groups() {
        let sizes = BlockSizes::new(&[32 << 10]).expect("right");
        let mut table = BlockTable::new(sizes, 64);
        let mut rule = AdaCache::new(&table);
        let span = Span { first: 0, class: 0 };
        let ids = [0, 1].map(|region| place(&mut table, &mut rule, region, span));
        rule.used(&mut table, ids[0], 0, 1);
        assert_eq!(rule.victim(&table, 0), Some(Victim::Block(ids[1])));
        assert_eq!(rule.groups(&table).next(&table), None);
        assert_eq!(rule.memory_bytes(), 0);
    }

    proptest! {
        #[test]
        fn groups_go_in_the_order_of_a_naive_model(
            steps in prop::collection::vec((0u8..6, 0u64..12, any::<bool>()), 1..300),
        ) {
            let (mut table, mut rule) = empty(5);
            // Most recently used last.
            let mut model: Vec<GroupId> = Vec::new();
            for (step, region, large) in steps {
                let found = table.find(0, region).next();
                let used = match (step, found) {
                    (0, _) => {
                        // Evicts the coldest block.
                        if let Some(id) = table.coldest(Segment::Probation) {
                            let group = table.group_of(id);
                            table.remove(id);
                            rule.removed(&table, group);
                        }
                        None
                    }
                    (1, _) => {
                        // Evicts the coldest group.
                        if let Some(group) = rule.groups(&table).next(&table) {
                            let blocks: Vec<BlockId> = table.blocks_of(group).collect();
                            for id in blocks {
                                table.remove(id);
                                rule.removed(&table, group);
                            }
                        }
                        None
                    }
                    (_, Some((id, _))) => {
                        rule.used(&mut table, id, 0, 1);
                        Some(id)
                    }
                    (_, None) => {
                        let class = u8::from(large);
                        table.has_room(class).then(|| {
                            place(&mut table, &mut rule, region, Span { first: 0, class })
                        })
                    }
                };
                if let Some(id) = used {
                    let group = table.group_of(id);
                    model.retain(|other| *other != group);
                    model.push(group);
                }
                model.retain(|group| table.blocks_of(*group).next().is_some());
                let mut order = rule.groups(&table);
                let named: Vec<GroupId> = std::iter::from_fn(|| order.next(&table)).collect();
                prop_assert_eq!(&named, &model);
            }
        }
    }
}
