//! Choice of victims for eviction ahead of need. Slots must be dead on media before they are
//! reused. So victims are named before their room is needed, a batch at a time (replacement on two
//! levels: see `replace`).

use super::ids::BlockId;
use super::recency::Walk;
use super::replace::{GroupOrder, TwoLevel};
use super::sizes::BlockSizes;
use super::table::{BlockTable, GroupId};

/// Blocks inspected for each victim that is wanted. Some are in use, or dirty.
const LOOK_AT: u32 = 16;
/// Groups that a batch passes over because a block keeps them. Looking at so many takes about a
/// millisecond. If the block is blocked, each block of the group counts, since each is moved.
const PASS_OVER: u32 = 4096;

/// Whether a block can be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evictability {
    /// At once.
    Now,
    /// It is dirty, and will be written back on request.
    Later,
    /// Not in its present state: it is in use.
    Never,
    /// It is dirty, and its backing device takes no data now. The search makes it the most recent
    /// block, so that later searches meet other blocks.
    Blocked,
}

impl Evictability {
    /// Whether the block keeps its group from becoming free.
    const fn keeps_group(self) -> bool {
        matches!(self, Self::Never | Self::Blocked)
    }
}

/// Result of [`VictimSelector::pick`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Victims {
    /// Victims, coldest first. Each is leaving until it is removed or stays.
    pub leaving: Vec<BlockId>,
    /// Dirty blocks that would be victims if they were written back. A block may occur twice.
    pub dirty: Vec<BlockId>,
}

/// Decides when to make room, how much, and for blocks of which sizes.
#[derive(Clone, Copy, Debug)]
pub struct VictimSelector {
    /// Room of a class below which more is made, units.
    low: u32,
    /// Number of units that are evicted at a time.
    batch: u32,
    /// Number of groups that stay free for a class that no request needed recently.
    reserve: u32,
    /// Units of each class that were requested since the last batch.
    asked: [u32; 8],
}

impl VictimSelector {
    /// Returns the selector for a cache of `units` units.
    #[must_use]
    pub fn new(sizes: BlockSizes, units: u32) -> Self {
        let region = sizes.region_units();
        // Small caches would lose too much of themselves.
        let least = if region == 1 { 32 } else { region };
        let most = if region == 1 { 2048 } else { 256 * region };
        let low = (units / 128).clamp(least.min(units / 8).max(region), most);
        let reserve = match region {
            1 => 0,
            _ => sizes.mask().count_ones().min(units / region / 64),
        };
        Self {
            low,
            batch: (units / 128).clamp(2 * region, 4096.max(128 * region)),
            reserve,
            asked: [0; 8],
        }
    }

    /// Room of a class below which more is made, units.
    #[must_use]
    pub const fn low(&self) -> u32 {
        self.low
    }

    /// Returns the number of units that are evicted at a time.
    #[must_use]
    pub const fn batch(&self) -> u32 {
        self.batch
    }

    /// A block of a class is about to be placed.
    #[inline]
    pub const fn ask(&mut self, class: u8) {
        let asked = &mut self.asked[class as usize];
        *asked = asked.saturating_add(1 << class);
    }

    /// Whether it is time for [`VictimSelector::pick`].
    #[must_use]
    pub fn is_low(&self, table: &BlockTable) -> bool {
        table.free_groups() < self.reserve as usize || (0..8).any(|class| self.lacks(table, class))
    }

    /// Whether some class is so short of room that it is about to be waited for.
    #[must_use]
    pub fn is_pressed(&self, table: &BlockTable) -> bool {
        let scarce = |class: u8| self.room(table, class) < self.low / 2;
        (0..8).any(|class| self.lacks(table, class) && scarce(class))
    }

    /// Returns the room of a class without the reserve, in units. As long as there are free slots
    /// of its own size, no group is opened, and none must be evicted for it.
    fn room(&self, table: &BlockTable, class: u8) -> u32 {
        let reserve = (table.free_groups() as u32).min(self.reserve);
        table.room(class) - reserve * table.sizes().region_units()
    }

    fn lacks(&self, table: &BlockTable, class: u8) -> bool {
        self.asked[usize::from(class)] > 0 && self.room(table, class) < self.low
    }

    /// Names victims, coldest first as [`TwoLevel::victim`] would: a batch for the requested
    /// classes that are short of room. `look` says whether a block can be evicted. The search skips
    /// a group with a block that is in use or blocked. The group would not become free, and its
    /// warm blocks would be lost for nothing.
    pub fn pick(
        &mut self,
        rule: &impl TwoLevel,
        table: &mut BlockTable,
        look: impl Fn(&BlockTable, BlockId) -> Evictability,
    ) -> Victims {
        let all: u64 = self.asked.iter().map(|units| u64::from(*units)).sum();
        let short = |class: &u8| self.lacks(table, *class);
        let short: Vec<u8> = table.sizes().classes().filter(short).collect();
        let mut round = Round::new(rule, table, look);
        for class in short {
            let asked = u64::from(self.asked[usize::from(class)]);
            #[expect(clippy::cast_possible_truncation, reason = "a part of the batch")]
            let share = (u64::from(self.batch) * asked / all) as u32;
            round.make_room(class, share.max(1 << class));
        }
        round.free_groups(self.reserve);
        self.asked = [0; 8];
        round.picked
    }
}

/// A batch in the making.
struct Round<'a, Rule: TwoLevel, Look> {
    rule: &'a Rule,
    table: &'a mut BlockTable,
    look: Look,
    picked: Victims,
    /// Blocks that were not looked at.
    walk: Walk,
    groups: Rule::Groups<'a>,
    /// Groups of which something is leaving.
    touched: Vec<GroupId>,
    /// Groups that a block keeps.
    passed_over: u32,
}

impl<'a, Rule: TwoLevel, Look: Fn(&BlockTable, BlockId) -> Evictability> Round<'a, Rule, Look> {
    fn new(rule: &'a Rule, table: &'a mut BlockTable, look: Look) -> Self {
        Self {
            rule,
            walk: Walk::new(table),
            groups: rule.groups(table),
            table,
            look,
            picked: Victims::default(),
            touched: Vec::new(),
            passed_over: 0,
        }
    }

    /// Takes a block if it can go; returns its units then.
    fn take(&mut self, id: BlockId) -> u32 {
        if self.table.is_leaving(id) {
            return 0;
        }
        self.walk.pass(self.table, id);
        match (self.look)(self.table, id) {
            Evictability::Now => {}
            Evictability::Later => {
                self.picked.dirty.push(id);
                return 0;
            }
            Evictability::Never => return 0,
            Evictability::Blocked => {
                self.postpone(id);
                return 0;
            }
        }
        self.groups.pass(self.table, id);
        self.table.leave(id);
        self.picked.leaving.push(id);
        let group = self.table.group_of(id);
        if self.touched.last() != Some(&group) {
            self.touched.push(group);
        }
        1 << self.table.class(id)
    }

    /// Makes a block the most recent one.
    fn postpone(&mut self, id: BlockId) {
        self.walk.pass(self.table, id);
        self.groups.pass(self.table, id);
        self.table.touch(id);
    }

    /// Takes the next group of which all can go; returns the units of those blocks that do now.
    fn take_group(&mut self) -> Option<u32> {
        while self.passed_over < PASS_OVER {
            let group = self.groups.next(self.table)?;
            let blocks: Vec<BlockId> = self.table.blocks_of(group).collect();
            let stay = |id: &BlockId| match self.table.is_leaving(*id) {
                true => None,
                false => Some((self.look)(self.table, *id)).filter(|look| look.keeps_group()),
            };
            match blocks.iter().find_map(stay) {
                None => return Some(blocks.iter().map(|id| self.take(*id)).sum()),
                Some(Evictability::Blocked) => {
                    // Any of its blocks would lead later searches to this group.
                    for id in &blocks {
                        if !self.table.is_leaving(*id) {
                            self.postpone(*id);
                        }
                    }
                    self.passed_over += blocks.len() as u32;
                }
                Some(_) => self.passed_over += 1,
            }
        }
        None
    }

    fn make_room(&mut self, class: u8, units: u32) {
        let mut found = 0;
        let mut left = (units >> class).saturating_mul(LOOK_AT).max(LOOK_AT);
        let one_size = self.table.sizes().top() == 0;
        while found < units && left > 0 {
            left -= 1;
            let Some((coldest, same)) = self.walk.peek(self.table, class) else {
                return;
            };
            let fits = same != BlockId::NONE
                && (one_size || self.rule.is_as_cold(self.table, same, coldest));
            let group = if fits { None } else { self.take_group() };
            found += match (group, self.walk.next_of(class)) {
                (Some(units), _) => units,
                (None, _) if fits => self.take(same),
                // No group is left that could go; of the size there may be blocks that are warmer.
                (None, BlockId::NONE) => return,
                (None, warmer) => self.take(warmer),
            };
        }
    }

    fn free_groups(&mut self, reserve: u32) {
        let free = self.table.free_groups() as u32;
        if free >= reserve {
            return;
        }
        let mut left = reserve.saturating_mul(LOOK_AT);
        while free + self.emptied() < reserve && left > 0 {
            left -= 1;
            if self.take_group().is_none() {
                return;
            }
        }
    }

    /// Groups of which everything is leaving.
    fn emptied(&mut self) -> u32 {
        self.touched.sort_unstable();
        self.touched.dedup();
        let groups = self.touched.iter();
        groups
            .filter(|group| self.table.group_age(**group).is_none())
            .count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::super::replace::TwoSegments;
    use super::super::segment::Segment;
    use super::super::sizes::Span;
    use super::*;

    const K: u64 = 1 << 10;

    /// A full cache of 64 groups of 32K blocks, and a request for blocks of `class`.
    fn full(class: u8) -> (BlockTable, VictimSelector) {
        let sizes = BlockSizes::new(&[32 * K, 64 * K, 256 * K]).expect("right");
        let mut table = BlockTable::new(sizes, 64);
        for unit in 0..64 * 8 {
            let span = Span {
                first: (unit % 8) as u8,
                class: 0,
            };
            table.allocate(0, unit / 8, span).expect("there is room");
        }
        let mut ahead = VictimSelector::new(sizes, 64 * 8);
        assert!(ahead.is_low(&table), "no group is in reserve");
        ahead.ask(class);
        (table, ahead)
    }

    #[test]
    fn the_coldest_of_the_size_go_and_groups_for_the_reserve() {
        let (mut table, mut ahead) = full(0);
        let victims = ahead.pick(&TwoSegments, &mut table, |_, _| Evictability::Now);
        let victims = victims.leaving;
        // Two groups' worth of blocks, in order, which are the two coldest groups; no third is
        // needed.
        assert_eq!(victims, BlockId::range(0..16).collect::<Vec<_>>());
        for id in victims {
            table.remove(id);
        }
        assert_eq!(table.free_groups(), 2);
        assert!(!ahead.is_low(&table));
    }

    #[test]
    fn another_size_takes_groups() {
        let (mut table, mut ahead) = full(3);
        let victims = ahead.pick(&TwoSegments, &mut table, |_, _| Evictability::Now);
        let victims = victims.leaving.into_iter().map(|id| table.group_of(id));
        let mut victims: Vec<GroupId> = victims.collect();
        victims.dedup();
        assert_eq!(victims, [0, 1]);
    }

    #[test]
    fn blocks_that_cannot_be_evicted_stay_and_the_next_ones_are_picked() {
        let (mut table, mut ahead) = full(0);
        let look = |_: &BlockTable, id: BlockId| match id.get() % 2 {
            1 => Evictability::Now,
            _ => Evictability::Later,
        };
        let Victims {
            leaving: victims,
            dirty,
        } = ahead.pick(&TwoSegments, &mut table, look);
        assert!(!dirty.is_empty() && dirty.iter().all(|id| id.get() % 2 == 0));
        assert!(victims.len() >= 16 && victims.iter().all(|id| table.is_leaving(*id)));
        assert_eq!(table.coldest(Segment::Probation), Some(BlockId::new(0)));
        for id in victims {
            table.stay(id);
        }
        assert_eq!(
            table.coldest_of(Segment::Probation, 0),
            Some(BlockId::new(0))
        );
        assert!(table.blocks().all(|id| !table.is_leaving(id)));
    }

    #[test]
    fn a_group_that_a_block_keeps_loses_nothing() {
        let (mut table, mut ahead) = full(3);
        // Of each group but the last, one block cannot go.
        let look =
            |table: &BlockTable, id: BlockId| match id.get() % 8 == 3 && table.group_of(id) != 63 {
                true => Evictability::Never,
                false => Evictability::Now,
            };
        let victims = ahead.pick(&TwoSegments, &mut table, look).leaving;
        assert_eq!(victims, BlockId::range(63 * 8..64 * 8).collect::<Vec<_>>());
        assert!(
            table
                .blocks()
                .all(|id| table.is_leaving(id) == (id.get() >= 63 * 8))
        );
    }

    #[test]
    fn a_group_goes_while_its_dirty_blocks_are_written_back() {
        let (mut table, mut ahead) = full(3);
        let look = |_: &BlockTable, id: BlockId| match id.get() % 8 {
            3 => Evictability::Later,
            _ => Evictability::Now,
        };
        let picked = ahead.pick(&TwoSegments, &mut table, look);
        assert!(picked.dirty.starts_with(&[BlockId::new(3)]), "{picked:?}");
        let gone = [0, 1, 2, 4, 5, 6, 7].map(BlockId::new);
        assert_eq!(picked.leaving[..7], gone);
    }

    /// Returns the number of searches until the first victim. Seven eighths of 8,192 groups hold
    /// blocks of `evictability`: all of their blocks, or one in `of`. Gives up after ten searches.
    fn searches_behind(
        evictability: Evictability,
        of: u32,
        sizes: &[u64],
        class: u8,
    ) -> Option<usize> {
        let sizes = BlockSizes::new(sizes).expect("right");
        let region = sizes.region_units();
        let mut table = BlockTable::with_units(sizes, 8192 * region);
        for unit in 0..u64::from(table.units()) {
            let span = Span {
                first: (unit % u64::from(region)) as u8,
                class: 0,
            };
            (table.allocate(0, unit / u64::from(region), span)).expect("there is room");
        }
        let limit = table.units() / 8 * 7;
        let mut ahead = VictimSelector::new(sizes, table.units());
        (1..=10).find(|_| {
            ahead.ask(class);
            let look = |_: &BlockTable, id: BlockId| match id.get() < limit
                && id.get().is_multiple_of(of)
            {
                true => evictability,
                false => Evictability::Now,
            };
            !(ahead.pick(&TwoSegments, &mut table, look).leaving).is_empty()
        })
    }

    /// One eighth of the cache is met by a search, and seven eighths are blocked.
    #[test]
    fn a_search_continues_behind_blocked_blocks() {
        let found = searches_behind(Evictability::Blocked, 1, &[4 * K], 0);
        assert!(found.is_some_and(|nth| nth > 1), "{found:?}");
        assert_eq!(searches_behind(Evictability::Never, 1, &[4 * K], 0), None);
    }

    #[test]
    fn a_search_for_groups_continues_behind_blocked_blocks() {
        let sizes = [4 * K, 8 * K];
        for of in [1, 2] {
            let found = searches_behind(Evictability::Blocked, of, &sizes, 1);
            assert!(found.is_some_and(|nth| nth > 1), "one in {of}: {found:?}");
            assert_eq!(searches_behind(Evictability::Never, of, &sizes, 1), None);
        }
    }

    /// If no group can go, room for a size comes from its own blocks, however warm they are.
    #[test]
    fn where_every_group_is_protected_blocks_of_the_size_go() {
        let sizes = BlockSizes::new(&[32 * K, 64 * K, 256 * K]).expect("right");
        let mut table = BlockTable::new(sizes, 64);
        for region in 0..64 * 8 - 4 {
            let (first, class) = (0, u8::from(region >= 63 * 8));
            let span = Span { first, class };
            table.allocate(0, region, span).expect("there is room");
        }
        let pairs: Vec<BlockId> = table.blocks().filter(|id| table.class(*id) == 1).collect();
        for id in &pairs {
            TwoSegments.used(&mut table, *id, 1, 1);
        }
        let mut ahead = VictimSelector::new(sizes, 64 * 8);
        ahead.ask(1);
        let look = |table: &BlockTable, id: BlockId| match (table.class(id) == 0
            && id.get() % 8 == 3)
            || id == pairs[0]
        {
            true => Evictability::Never,
            false => Evictability::Now,
        };
        let victims = ahead.pick(&TwoSegments, &mut table, look).leaving;
        assert_eq!(victims, pairs[1..]);
    }
}
