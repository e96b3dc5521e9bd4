//! What goes when a block is to be placed and there is no room: replacement on two levels.

use super::table::{BlockId, BlockTable, GroupId};

/// What is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// One block; its slot takes another of its size.
    Block(BlockId),
    /// A group with all its blocks.
    Group(GroupId),
}

/// How victims are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TwoLevel {
    /// AdaCache, section III-D: the least recently used block if it has the wanted size, else the
    /// least recently used group.
    Paper,
    /// The least recently used block of the wanted size, if it has not been used for longer than
    /// most groups; else the group among the least recently used ones that holds least.
    #[default]
    Ours,
}

impl TwoLevel {
    /// What goes, so that a block of `class` can be placed; none if nothing is cached.
    #[must_use]
    pub fn victim(self, table: &BlockTable, class: u8) -> Option<Victim> {
        let coldest = table.coldest_blocks().next()?;
        match self {
            Self::Paper | Self::Ours => {
                if table.class(coldest) == class {
                    return Some(Victim::Block(coldest));
                }
                table.coldest_groups().next().map(Victim::Group)
            }
        }
    }
}
