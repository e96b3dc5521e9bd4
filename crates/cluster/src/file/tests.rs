use std::path::PathBuf;

use super::*;
use crate::server::{self, Server};
use crate::{Node, NodeId, Options};

/// A source and a pool in this process, with nodes that need no mount.
struct Bed {
    source: PathBuf,
    pool: PathBuf,
}

impl Bed {
    fn new(name: &str) -> Self {
        let id = std::process::id();
        let bed = Self {
            source: std::env::temp_dir().join(format!("forebay-file-{name}-{id}")),
            pool: PathBuf::from(format!("/dev/shm/forebay-file-{name}-{id}")),
        };
        std::fs::create_dir_all(&bed.source).expect("made");
        let options = server::Options::new(&bed.source, &bed.pool, 256);
        let directory = Server::open(options).expect("it opens");
        // It serves until this process ends.
        std::thread::spawn(move || directory.run());
        bed
    }

    fn node(&self, number: u8) -> Node {
        let id = NodeId::new(number).expect("a node");
        Node::join(Options::new(&self.pool, id, 100)).expect("it joins")
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.source);
        let _ = std::fs::remove_dir_all(&self.pool);
    }
}

/// What a node does that is killed while it makes a file shorter, before or after the tree has it so.
fn begin_to_cut(file: &File, size_bytes: u64, resized: bool) {
    let begun = file.sized(|tree| {
        tree.begin_cut(file.inode, tree.size_bytes(file.inode)?)?;
        match resized {
            true => tree.resize(file.inode, size_bytes),
            false => Ok(()),
        }
    });
    begun.expect("begun");
}

#[test]
fn what_a_killed_node_began_to_cut_off_is_zeroes() {
    const LEN: usize = 50_000;
    let bed = Bed::new("cut");
    let (one, two) = (bed.node(1), bed.node(2));
    let at_one = one.create("data").expect("made");
    let at_two = two.open("data").expect("there");
    let mut out = vec![0; LEN];
    let grow: [fn(&File); 4] = [
        |file| file.truncate(LEN as u64).expect("longer"),
        |file| file.write_at(LEN as u64 - 1, &[0]).expect("written"),
        |file| {
            file.append(&[0; LEN - 10_001]).expect("appended");
        },
        |file| {
            // Shorter still, and then long again.
            file.truncate(10_001 - 100).expect("shorter");
            file.write_at(10_001 - 100, &[8; 100]).expect("written");
            file.truncate(LEN as u64).expect("longer");
        },
    ];
    for grow in grow {
        at_one.truncate(0).expect("empty");
        at_one.write_at(0, &[8; LEN]).expect("written");
        assert_eq!(at_two.read_at(0, &mut out).expect("read"), LEN);
        begin_to_cut(&at_one, 10_001, true);
        assert_eq!(at_two.read_at(0, &mut out).expect("read"), 10_001);
        grow(&at_two);
        assert_eq!(at_one.read_at(0, &mut out).expect("read"), LEN);
        assert!(out[..10_001].iter().all(|byte| *byte == 8));
        assert!(out[10_001..].iter().all(|byte| *byte == 0));
    }
    // Nothing was cut off yet, and nothing is.
    at_one.write_at(0, &[7; LEN]).expect("written");
    begin_to_cut(&at_one, 10_001, false);
    at_two.write_at(LEN as u64, &[7]).expect("written");
    assert_eq!(at_one.read_at(0, &mut out).expect("read"), LEN);
    assert!(out.iter().all(|byte| *byte == 7));
    // It is done once.
    let left = at_two.sized(|tree| tree.begun_cut(at_two.inode));
    assert_eq!(left.expect("answers"), None);
}
