//! Pure decisions: slots of blocks, victims, admission, and order of write-back.
//!
//! There is no I/O, no clock and no thread. The engine, the simulator and the crash tests run this
//! same code.

mod adaptive;
mod admission;
mod bits;
mod block_key;
pub mod cleaning;
mod dirty_order;
mod hit_split;
mod measured;

#[cfg(feature = "decisions")]
pub use adaptive::take_decisions;
pub use adaptive::{
    BlockId, BlockSizes, BlockTable, ColdestGroups, Decision, Evictability, Footprint, GroupId,
    GroupOrder, Misplaced, Segment, Slot, Span, TwoLevel, TwoSegments, Victim, VictimSelector,
    Victims, Worth, clean_with,
};
pub use admission::{Promotion, PromotionFilter, SequentialDetector};
pub use block_key::BlockKey;
pub use dirty_order::DirtyOrder;
pub use hit_split::Split;
pub use measured::{Measured, Route};
