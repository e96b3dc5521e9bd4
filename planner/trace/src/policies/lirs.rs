//! LIRS: low inter-reference recency set.

use forebay_policy::BlockKey;

use super::ghosts::Keys;
use super::links::{Links, List, NONE};
use super::{LOOK_AT, Replacement, SlotId, first_evictable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    None,
    /// Of low inter-reference recency: on the stack, not in the queue.
    Lir,
    /// Of high inter-reference recency, on the stack and in the queue.
    HirOnStack,
    /// In the queue only.
    Hir,
}

/// Keeps blocks whose last two uses were close together (LIR). The others (HIR) pass through a
/// queue of a hundredth of the slots. A recency stack starts at the last use of the least recently
/// used LIR block. A HIR block that is used while on the stack becomes LIR, even if it was evicted
/// meanwhile. The LIR block at the stack's bottom then becomes HIR. From S. Jiang and X. Zhang,
/// "LIRS: An Efficient Low Inter-reference Recency Set Replacement Policy", SIGMETRICS 2002,
/// section 3. 64 to 76 bytes for each slot, including ghosts.
///
/// The paper does not limit the evicted blocks on the stack. Here the limit is the number of slots,
/// and the first evicted is dropped. New blocks become LIR while the LIR set fills for the first
/// time, and when removals leave it less than half full. With a larger bound, blocks evicted ahead
/// of need would make room in the set for the coldest blocks.
#[derive(Debug)]
pub struct Lirs {
    keys: Keys,
    stack_links: Links,
    stack: List,
    /// Links of slots in the queue, and of ghosts in the order of their eviction.
    queue_links: Links,
    queue: List,
    ghosts: List,
    states: Vec<State>,
    lir_len: usize,
    lir_limit: usize,
    ghosts_limit: usize,
    /// Whether a victim was chosen before: the LIR set is full.
    warm: bool,
}

impl Lirs {
    /// Returns the policy for slots `0..slots`.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        // One more, since the key of a ghost that is hit keeps its node until the insertion.
        let ghosts = slots + 1;
        Self {
            keys: Keys::new(slots, ghosts),
            stack_links: Links::new(slots + ghosts),
            stack: List::new(),
            queue_links: Links::new(slots + ghosts),
            queue: List::new(),
            ghosts: List::new(),
            states: vec![State::None; slots],
            lir_len: 0,
            lir_limit: slots.saturating_sub((slots / 100).max(1)),
            ghosts_limit: slots,
            warm: false,
        }
    }

    fn forget(&mut self, ghost: u32) {
        self.stack_links.unlink(&mut self.stack, ghost);
        self.queue_links.unlink(&mut self.ghosts, ghost);
        self.keys.forget(ghost);
    }

    /// Removes nodes other than LIR from the stack's bottom.
    fn prune(&mut self) {
        loop {
            let node = self.stack.oldest();
            if node == NONE {
                return;
            }
            if self.keys.is_ghost(node) {
                self.forget(node);
            } else if self.states[node as usize] == State::HirOnStack {
                self.stack_links.unlink(&mut self.stack, node);
                self.states[node as usize] = State::Hir;
            } else {
                return;
            }
        }
    }

    /// Makes a slot LIR that is in neither list. If there are too many then, the one at the bottom
    /// becomes HIR.
    fn make_lir(&mut self, slot: SlotId) {
        self.stack_links.push(&mut self.stack, slot);
        self.states[slot as usize] = State::Lir;
        self.lir_len += 1;
        if self.lir_len > self.lir_limit {
            let bottom = self.stack.oldest();
            self.drop_lir(bottom);
            self.states[bottom as usize] = State::Hir;
            self.queue_links.push(&mut self.queue, bottom);
        }
    }

    /// Removes a LIR slot from the stack.
    fn drop_lir(&mut self, slot: SlotId) {
        self.stack_links.unlink(&mut self.stack, slot);
        self.states[slot as usize] = State::None;
        self.lir_len -= 1;
        self.prune();
    }

    /// Pushes a HIR slot on the stack. Without LIR slots it would be pruned at once.
    fn push_hir(&mut self, slot: SlotId) {
        self.states[slot as usize] = if self.lir_len == 0 {
            State::Hir
        } else {
            self.stack_links.push(&mut self.stack, slot);
            State::HirOnStack
        };
    }

    fn evict_hir(
        &mut self,
        held: Option<u32>,
        evictable: &mut impl FnMut(SlotId) -> bool,
    ) -> Option<SlotId> {
        let slot = first_evictable(self.queue_links.iter(&self.queue), evictable)?;
        self.queue_links.unlink(&mut self.queue, slot);
        if std::mem::replace(&mut self.states[slot as usize], State::None) == State::HirOnStack {
            while self.ghosts.len() >= self.ghosts_limit + usize::from(held.is_some()) {
                let ghost = self.ghosts.oldest_but(held, &self.queue_links);
                self.forget(ghost);
            }
            let ghost = self.keys.remember(slot);
            self.stack_links.replace(&mut self.stack, slot, ghost);
            self.queue_links.push(&mut self.ghosts, ghost);
        }
        Some(slot)
    }

    /// Evicts a LIR slot if no HIR slot is evictable.
    fn evict_lir(&mut self, evictable: &mut impl FnMut(SlotId) -> bool) -> Option<SlotId> {
        let slot = self
            .stack_links
            .iter(&self.stack)
            .take(LOOK_AT)
            .find(|&node| {
                !self.keys.is_ghost(node)
                    && self.states[node as usize] == State::Lir
                    && evictable(node)
            })?;
        self.drop_lir(slot);
        Some(slot)
    }
}

impl Replacement for Lirs {
    fn insert(&mut self, slot: SlotId, key: BlockKey) {
        debug_assert_eq!(self.states[slot as usize], State::None);
        self.keys.set(slot, key);
        let filling = if self.warm {
            self.lir_len < self.lir_limit.div_ceil(2)
        } else {
            self.lir_len < self.lir_limit
        };
        if let Some(ghost) = self.keys.ghost(key) {
            self.forget(ghost);
            self.make_lir(slot);
        } else if filling {
            self.make_lir(slot);
        } else {
            self.push_hir(slot);
            self.queue_links.push(&mut self.queue, slot);
        }
    }

    fn touch(&mut self, slot: SlotId) {
        match self.states[slot as usize] {
            State::Lir => {
                let bottom = self.stack.oldest() == slot;
                self.stack_links.touch(&mut self.stack, slot);
                if bottom {
                    self.prune();
                }
            }
            State::HirOnStack => {
                self.queue_links.unlink(&mut self.queue, slot);
                self.stack_links.unlink(&mut self.stack, slot);
                self.make_lir(slot);
            }
            State::Hir => {
                self.queue_links.touch(&mut self.queue, slot);
                self.push_hir(slot);
            }
            State::None => unreachable!("slot {slot} is not in use"),
        }
    }

    fn remove(&mut self, slot: SlotId, _key: BlockKey) {
        match std::mem::replace(&mut self.states[slot as usize], State::None) {
            State::Lir => self.drop_lir(slot),
            State::HirOnStack => {
                self.queue_links.unlink(&mut self.queue, slot);
                self.stack_links.unlink(&mut self.stack, slot);
            }
            State::Hir => self.queue_links.unlink(&mut self.queue, slot),
            State::None => unreachable!("slot {slot} is not in use"),
        }
    }

    fn victim(
        &mut self,
        incoming: Option<BlockKey>,
        mut evictable: impl FnMut(SlotId) -> bool,
    ) -> Option<SlotId> {
        self.warm = true;
        let held = incoming.and_then(|key| self.keys.ghost(key));
        self.evict_hir(held, &mut evictable)
            .or_else(|| self.evict_lir(&mut evictable))
    }

    fn len(&self) -> usize {
        self.lir_len + self.queue.len()
    }

    fn memory_bytes(&self) -> usize {
        self.keys.memory_bytes()
            + self.stack_links.memory_bytes()
            + self.queue_links.memory_bytes()
            + self.states.capacity() * size_of::<State>()
    }
}
