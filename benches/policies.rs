//! `cargo bench --bench policies`: the cost of a reference under each replacement policy, with the
//! index of blocks, and the cost that a miss-ratio curve adds.
//!
//! It runs on generated references and, where the traces are, on real ones. It counts the processor
//! time of one thread, so that other programs disturb less.

use std::hint::black_box;

use forebay_benches::processor_time_ns;
use forebay_policy::BlockKey;
use forebay_testkit::traces;
use forebay_trace::Op;
use forebay_trace::mrc::{Exact, Sampling, Shards};
use forebay_trace::policies::{BlockSet, Policy, Replacement};

/// Passes over a trace, each from an empty cache. The median counts.
const PASSES: usize = 5;
/// The cache holds this part of the working set.
const PART: u64 = 5;

fn main() {
    println!("machine: {}", machine());
    println!(
        "processor time of one thread; median of {PASSES} passes over each trace (fastest to \
         slowest)"
    );
    let all = [
        (
            "Zipf 0.9 over 1 Mi blocks",
            Some(traces::zipf(1 << 20, 0.9, 4_000_000, 1)),
        ),
        ("CloudPhysics excerpt, 4 KiB blocks", traces::cloudphysics()),
        ("CloudPhysics w106", traces::w106()),
    ];
    for (name, references) in all {
        if let Some(references) = references {
            table(name, &references);
        }
    }
}

fn table(name: &str, references: &[u64]) {
    let mut exact = Exact::new();
    references
        .iter()
        .for_each(|&block| exact.reference(block, Op::Read));
    let slots = (exact.unique_blocks() / PART) as usize;
    println!(
        "\n{name}: {} references to {} blocks; a cache of {slots}",
        references.len(),
        exact.unique_blocks()
    );
    println!(
        "{:<18} {:>14} {:>16} {:>10} {:>12}",
        "", "ns a reference", "", "misses %", "bytes a slot"
    );
    for &policy in Policy::ALL {
        let mut misses = 0;
        let times = passes(references.len(), || {
            let mut cache = BlockSet::new(slots, policy.build(slots));
            misses = references
                .iter()
                .filter(|block| !cache.reference(BlockKey::new(0, **block)))
                .count();
        });
        println!(
            "{policy:<18} {times} {:>10.2} {:>12.1}",
            misses as f64 * 100.0 / references.len() as f64,
            policy.build(slots).memory_bytes() as f64 / slots as f64,
        );
    }
    let times = passes(references.len(), || {
        let mut exact = Exact::new();
        references
            .iter()
            .for_each(|&block| exact.reference(block, Op::Read));
        black_box(exact.misses(1));
    });
    println!("{:<18} {times}", "curve, exact");
    for (label, sampling) in [
        ("curve, 1 %", Sampling::Rate(0.01)),
        ("curve, 8192 blocks", Sampling::Blocks(8192)),
    ] {
        let times = passes(references.len(), || {
            let mut shards = Shards::new(sampling, 1);
            references
                .iter()
                .for_each(|&block| shards.reference(block, Op::Read));
            black_box(shards.unique_blocks());
        });
        println!("{label:<18} {times}");
    }
}

/// Returns nanoseconds for a reference, as columns of the table.
fn passes(references: usize, mut pass: impl FnMut()) -> String {
    let mut times: Vec<f64> = (0..PASSES)
        .map(|_| {
            let began = processor_time_ns();
            pass();
            (processor_time_ns() - began) as f64 / references as f64
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    let range = format!("({:.1} to {:.1})", times[0], times[PASSES - 1]);
    format!("{:>14.1} {range:>16}", times[PASSES / 2])
}

/// Returns the processor's name. Figures hold for one processor.
fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!(
        "{processors} x {}",
        model.map_or("unknown processor", |(_, name)| name)
    )
}
