//! The decoders of a volume's objects on any bytes: a substitute for the fuzzer that needs no
//! nightly compiler.

mod check;

use std::rc::Rc;

use bytes::Bytes;
use forebay_block::{BlockDeviceExt as _, Buf};
use forebay_io::rt;
use forebay_io::sim::Rng;
use forebay_object::store::Store;
use forebay_object::testing::MemoryStore;
use forebay_object::{Access, ObjectVolume, Options};
use proptest::prelude::*;

/// Returns the objects of a volume with a snapshot: one of each kind at least.
fn objects() -> Vec<(String, Bytes)> {
    rt::block_on_in_order(async {
        let store = Rc::new(MemoryStore::new());
        let options = Options {
            size_bytes: Some(1 << 22),
            ..Options::new(Access::Serve)
        };
        let shared = Rc::clone(&store) as Rc<dyn Store>;
        let volume = ObjectVolume::open(shared, options).await.expect("open");
        for (at, byte) in [(0, 1), (8192, 2), (1 << 21, 3)] {
            let data = Buf::copied(&[byte; 4096]);
            volume.write(at, data).await.expect("written");
        }
        volume.snapshot("one").await.expect("created");
        volume.discard(0, 4096).await.expect("discarded");
        volume.close().await.expect("closed");
        let listed = store.list("").await.expect("listed");
        let names = listed.into_iter().map(|it| it.name);
        names
            .map(|name| {
                let content = store.get(&name).expect("it is listed");
                (name, content)
            })
            .collect()
    })
}

#[test]
fn damaged_objects_with_good_checksums_are_no_panic() {
    let rng = Rng::new(1);
    let objects = objects();
    for kind in ["volume", "log/", "map/", "snapshots/"] {
        let found = objects.iter().find(|(name, _)| name.starts_with(kind));
        let (name, good) = found.expect(kind);
        assert_eq!(check::any_input(good), 1, "{name}");
    }
    let mut decoded = 0;
    for _ in 0..10_000 {
        let mut bytes = objects[rng.index(objects.len())].1.to_vec();
        for _ in 0..1 + rng.below(3) {
            let at = rng.index(bytes.len());
            match rng.below(4) {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes[at] = rng.draw() as u8,
                2 => bytes[at] = 0xff,
                _ => bytes.truncate(at.max(1)),
            }
        }
        decoded += check::any_input(&bytes);
    }
    // The checks behind the checksums are reached.
    assert!((100..9_900).contains(&decoded), "{decoded}");
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(
        kind in 0..4_usize,
        mut input in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let magics = [*b"FBOBJVOL", *b"FBOBJLOG", *b"FBOBJMAP"];
        if let (Some(magic), true) = (magics.get(kind), input.len() >= 16) {
            input[..8].copy_from_slice(magic);
            input[8..10].copy_from_slice(&1_u16.to_le_bytes());
        }
        check::any_input(&input);
    }
}
