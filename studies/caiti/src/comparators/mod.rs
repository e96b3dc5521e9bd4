//! The policies by name.

mod co_active;
mod lru;
mod pmbd;
mod pmbd_70;
mod without_bypass;
mod without_eviction;

use forebay_block::{Error, ErrorKind};

use crate::policy::Policy;

/// As Caiti, but nothing is evicted before a flush.
pub const CAITI_WITHOUT_EVICTION: Policy = Policy::new("caiti-without-eviction", |_| {
    Box::new(without_eviction::WithoutEviction)
});
/// As Caiti, but a write that finds no free slot waits for one.
pub const CAITI_WITHOUT_BYPASS: Policy = Policy::new("caiti-without-bypass", |_| {
    Box::new(without_bypass::WithoutBypass)
});
/// The least recently used block makes room for a write that finds none.
pub const LRU: Policy = Policy::new("lru", |slots| Box::new(lru::Lru::new(slots)));
/// Sub-buffers that are emptied when they are full. Writes to one wait until it is empty.
pub const PMBD: Policy = Policy::new("pmbd", |slots| Box::new(pmbd::Pmbd::new(slots)));
/// Sub-buffers that are emptied in the background from 70% on.
pub const PMBD_70: Policy = Policy::new("pmbd-70", |slots| Box::new(pmbd_70::Pmbd70::new(slots)));
/// Hot and cold, dirty and clean blocks. Cold dirty ones are written while the device is idle.
pub const CO_ACTIVE: Policy = Policy::new("co-active", |slots| {
    Box::new(co_active::CoActive::new(slots))
});

/// All policies, Caiti first.
pub const ALL: [Policy; 7] = [
    Policy::CAITI,
    CAITI_WITHOUT_EVICTION,
    CAITI_WITHOUT_BYPASS,
    LRU,
    PMBD,
    PMBD_70,
    CO_ACTIVE,
];

/// Returns the policy of this name.
///
/// # Errors
/// `InvalidInput` if there is none.
pub fn named(text: &str) -> Result<Policy, Error> {
    let found = ALL.into_iter().find(|one| one.as_str() == text);
    found.ok_or_else(|| {
        let names = ALL.map(Policy::as_str).join(", ");
        Error::new(
            ErrorKind::InvalidInput,
            format!("there is no policy {text:?}: use one of {names}"),
        )
    })
}
