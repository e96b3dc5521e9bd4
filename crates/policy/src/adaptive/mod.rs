//! Cache blocks of several sizes: cut, placed in groups, replaced on two levels (AdaCache, CLOUD'23).

mod list;
mod replace;
mod sizes;
mod table;

pub use replace::{TwoLevel, Victim};
pub use sizes::{BlockSizes, Span};
pub use table::{BlockId, BlockTable, GroupId};

#[cfg(test)]
mod tests;
