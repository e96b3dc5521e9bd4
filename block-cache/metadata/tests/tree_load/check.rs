//! Checks of the bit-tree's load path, for any content of media. The fuzzer and the tests share it.

#[path = "../log_replay/bytes.rs"]
mod bytes;

use std::rc::Rc;
use std::time::Duration;

use forebay_mapperx::{Adjuster, Adjustment};
use forebay_metadata::Seed;
use forebay_metadata::tree::{
    Loaded, Plane, Shape, TreeExtent, TreeOptions, TreeWriter, format, load,
};

use bytes::{Bytes, now};

const SECTOR: usize = 512;
/// Dirty blocks, in a volume of 4096 blocks.
const DIRTY: [u64; 5] = [0, 17, 1200, 1203, 4095];

fn extent(unit_bytes: u32) -> TreeExtent {
    TreeExtent {
        offset: 0,
        unit_bytes,
        volume: 1,
        plane: Plane::Dirty,
        shape: Shape::covering(4096, 4, 6).expect("valid"),
    }
}

const OPTIONS: TreeOptions = TreeOptions { sla_nines: 0.5 };

/// Images of media, from the first to the last, in the last of which `DIRTY` is dirty.
fn images(extent: TreeExtent) -> Vec<Vec<u8>> {
    let seed = Seed::new(&[5; 16]);
    let device = Bytes::new(vec![0; extent.bytes() as usize]);
    now(format(&device, extent, seed, 1)).expect("nothing fails");
    let writer = TreeWriter::formatted(
        Rc::new(device.clone()),
        extent,
        seed,
        1,
        OPTIONS,
        Adjustment::Paper.adjuster(extent.shape),
    );
    let mut images = vec![device.0.borrow().clone()];
    for (nth, block) in (1..).zip(DIRTY) {
        now(writer.mark(block..block + 1)).expect("nothing fails");
        images.push(device.0.borrow().clone());
        now(writer.tick(Duration::from_secs(nth), nth * 100, nth)).expect("nothing fails");
        images.push(device.0.borrow().clone());
    }
    images
}

/// Damages media as `data` says, and loads it.
///
/// # Panics
/// If what is dirty is taken for clean, or the load path has another fault.
pub(crate) fn any_input(data: &[u8]) {
    let Some((&how, edits)) = data.split_first() else {
        return;
    };
    let extent = extent(512 << (how % 4));
    let images = images(extent);
    let mut image = images.last().expect("there are some").clone();
    let sectors = image.len() / SECTOR;
    // Whether a copy of a sector that was overwritten long ago comes back, which no device may do.
    let mut impossible = false;
    for edit in edits.chunks_exact(4) {
        let at = edit[0] as usize % sectors * SECTOR;
        let number = u16::from_le_bytes([edit[2], edit[3]]) as usize;
        let sector = &mut image[at..at + SECTOR];
        match edit[1] % 4 {
            0 => sector[number / 8 % SECTOR] ^= 1 << (number % 8),
            1 => sector.fill(edit[2]),
            2 => sector[number % SECTOR..].fill(edit[3]),
            _ => {
                impossible = true;
                sector.copy_from_slice(&images[number % images.len()][at..at + SECTOR]);
            }
        }
    }
    let adjustment = if how & 4 == 0 {
        Adjustment::Paper
    } else {
        Adjustment::Priced
    };
    let device = Bytes::new(image);
    let seed = Seed::new(&[5; 16]);
    let open = |epoch| {
        let adjuster = adjustment.adjuster(extent.shape);
        now(load(&device, extent, seed, epoch, OPTIONS, adjuster)).expect("damage is no error")
    };
    let covered = |loaded: &Loaded<Adjuster>| -> Vec<u64> {
        let blocks = 0..4096;
        blocks
            .filter(|block| loaded.tree.may_be_dirty(*block..block + 1))
            .collect()
    };
    let first = open(2);
    let found = covered(&first);
    if !impossible {
        for block in DIRTY {
            assert!(
                found.contains(&block),
                "block {block} was dirty: {:?}",
                first.report
            );
        }
    }
    // The repaired tree is whole, and has the same content.
    let second = open(3);
    assert_eq!(second.report.lost_units, 0, "{:?}", second.report);
    assert_eq!(covered(&second), found);
    // And it can be gone on with.
    let writer = TreeWriter::new(Rc::new(device.clone()), extent, seed, second);
    for block in &found {
        now(writer.mark(*block..block + 1)).expect("nothing fails");
        writer.tree().clear(*block..block + 1);
    }
    now(writer.mark(77..78)).expect("nothing fails");
    now(writer.close()).expect("nothing fails");
    assert_eq!(covered(&open(4)), [77]);
}
