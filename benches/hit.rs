//! `cargo bench --bench hit`: a 4 KiB hit through `volume` and `cache` on memory devices, one
//! thread, the copy included.
//!
//! With `--op read|write --requests N` it runs that many and prints nothing. callgrind counts the
//! same instructions in each such run (`cargo xtask bench engine`). The clock stands still there,
//! so that no background work is counted by chance.

use std::time::Instant;

use forebay_benches::{Offsets, Stack, VOLUME_BYTES, hits};
use forebay_block::Result;
use forebay_io::{Engine, Reactor, rt};

/// Requests of one sample.
const SAMPLE: u64 = 100_000;
/// Samples of one row. The median counts.
const SAMPLES: usize = 15;

/// Rows: name, write or read, bytes of the working set. The processor's caches hold the small set,
/// so that the engine costs most. They do not hold the large one, where half of the time is waiting
/// for memory.
const ROWS: [(&str, bool, u64); 4] = [
    ("read hit", false, 1 << 18),
    ("write hit", true, 1 << 18),
    ("read hit", false, VOLUME_BYTES),
    ("write hit", true, VOLUME_BYTES),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let counted = value("--op").zip(value("--requests").and_then(|text| text.parse().ok()));
    if let Some((op, requests)) = counted {
        return rt::block_on_simulated(1, async move {
            let stack = Stack::new().await?;
            let device = stack.volume.handle().open();
            hits(
                &device,
                op == "write",
                requests,
                &mut Offsets::over(VOLUME_BYTES),
            )
            .await
        });
    }
    Reactor::new(Engine::Threads)?.run(by_the_clock())
}

async fn by_the_clock() -> Result<()> {
    let stack = Stack::new().await?;
    let device = stack.volume.handle().open();
    println!(
        "4 KiB hits at random, in memory, one thread; median of {SAMPLES} samples of {SAMPLE}"
    );
    for (name, write, set) in ROWS {
        let mut offsets = Offsets::over(set);
        let mut samples = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            let began = Instant::now();
            hits(&device, write, SAMPLE, &mut offsets).await?;
            samples.push(began.elapsed().as_nanos() as f64 / SAMPLE as f64);
        }
        samples.sort_unstable_by(f64::total_cmp);
        println!(
            "{name:<10} {:>7.0} ns  ({:.0} to {:.0}) over {} KiB",
            samples[SAMPLES / 2],
            samples[0],
            samples[SAMPLES - 1],
            set >> 10,
        );
    }
    Ok(())
}
