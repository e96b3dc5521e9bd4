//! Nodes that share a device, with a directory in this process.

use std::path::{Path, PathBuf};

use forebay_device::file::{FileDevice, FileDeviceOptions};

use super::*;
use crate::NodeId;
use crate::server::{self, Server};

/// Bytes of the device; its last page is half a page.
const BYTES: u64 = 64 * PAGE_BYTES as u64 + 2048;

/// A pool and an image.
struct Bed {
    pool: PathBuf,
    image: PathBuf,
}

impl Bed {
    fn new(name: &str) -> Self {
        let id = std::process::id();
        let pool = PathBuf::from(format!("/dev/shm/forebay-device-{name}-{id}"));
        let image = std::env::temp_dir().join(format!("forebay-device-{name}-{id}"));
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at / 512) as u8).collect();
        std::fs::write(&image, bytes).expect("written");
        Self { pool, image }
    }

    fn options(&self, pages: u32) -> server::Options {
        server::Options::new(&self.image, &self.pool, pages)
    }

    fn join(&self, number: u8) -> Result<DeviceNode> {
        let id = NodeId::new(number).expect("few");
        let options = Options::new(&self.pool, id, 16);
        DeviceNode::join(options, InFlight::Ends, async |source: PathBuf| {
            open(&source)
        })
    }
}

fn open(image: &Path) -> Result<Rc<dyn BlockDevice>> {
    FileDevice::open(image, FileDeviceOptions::default())
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.pool);
        let _ = std::fs::remove_file(&self.image);
    }
}

#[test]
fn a_device_is_one_for_all_nodes() {
    let bed = Bed::new("one");
    let server = Server::open(bed.options(64)).expect("it opens");
    std::thread::spawn(move || server.run());
    let (a, b) = (bed.join(1).expect("it joins"), bed.join(2).expect("too"));
    assert_eq!(a.size_bytes(), BYTES);
    let stored = std::fs::read(&bed.image).expect("read");
    // More than all the memory: pages are evicted and read again.
    for node in [&a, &b] {
        let mut all = vec![0; BYTES as usize + 100];
        assert_eq!(node.read_at(0, &mut all).expect("read"), BYTES as usize);
        assert_eq!(all[..BYTES as usize], stored[..]);
    }
    a.write_at(5000, &[0xaa; 9000]).expect("written");
    let mut out = [0; 9002];
    assert_eq!(b.read_at(4999, &mut out).expect("read"), out.len());
    assert_eq!((out[0], out[1], out[9000]), (9, 0xaa, 0xaa));
    let before = b.counts().misses;
    let view = b.map(2).expect("mapped");
    let mut word = [0; 8];
    view.load(0, &mut word);
    drop(view);
    assert_eq!((word, b.counts().misses), ([0xaa; 8], before));
    b.write_at(BYTES - 8, &[0xbb; 8]).expect("up to the end");
    a.fsync().expect("durable");
    b.fsync().expect("durable");
    let stored = std::fs::read(&bed.image).expect("read");
    assert_eq!(stored.len() as u64, BYTES, "it has not grown");
    assert!(stored[5000..14000].iter().all(|byte| *byte == 0xaa));
    assert_eq!(stored[stored.len() - 8..], [0xbb; 8]);
    for refused in [
        a.write_at(BYTES - 7, &[0; 8]).expect_err("behind the end"),
        a.write_at(u64::MAX, &[0; 8]).expect_err("far behind it"),
        a.map(65).map(drop).expect_err("behind the end"),
    ] {
        assert_eq!(refused.kind(), ErrorKind::OutOfRange);
    }
    assert_eq!(a.read_at(BYTES, &mut out).expect("nothing"), 0);
}

#[test]
fn a_device_is_no_tree_and_says_so() {
    let bed = Bed::new("no-tree");
    let mut mapped = bed.options(64);
    mapped.mapped.push(PathBuf::from("db"));
    let refused = Server::open(mapped).expect_err("it has no directories");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused:?}");
    let mut placed = bed.options(64);
    placed.placement = Some(crate::Placement::Pool);
    let refused = Server::open(placed).expect_err("not for devices");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused:?}");
    let server = Server::open(bed.options(64)).expect("it opens");
    std::thread::spawn(move || server.run());
    let tree = Options::new(&bed.pool, NodeId::new(1).expect("one"), 16);
    let refused = crate::Node::join(tree).expect_err("there are no files");
    assert!(refused.report().contains("DeviceNode"), "{refused:?}");
    let id = NodeId::new(2).expect("two");
    let missing = DeviceNode::join(
        Options::new(&bed.pool, id, 16),
        InFlight::Ends,
        async |_| open(Path::new("/nowhere/at all")),
    );
    let refused = missing.expect_err("there is no such device");
    assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused:?}");
}

#[test]
fn a_source_with_a_server_behind_it_is_read_and_not_written() {
    let bed = Bed::new("fence");
    let server = Server::open(bed.options(64)).expect("it opens");
    std::thread::spawn(move || server.run());
    let options = |number| Options::new(&bed.pool, NodeId::new(number).expect("few"), 16);
    let way = async |source: PathBuf| open(&source);
    let writer = bed.join(1).expect("the image is of this machine");
    assert_eq!(writer.read_only(), None);
    writer.write_at(0, &[1; 8]).expect("written");
    let refused = DeviceNode::join(options(2), InFlight::MayLand, way);
    let refused = refused.expect_err("others write");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused:?}");
    assert!(refused.report().contains("by its path"), "{refused:?}");
    drop(writer);
    let remote = |_: &Path| Some("nbd0 is on a server".into());
    for (number, in_flight) in [(3, InFlight::MayLand), (4, InFlight::Ends)] {
        let reader = DeviceNode::join_fenced(options(number), in_flight, remote, way);
        let reader = reader.expect("it may read");
        let mut out = [0; 8];
        reader.read_at(0, &mut out).expect("read");
        assert_eq!(out, [1; 8]);
        let refused = reader.write_at(0, &[2; 8]).expect_err("it may not write");
        assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused:?}");
        assert!(refused.report().contains("nbd0"), "{refused:?}");
        reader.fsync().expect("there is nothing to flush");
    }
}
