//! Rules of replacement for a simulated cache.

use forebay_policy::{
    BlockId, BlockTable, Evictability, GroupId, TwoLevel, TwoSegments, Victim, VictimSelector,
    Victims,
};

use super::adacache::AdaCache;

/// The rule by which a simulated cache chooses victims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replace {
    /// AdaCache's: see [`AdaCache`].
    Paper,
    /// The engine's: see [`TwoSegments`].
    #[default]
    Ours,
}

/// A rule in use for one table.
///
/// The owner of the table reports each block that it places, uses or removes.
#[derive(Debug)]
pub enum Replacer {
    /// See [`Replace::Paper`].
    Paper(AdaCache),
    /// See [`Replace::Ours`].
    Ours(TwoSegments),
}

impl Replacer {
    /// Returns the rule for an empty table.
    #[must_use]
    pub fn new(replace: Replace, table: &BlockTable) -> Self {
        match replace {
            Replace::Paper => Self::Paper(AdaCache::new(table)),
            Replace::Ours => Self::Ours(TwoSegments),
        }
    }

    /// Records that a block was placed.
    #[inline]
    pub fn placed(&mut self, table: &BlockTable, id: BlockId) {
        if let Self::Paper(rule) = self {
            rule.placed(table, id);
        }
    }

    /// Records a use of a block, as [`TwoLevel::used`] does.
    #[inline]
    pub fn used(&mut self, table: &mut BlockTable, id: BlockId, repeated: u64, granules: u32) {
        match self {
            Self::Paper(rule) => rule.used(table, id, repeated, granules),
            Self::Ours(rule) => rule.used(table, id, repeated, granules),
        }
    }

    /// Records that a block of a group was removed from the table.
    #[inline]
    pub fn removed(&mut self, table: &BlockTable, group: GroupId) {
        if let Self::Paper(rule) = self {
            rule.removed(table, group);
        }
    }

    /// Returns the victim that makes room for a block of `class`, as [`TwoLevel::victim`] does.
    #[must_use]
    pub fn victim(&self, table: &BlockTable, class: u8) -> Option<Victim> {
        match self {
            Self::Paper(rule) => rule.victim(table, class),
            Self::Ours(rule) => rule.victim(table, class),
        }
    }

    /// Selects a batch of blocks to evict ahead of need, as [`VictimSelector::pick`] does.
    pub fn pick(
        &self,
        ahead: &mut VictimSelector,
        table: &mut BlockTable,
        look: impl Fn(&BlockTable, BlockId) -> Evictability,
    ) -> Victims {
        match self {
            Self::Paper(rule) => ahead.pick(rule, table, look),
            Self::Ours(rule) => ahead.pick(rule, table, look),
        }
    }

    /// Returns the memory of the rule besides the table, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        match self {
            Self::Paper(rule) => rule.memory_bytes(),
            Self::Ours(_) => 0,
        }
    }
}
