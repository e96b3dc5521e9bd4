//! Number of times that a file was made shorter. A write compares it before and after: the size
//! alone does not say that the file was shorter meanwhile.
//!
//! The number is the upper half of the last word of each header. A file uses the header to which
//! its inode hashes. Two files may share one, which costs only time.

use std::sync::atomic::{Ordering, fence};

use super::{RELAXED, Segment};

const CUTS: usize = RELAXED;
const SHIFT: u32 = 32;

impl Segment {
    /// Returns the number of truncations of a file, and of those that share its word. Two calls
    /// with the same result show that no truncation has removed a part of the stores between them.
    /// For that, the file must be long enough after the stores and before the second call.
    #[must_use]
    pub fn cuts(&self, inode: u64) -> u64 {
        let header = self.alone_word(inode);
        fence(Ordering::SeqCst);
        self.drop_header(header);
        self.word(header, CUTS).load(Ordering::SeqCst) >> SHIFT
    }

    /// Counts a truncation, before the file may become longer.
    pub fn count_cut(&self, inode: u64) {
        let header = self.alone_word(inode);
        self.word(header, CUTS)
            .fetch_add(1 << SHIFT, Ordering::SeqCst);
        self.drop_header(header);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::NodeId;
    use forebay_block::Buf;

    #[test]
    fn truncations_are_counted_by_file_beside_the_relaxed_nodes() {
        let memory = Buf::zeroed(Segment::size_bytes(2, 64));
        let segment = Segment::new(memory, 2, 64).expect("it fits");
        let of_header = |header| (1..).find(|inode| segment.alone_word(*inode) == header);
        let files = [0, 1].map(|header| of_header(header).expect("some inode"));
        let [one, two] = [1, 31].map(|number| NodeId::new(number).expect("a node"));
        segment.set_relaxed(two, true);
        for count in 1..10 {
            segment.count_cut(files[0]);
            assert_eq!(files.map(|inode| segment.cuts(inode)), [count, 0]);
            assert!(segment.others_are_relaxed(one) && !segment.others_are_relaxed(two));
        }
        segment.set_relaxed(two, false);
        segment.end_stores(one);
        assert_eq!(files.map(|inode| segment.cuts(inode)), [9, 0]);
    }
}
