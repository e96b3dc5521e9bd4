//! Truncation while nodes have pages that no frame holds.

use super::*;
use crate::Consistency;

/// Numbers of frames with which a truncation looks at all frames, and looks up single pages.
const FRAMES: [u32; 2] = [256, 4096];
const PAGES: usize = 3;
const LEN: usize = PAGES * PAGE_BYTES;

/// Two relaxed nodes.
fn nodes(bed: &Bed) -> [Node; 2] {
    [1, 2].map(|number| {
        let id = NodeId::new(number).expect("a node");
        let mut options = Options::new(&bed.pool, id, 50);
        options.consistency = Consistency::Relaxed;
        options.unpublished_pages = 16;
        Node::join(options).expect("it joins")
    })
}

/// The same new file, open on each node. No page of it is in memory.
fn open(nodes: &[Node; 2], name: &str) -> [File; 2] {
    nodes
        .each_ref()
        .map(|node| node.create(name).expect("it opens"))
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0xff; LEN + 1];
    let len = file.read_at(0, &mut bytes).expect("read");
    bytes.truncate(len);
    bytes
}

#[test]
fn removed_data_that_another_node_has_alone_does_not_return() {
    for frames in FRAMES {
        let bed = Bed::of_pages(&format!("alone-{frames}"), &[], frames);
        let nodes = nodes(&bed);
        for size_bytes in [0, 10, PAGE_BYTES + 10, 2 * PAGE_BYTES] {
            for is_interrupted in [false, true] {
                let [mine, other] = open(&nodes, &format!("{size_bytes}-{is_interrupted}"));
                mine.write_at(0, &[9; LEN]).expect("written");
                let seen = other.node.client().segment();
                let named = (0..frames).filter_map(|frame| seen.page_in(frame));
                let named = named.filter(|page| page.inode == other.inode).count();
                assert_eq!(named, 0, "the pages are with their writer");
                match is_interrupted {
                    false => other.truncate(size_bytes as u64).expect("shorter"),
                    true => begin_to_cut(&other, size_bytes as u64, true),
                }
                other.truncate(LEN as u64).expect("longer");
                mine.fsync().expect("durable");
                let mut expected = [0; LEN];
                expected[..size_bytes].fill(9);
                for file in [&mine, &other] {
                    let found = content(file);
                    let nines = found.iter().filter(|byte| **byte == 9).count();
                    assert!(
                        found == expected,
                        "{nines} bytes of {size_bytes}, {frames} frames"
                    );
                }
            }
        }
    }
}

#[test]
fn zeroes_of_a_truncation_do_not_replace_later_writes() {
    for frames in FRAMES {
        let bed = Bed::of_pages(&format!("zeroes-{frames}"), &[], frames);
        let nodes = nodes(&bed);
        let [mine, other] = open(&nodes, "whole");
        mine.write_at(0, &[9; LEN]).expect("written");
        mine.fsync().expect("durable");
        other.truncate(0).expect("empty");
        mine.write_at(0, &[7; LEN]).expect("written");
        mine.fsync().expect("durable");
        other.fsync().expect("durable");
        assert!(content(&mine) == [7; LEN], "{frames} frames");
        // The rest of the last page.
        let [mine, other] = open(&nodes, "part");
        other.write_at(0, &[5; LEN]).expect("written");
        other.truncate(10).expect("shorter");
        mine.write_at(10, &[6; 100]).expect("written");
        mine.fsync().expect("durable");
        other.fsync().expect("durable");
        let found = content(&mine);
        let expected = [&[5; 10][..], &[6; 100][..]].concat();
        assert!(found == expected, "{frames} frames: {found:x?}");
    }
}
