//! Nodes that may have written pages that no frame holds: half a word of the first header, with one
//! bit for each node. So a node sends no message to find that there are none.

use std::sync::atomic::Ordering;

use super::{RELAXED, Segment};
use crate::message::NodeId;

impl Segment {
    /// Notes whether a node may leave whole pages unpublished. The node must call it before its
    /// first write.
    pub fn set_relaxed(&self, node: NodeId, is_relaxed: bool) {
        let (word, bit) = (self.word(0, RELAXED), u64::from(node.bit()));
        match is_relaxed {
            true => word.fetch_or(bit, Ordering::SeqCst),
            false => word.fetch_and(!bit, Ordering::SeqCst),
        };
        self.drop_header(0);
    }

    /// Returns whether other nodes than this one may have unpublished pages.
    #[must_use]
    pub fn others_are_relaxed(&self, node: NodeId) -> bool {
        self.drop_header(0);
        let relaxed = self.word(0, RELAXED).load(Ordering::SeqCst);
        relaxed & u64::from(!node.bit()) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_block::Buf;

    #[test]
    fn a_node_is_relaxed_until_its_death_or_its_next_join() {
        let memory = Buf::zeroed(Segment::size_bytes(2, 64));
        let segment = Segment::new(memory, 2, 64).expect("it fits");
        let [one, two] = [1, 31].map(|number| NodeId::new(number).expect("a node"));
        segment.set_relaxed(one, true);
        assert!(!segment.others_are_relaxed(one) && segment.others_are_relaxed(two));
        segment.set_relaxed(two, true);
        segment.set_relaxed(one, false);
        assert!(segment.others_are_relaxed(one) && !segment.others_are_relaxed(two));
        segment.end_stores(two);
        assert!(!segment.others_are_relaxed(one));
    }
}
