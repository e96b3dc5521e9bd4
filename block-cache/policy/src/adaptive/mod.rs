//! Cache blocks of several sizes: cut, placed in groups, replaced on two levels (AdaCache,
//! CLOUD'23).
//!
//! - `sizes`: cuts a missed range into blocks.
//! - `table`: finds blocks and places them.
//! - `recency`: orders blocks by their last use.
//! - `replace`: chooses a victim when there is no room.
//! - `victims`: decides when to evict ahead of need, and names the victims of a batch.
//! - `footprint`: chooses read-ahead, at the price of `worth`.
//! - `cleaning`: chooses blocks to write back with a victim.
//!
//! The engine and the simulator call these in the same order: find, note the use, footprint (on a
//! read miss), cut, name victims, allocate. They report every evicted block to the footprint.

mod cleaning;
mod decisions;
mod footprint;
mod ids;
mod list;
mod recency;
mod replace;
mod segment;
mod sizes;
mod table;
mod victims;
mod worth;

pub use cleaning::clean_with;
pub use decisions::Decision;
#[cfg(feature = "decisions")]
pub use decisions::take_decisions;
pub use footprint::Footprint;
pub use ids::{BlockId, Slot};
pub use replace::{ColdestGroups, GroupOrder, TwoLevel, TwoSegments, Victim};
pub use segment::Segment;
pub use sizes::{BlockSizes, Span};
pub use table::{BlockTable, GroupId, Misplaced};
pub use victims::{Evictability, VictimSelector, Victims};
pub use worth::Worth;

#[cfg(test)]
mod tests;
