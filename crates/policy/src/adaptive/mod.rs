//! Cache blocks of several sizes: cut, placed in groups, replaced on two levels (AdaCache, CLOUD'23).

mod cleaning;
mod footprint;
mod list;
mod recency;
mod replace;
mod sizes;
mod table;

pub use cleaning::clean_with;
pub use footprint::{Footprint, Worth};
pub use recency::Segment;
pub use replace::{TwoLevel, Victim};
pub use sizes::{BlockSizes, Span};
pub use table::{BlockId, BlockTable, GroupId};

#[cfg(test)]
mod tests;
