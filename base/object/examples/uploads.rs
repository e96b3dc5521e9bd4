//! Uploaded bytes of a volume for each byte that is written to it, over a store in memory.
//!
//! Usage: `uploads [SIZE_MIB [WRITTEN_MIB]]`. The volume is filled once, which is not counted. Then
//! it is overwritten 4 KiB at a time, by data that do not compress, with a flush every 32 MiB.

use std::rc::Rc;
use std::time::Instant;

use forebay_block::{BlockDeviceExt as _, Buf, Result};
use forebay_io::rt;
use forebay_io::sim::Rng;
use forebay_object::testing::MemoryStore;
use forebay_object::{Access, ObjectVolume, Options};

const MIB: u64 = 1 << 20;
const BLOCK_BYTES: u64 = 4096;
const FLUSH_BYTES: u64 = 32 * MIB;

/// Choice of the next block.
enum Pattern {
    Uniform,
    /// Cumulative weights of the blocks, and their order.
    Zipf(Vec<f64>, Vec<u64>),
    Sequential,
}

impl Pattern {
    fn zipf(blocks: u64, exponent: f64, rng: &Rng) -> Self {
        let mut sum = 0.0;
        let weight = |rank: u64| ((rank + 1) as f64).powf(-exponent);
        let cumulative = (0..blocks).map(|rank| {
            sum += weight(rank);
            sum
        });
        let cumulative = cumulative.collect();
        let mut order: Vec<_> = (0..blocks).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, rng.index(at + 1));
        }
        Self::Zipf(cumulative, order)
    }

    fn block(&self, count: u64, blocks: u64, rng: &Rng) -> u64 {
        match self {
            Self::Uniform => rng.below(blocks),
            Self::Sequential => count % blocks,
            Self::Zipf(cumulative, order) => {
                let all = cumulative.last().copied().unwrap_or_default();
                let drawn = rng.draw() as f64 / u64::MAX as f64 * all;
                let rank = cumulative.partition_point(|sum| *sum < drawn);
                order[rank.min(order.len() - 1)]
            }
        }
    }
}

/// Returns data that do not compress.
fn noise(bytes: u64, rng: &Rng) -> Buf {
    let words = (0..bytes / 8).flat_map(|_| rng.draw().to_le_bytes());
    Buf::copied(&words.collect::<Vec<_>>())
}

async fn measure(name: &str, pattern: &Pattern, size: u64, written: u64) -> Result<()> {
    let store = Rc::new(MemoryStore::new());
    let options = Options {
        size_bytes: Some(size),
        ..Options::new(Access::Serve)
    };
    let volume = ObjectVolume::open(store, options).await?;
    let rng = Rng::new(1);
    for at in (0..size).step_by(MIB as usize) {
        volume.write(at, noise(MIB, &rng)).await?;
    }
    volume.flush().await?;
    let before = volume.usage();
    let begin = Instant::now();
    let mut most_stored = 0;
    for count in 0..written / BLOCK_BYTES {
        let block = pattern.block(count, size / BLOCK_BYTES, &rng);
        volume
            .write(block * BLOCK_BYTES, noise(BLOCK_BYTES, &rng))
            .await?;
        if (count + 1).is_multiple_of(FLUSH_BYTES / BLOCK_BYTES) {
            volume.flush().await?;
            most_stored = most_stored.max(volume.usage().stored_bytes);
        }
    }
    volume.flush().await?;
    let after = volume.usage();
    let uploaded = after.uploaded_bytes - before.uploaded_bytes;
    println!(
        "{name:<12} uploaded/written {:.3}  downloaded/written {:.3}  stored/size at most {:.2}  \
         creations {}  {:.0} MiB/s",
        uploaded as f64 / written as f64,
        (after.downloaded_bytes - before.downloaded_bytes) as f64 / written as f64,
        most_stored as f64 / size as f64,
        after.creations - before.creations,
        written as f64 / MIB as f64 / begin.elapsed().as_secs_f64(),
    );
    volume.close().await
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|it| it.parse::<u64>());
    let mut next = |default: u64| match arguments.next() {
        Some(Ok(value)) => value * MIB,
        _ => default * MIB,
    };
    let (size, written) = (next(1024), next(4096));
    let patterns = [
        ("uniform", Pattern::Uniform),
        (
            "zipf 0.99",
            Pattern::zipf(size / BLOCK_BYTES, 0.99, &Rng::new(2)),
        ),
        ("sequential", Pattern::Sequential),
    ];
    for (name, pattern) in patterns {
        rt::block_on_in_order(async move { measure(name, &pattern, size, written).await })?;
    }
    Ok(())
}
