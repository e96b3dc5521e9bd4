//! Cache blocks of several sizes: cut, placed in groups, replaced on two levels (AdaCache, CLOUD'23).
//!
//! One question a file: `sizes` what blocks a missed range becomes, `table` where they are and lie, `recency`
//! how lately they were used, `replace` what goes, `ahead` when, `footprint` what else comes, `worth` at what price, `cleaning` what is written
//! back with a victim. The engine and the simulator ask in the same order: find, note the use, on a read
//! miss ask the footprint, cut, name victims, allocate; and tell the footprint of every block that goes.

mod ahead;
mod cleaning;
mod decisions;
mod footprint;
mod list;
mod recency;
mod replace;
mod sizes;
mod table;
mod worth;

pub use ahead::{Ahead, Leave, Picked};
pub use cleaning::clean_with;
pub use decisions::Decision;
#[cfg(feature = "decisions")]
pub use decisions::take_decisions;
pub use footprint::Footprint;
pub use recency::Segment;
pub use replace::{ColdestGroups, GroupOrder, TwoLevel, TwoSegments, Victim};
pub use sizes::{BlockSizes, Span};
pub use table::{BlockId, BlockTable, GroupId, Misplaced};
pub use worth::Worth;

#[cfg(test)]
mod tests;
