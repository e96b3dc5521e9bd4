//! Exclusive use of a file: a word by which nodes exclude each other without a message, as long as
//! they do not meet.
//!
//! There is one word in each frame's header. A file uses the word to which its inode hashes. Two
//! files may share one, which costs only time. A word names the node that has it, and says whether
//! another one waits. A node that finds it taken or waited for requests the lock of the file from
//! the directory, which grants it in order of arrival. The holder of that lock waits for the word,
//! and no node overtakes it.

use std::sync::atomic::Ordering;

use super::{ALONE, Segment, WRITER, writer};
use crate::fault::Fault;
use crate::message::NodeId;

/// A node waits: later ones must queue at the directory.
const WANTED: u64 = WRITER + 1;

impl Segment {
    /// Returns the number of a file's word.
    #[must_use]
    pub fn alone_word(&self, inode: u64) -> u32 {
        let mixed = inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        u32::try_from(mixed % u64::from(self.frames)).expect("below a number of 32 bits")
    }

    /// Takes a word if no node has it or waits for it. Returns whether it did.
    #[must_use]
    pub fn take_alone(&self, word: u32, node: NodeId) -> bool {
        let taken = self.word(word, ALONE).compare_exchange(
            0,
            u64::from(node.number()) + 1,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        self.drop_header(word);
        taken.is_ok()
    }

    /// Takes a word for a node with the directory's lock of the file, or marks it as waited for;
    /// then the caller must try again. Returns whether it took the word.
    #[must_use]
    pub fn take_awaited(&self, word: u32, node: NodeId) -> bool {
        let taken = u64::from(node.number()) + 1;
        let free = |found| writer(found).is_none() || self.faults.has(Fault::TakeTaken);
        let step = |found| Some(if free(found) { taken } else { found | WANTED });
        let at = self.word(word, ALONE);
        let found = at.fetch_update(Ordering::Acquire, Ordering::Relaxed, step);
        self.drop_header(word);
        found.is_ok_and(free)
    }

    /// Releases a word of this node.
    pub fn leave_alone(&self, word: u32) {
        self.word(word, ALONE).fetch_and(!WRITER, Ordering::Release);
        self.drop_header(word);
    }

    /// Releases a word if the dead node has it.
    pub(super) fn end_alone(&self, word: u32, dead: NodeId) {
        let has = writer(self.word(word, ALONE).load(Ordering::Acquire)) == Some(dead);
        if has && !self.faults.has(Fault::KeepDeadAlone) {
            self.leave_alone(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_block::Buf;

    fn node(number: u8) -> NodeId {
        NodeId::new(number).expect("below the most")
    }

    fn segment() -> Segment {
        let memory = Buf::zeroed(Segment::size_bytes(2, 64));
        Segment::new(memory, 2, 64).expect("it fits")
    }

    #[test]
    fn one_node_has_a_word_and_none_overtakes_a_waiting_one() {
        let segment = segment();
        assert!(segment.take_alone(1, node(0)));
        assert!(!segment.take_alone(1, node(1)));
        assert!(segment.take_alone(0, node(1)), "another word");
        assert!(!segment.take_awaited(1, node(2)));
        segment.leave_alone(1);
        assert!(!segment.take_alone(1, node(0)), "node 2 waits");
        assert!(segment.take_awaited(1, node(2)));
        assert!(!segment.take_alone(1, node(0)));
        segment.leave_alone(1);
        assert!(segment.take_alone(1, node(0)), "nobody waits any more");
    }

    #[test]
    fn a_dead_node_has_no_word_and_a_living_one_keeps_its_own() {
        let segment = segment();
        assert!(segment.take_alone(0, node(3)) && segment.take_alone(1, node(4)));
        assert!(!segment.take_awaited(0, node(1)));
        segment.end_stores(node(3));
        assert!(segment.take_awaited(0, node(1)));
        assert!(!segment.take_alone(1, node(1)));
    }
}
