//! Eight published replacement policies behind one trait.
//!
//! Simulations, benchmarks and the comparison with libCacheSim use them. The engine replaces blocks
//! on two levels ([`forebay_policy::TwoLevel`]) and has none of these.
//!
//! A policy knows slots and the keys of the blocks in them. A policy keeps no time, draws no random
//! numbers and allocates nothing after its construction. The same calls give the same victims
//! everywhere. A ghost is the key of a block that was evicted. There are at most as many ghosts as
//! slots.

mod arc;
mod block_index;
mod block_set;
mod clock;
mod fifo;
mod ghosts;
mod links;
mod lirs;
mod lru;
mod lru_list;
mod s3fifo;
mod sieve;
mod sketch;
mod wtinylfu;

#[cfg(test)]
mod models;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use forebay_policy::BlockKey;

pub use arc::Arc;
pub use block_index::{BlockIndex, SlotId};
pub use block_set::BlockSet;
pub use clock::Clock;
pub use fifo::Fifo;
pub use lirs::Lirs;
pub use lru::Lru;
pub use lru_list::LruList;
pub use s3fifo::S3Fifo;
pub use sieve::Sieve;
pub use wtinylfu::WTinyLfu;

pub(crate) use links::{Links, List, NONE};

/// Most slots in each of a policy's lists that one call of [`Replacement::victim`] checks.
pub const LOOK_AT: usize = 128;

/// A replacement policy over slots `0..slots`. Each slot is in use (between
/// [`insert`](Self::insert) and its eviction or removal) or not.
pub trait Replacement {
    /// Records that a missed block was inserted into an unused slot.
    fn insert(&mut self, slot: SlotId, key: BlockKey);

    /// Records a hit of a slot in use.
    fn touch(&mut self, slot: SlotId);

    /// Removes a slot in use for a reason that says nothing about its worth, such as an
    /// invalidation. It leaves no ghost.
    fn remove(&mut self, slot: SlotId, key: BlockKey);

    /// Chooses the slot to evict. The slot is unused on return; a caller that keeps it must insert
    /// it afterwards.
    ///
    /// `incoming` is the missed block that needs the slot, if known: policies with ghosts learn
    /// from it. `evictable` refuses slots that cannot be evicted now (pinned, dirty); the next best
    /// one is taken then. Returns `None` if there is none, or if more than [`LOOK_AT`] slots were
    /// refused.
    fn victim(
        &mut self,
        incoming: Option<BlockKey>,
        evictable: impl FnMut(SlotId) -> bool,
    ) -> Option<SlotId>;

    /// Returns the number of slots in use.
    fn len(&self) -> usize;

    /// Returns whether no slot is in use.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the memory of the policy, bytes. It is constant.
    fn memory_bytes(&self) -> usize;
}

/// Returns the first evictable node of a list.
fn first_evictable(
    slots: impl Iterator<Item = SlotId>,
    evictable: &mut impl FnMut(SlotId) -> bool,
) -> Option<SlotId> {
    slots.take(LOOK_AT).find(|&slot| evictable(slot))
}

/// Declares the policies: their names, and the enum of their types.
macro_rules! policies {
    ($($policy:ident $name:literal $text:literal,)*) => {
        /// The name of a policy.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Policy {
            $(#[doc = $text] $policy,)*
        }

        impl Policy {
            /// All policies.
            pub const ALL: &[Self] = &[$(Self::$policy,)*];

            /// Returns the name for configurations and command lines.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$policy => $name,)*
                }
            }

            /// Returns the policy for slots `0..slots`.
            #[must_use]
            pub fn build(self, slots: usize) -> AnyPolicy {
                match self {
                    $(Self::$policy => AnyPolicy::$policy($policy::new(slots)),)*
                }
            }
        }

        /// One of the policies, chosen at run time.
        #[derive(Debug)]
        pub enum AnyPolicy {
            $(#[doc = $text] $policy($policy),)*
        }

        impl Replacement for AnyPolicy {
            #[inline]
            fn insert(&mut self, slot: SlotId, key: BlockKey) {
                match self {
                    $(Self::$policy(policy) => policy.insert(slot, key),)*
                }
            }

            #[inline]
            fn touch(&mut self, slot: SlotId) {
                match self {
                    $(Self::$policy(policy) => policy.touch(slot),)*
                }
            }

            fn remove(&mut self, slot: SlotId, key: BlockKey) {
                match self {
                    $(Self::$policy(policy) => policy.remove(slot, key),)*
                }
            }

            fn victim(
                &mut self,
                incoming: Option<BlockKey>,
                evictable: impl FnMut(SlotId) -> bool,
            ) -> Option<SlotId> {
                match self {
                    $(Self::$policy(policy) => policy.victim(incoming, evictable),)*
                }
            }

            fn len(&self) -> usize {
                match self {
                    $(Self::$policy(policy) => policy.len(),)*
                }
            }

            fn memory_bytes(&self) -> usize {
                match self {
                    $(Self::$policy(policy) => policy.memory_bytes(),)*
                }
            }
        }
    };
}

policies! {
    Lru "lru" "Least recently used.",
    Fifo "fifo" "First in, first out.",
    Clock "clock" "LRU by one bit a slot.",
    Arc "arc" "Adaptive replacement cache.",
    Lirs "lirs" "Low inter-reference recency set.",
    S3Fifo "s3fifo" "Three static queues.",
    Sieve "sieve" "A queue and a hand.",
    WTinyLfu "wtinylfu" "Admission by frequency behind a small window.",
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    /// Accepts capital letters and hyphens too, as in "S3-FIFO".
    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let plain = text.replace('-', "").to_ascii_lowercase();
        Self::ALL
            .iter()
            .copied()
            .find(|policy| policy.name() == plain)
            .ok_or_else(|| UnknownPolicy { name: text.into() })
    }
}

/// Error for an unknown name of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    /// The unknown name.
    pub name: String,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Policy::ALL.iter().map(|policy| policy.name()).collect();
        let (name, names) = (&self.name, names.join(", "));
        write!(
            f,
            "no replacement policy is called {name:?}: use one of {names}"
        )
    }
}

impl std::error::Error for UnknownPolicy {}
