//! `cargo bench --bench sums`: the cost that checksums add to a 4 KiB hit through `volume` and
//! `cache` on memory devices, one thread, the copy included.
//!
//! It measures a cache with checksums and one without in turns. Each pair of samples gives a
//! difference. The median of the differences counts. It prints JSON, which `cargo xtask bench
//! checksums` compares with its limit.

use std::time::Instant;

use forebay_benches::{Offsets, Stack, VOLUME_BYTES, hits};
use forebay_block::Result;
use forebay_io::{Engine, Reactor};
use serde_json::json;

/// Requests of one sample.
const SAMPLE: u64 = 50_000;
/// Pairs of samples of one row.
const PAIRS: usize = 25;

/// Rows: name, write or read, bytes of the working set. The processor's caches hold the small set
/// and not the large one.
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
