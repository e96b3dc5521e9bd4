//! `cargo bench --bench sums`: what checksums add to a 4 KiB hit through `volume` and `cache` on memory devices, one
//! thread, the copy included.
//!
//! Two caches, one with checksums and one without, are asked in turns; each pair of samples gives a difference, and the
//! median of these counts. Prints JSON: `cargo xtask bench checksums` holds it against its bar.

use std::time::Instant;

use forebay_benches::{Offsets, Stack, VOLUME_BYTES, hits};
use forebay_block::Result;
use forebay_io::{Engine, Reactor};
use serde_json::json;

/// Requests of one sample.
const SAMPLE: u64 = 50_000;
/// Pairs of samples of one row.
const PAIRS: usize = 25;

/// What is measured, whether it writes, and over how many bytes: a set that the processor's caches hold, and one that they do not.
const ROWS: [(&str, bool, u64); 4] = [
    ("read", false, 1 << 18),
    ("write", true, 1 << 18),
    ("read", false, VOLUME_BYTES),
    ("write", true, VOLUME_BYTES),
];

fn main() -> Result<()> {
    Reactor::new(Engine::Threads)?.run(async {
        let stacks = [Stack::with(false).await?, Stack::with(true).await?];
        let devices = stacks.each_ref().map(|stack| stack.volume.handle().open());
        let mut rows = Vec::new();
        for (op, write, set_bytes) in ROWS {
            let mut offsets = Offsets::over(set_bytes);
            let mut pairs = Vec::with_capacity(PAIRS);
            // The first pair finds the caches cold.
            for pair in 0..=PAIRS {
                let mut each_ns = [0.0; 2];
                for turn in 0..2 {
                    let which = (pair + turn) % 2;
                    let began = Instant::now();
                    hits(&devices[which], write, SAMPLE, &mut offsets).await?;
                    each_ns[which] = began.elapsed().as_nanos() as f64 / SAMPLE as f64;
                }
                pairs.push(each_ns);
            }
            rows.push(json!({ "op": op, "set_bytes": set_bytes, "pairs_ns": pairs[1..] }));
        }
        println!("{}", json!(rows));
        Ok(())
    })
}
