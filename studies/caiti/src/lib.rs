//! The policies of a transit cache that Caiti (JSA'24) is compared with.
//!
//! The product's policy is [`Policy::CAITI`](forebay_transit::Policy::CAITI). The study of Caiti
//! runs it beside these, and a configuration may name them, too. The unit tests of
//! `forebay-transit` include the modules of this crate by path.

mod comparators;

use forebay_transit::policy;

pub use comparators::{
    ALL, CAITI_WITHOUT_BYPASS, CAITI_WITHOUT_EVICTION, CO_ACTIVE, LRU, PMBD, PMBD_70, named,
};
