//! The MapperX paper's Algorithm 1 (ATC'21), as an adjuster of Forebay's bit-tree.
//!
//! Forebay adjusts its trees by a price ([`forebay_metadata::tree::Priced`]). The study of MapperX
//! compares the two, and the tests of the tree run with both. The unit tests of `forebay-metadata`
//! include the modules of this crate by path.

mod adjuster;
mod algorithm1;

use forebay_metadata::tree;

pub use adjuster::{Adjuster, Adjustment};
pub use algorithm1::Algorithm1;
