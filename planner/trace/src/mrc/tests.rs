//! The exact curve compared with the LRU policy, and the sampled one with the exact one.

use forebay_policy::BlockKey;
use forebay_testkit::traces::{self, Draw};

use super::*;
use crate::Op;
use crate::policies::{BlockSet, Lru};

fn exact(references: &[u64]) -> Exact {
    let mut exact = Exact::new();
    for &block in references {
        exact.reference(block, Op::Read);
    }
    exact
}

fn sampled(references: &[u64], sampling: Sampling, seed: u64) -> Shards {
    let mut shards = Shards::new(sampling, seed);
    for &block in references {
        shards.reference(block, Op::Read);
    }
    shards
}

fn lru_misses(references: &[u64], blocks: usize) -> u64 {
    let mut cache = BlockSet::new(blocks, Lru::new(blocks));
    let missed = |block: &&u64| !cache.reference(BlockKey::new(0, **block));
    references.iter().filter(missed).count() as u64
}

#[test]
fn exact_misses_are_those_of_the_lru_policy() {
    let made = traces::zipf_and_scans(300_000, 5);
    let all = [
        ("zipf-and-scans", Some(made)),
        ("cloudphysics", traces::cloudphysics()),
    ];
    for (name, references) in all {
        let Some(references) = references else {
            continue;
        };
        let exact = exact(&references);
        let most = exact.unique_blocks() as usize;
        for blocks in [
            1,
            2,
            63,
            64,
            1000,
            4097,
            most / 10,
            most / 2,
            most - 1,
            most,
            most + 5,
        ] {
            let expected = lru_misses(&references, blocks);
            assert_eq!(
                exact.misses(blocks as u64),
                expected,
                "{name}, {blocks} blocks"
            );
        }
        assert_eq!(exact.misses(0), references.len() as u64);
    }
}

#[test]
fn reads_and_writes_are_distinguished() {
    let request = |op, offset_bytes, len_bytes| Request {
        time_ns: 0,
        offset_bytes,
        len_bytes,
        volume: 3,
        op,
    };
    let requests = [
        request(Op::Write, 0, 8192),
        request(Op::Flush, 0, 0),
        request(Op::Read, 4095, 2),
        request(Op::Discard, 0, 4096),
        request(Op::Read, 8192, 1),
    ];
    let mut exact = Exact::new();
    let mut shards = Shards::new(Sampling::Rate(1.0), 1);
    for request in &requests {
        exact.request(request, 4096);
        shards.request(request, 4096);
    }
    assert_eq!((exact.references(), exact.unique_blocks()), (5, 3));
    assert_eq!((shards.references(), shards.unique_blocks()), (5, 3));
    let point = exact.curve(&[2]).points[0];
    let ratios = (
        point.miss_ratio,
        point.read_miss_ratio,
        point.write_miss_ratio,
    );
    // Blocks 0 and 1 are written, read, and only block 2 is read for the first time.
    assert_eq!(ratios, (3.0 / 5.0, 1.0 / 3.0, 1.0));
    assert_eq!(exact.curve(&[1]).points[0].miss_ratio, 1.0);
    assert_eq!(shards.curve(&[1000]).points[0].write_miss_ratio, 1.0);
}

/// Compares curves of several seeds with the exact one. Prints both errors. Returns the mean
/// absolute error, and the root mean square of error / stated standard error over all points and
/// seeds. The latter is about 1 if the stated error is right.
fn errors(name: &str, references: &[u64], sampling: Sampling, least: u64) -> (f64, f64) {
    const SEEDS: u64 = 8;
    let exact = exact(references);
    let sizes = sizes(least, exact.unique_blocks() * 9 / 10, 40);
    let truth = exact.curve(&sizes);
    let (mut mean, mut stated, mut squares) = (0.0, 0.0, 0.0);
    let mut memory_bytes = 0;
    for seed in 0..SEEDS {
        let shards = sampled(references, sampling, seed);
        let curve = shards.curve(&sizes);
        assert_eq!(curve.references, references.len() as u64);
        assert!(
            curve.samples < curve.references / 2,
            "{name}: a sample is a part"
        );
        mean += curve.mean_absolute_error(&truth) / SEEDS as f64;
        stated += curve.mean_standard_error() / SEEDS as f64;
        for (point, truth) in curve.points.iter().zip(&truth.points) {
            let error = point.miss_ratio - truth.miss_ratio;
            // If all samples agree, the resolution of distances remains.
            squares += (error / point.standard_error.max(0.002)).powi(2);
        }
        memory_bytes = shards.memory_bytes();
    }
    let ratio = (squares / (SEEDS as f64 * sizes.len() as f64)).sqrt();
    println!(
        "{name}, {sampling:?}: mean absolute error {mean:.4}, stated standard error {stated:.4}, \
         ratio {ratio:.2}; {} KiB, exact {} KiB",
        memory_bytes >> 10,
        exact.memory_bytes() >> 10
    );
    (mean, ratio)
}

/// Copies and compares files one by one. Each block is read and written to a new place. Both are
/// read a second time when the file is complete. The curve has a step for each size of a file.
fn copies() -> Vec<u64> {
    let mut draw = Draw::new(7);
    let (mut source, mut target) = (0, 1 << 40);
    let mut references = Vec::new();
    while references.len() < 600_000 {
        let blocks = [40, 300, 1000, 4000][draw.below(4) as usize];
        for _ in 0..2 {
            for block in 0..blocks {
                references.extend([source + block, target + block]);
            }
            // The directory.
            references.push(1 << 50);
        }
        source += blocks;
        target += blocks;
    }
    references
}

#[test]
fn sampled_curves_are_as_far_off_as_they_say() {
    let zipf = traces::zipf(200_000, 0.8, 1_500_000, 3);
    let all = [
        ("zipf", Some(zipf)),
        ("copies", Some(copies())),
        ("cloudphysics", traces::cloudphysics()),
        ("w106", traces::w106()),
    ];
    for (name, references) in all {
        let Some(references) = references else {
            continue;
        };
        for sampling in [Sampling::Rate(0.05), Sampling::Blocks(8192)] {
            let (mean, ratio) = errors(name, &references, sampling, 1000);
            assert!(mean < 0.02, "{name}, {sampling:?}: {mean}");
            assert!((0.3..2.0).contains(&ratio), "{name}, {sampling:?}: {ratio}");
        }
    }
}

#[test]
fn one_very_popular_block_does_not_mislead() {
    // It is in at most one of the eight samples, and that one has too much of it. The correction
    // compensates for both.
    let mut draw = Draw::new(2);
    let block = |nth| {
        if nth % 10 == 0 {
            1 + draw.below(50_000)
        } else {
            0
        }
    };
    let references: Vec<u64> = (0..1_000_000).map(block).collect();
    let sizes = sizes(2000, 50_000, 20);
    let truth = exact(&references).curve(&sizes);
    for seed in 0..4 {
        let curve = sampled(&references, Sampling::Rate(0.1), seed).curve(&sizes);
        let error = curve.mean_absolute_error(&truth);
        assert!(error < 0.01, "seed {seed}: {error}");
    }
}

#[test]
fn memory_does_not_grow_with_the_trace() {
    let mut shards = Shards::new(Sampling::Blocks(8192), 1);
    let memory_bytes = shards.memory_bytes();
    let mut draw = Draw::new(9);
    let mut fresh = 1 << 32;
    for nth in 0..50_000_000_u64 {
        // A growing working set, with old blocks among new ones.
        let block = if nth % 4 == 0 {
            fresh += 1;
            fresh
        } else {
            let wide = draw.below(1 << 24) + 1;
            draw.below(wide)
        };
        shards.reference(block, Op::Read);
    }
    assert_eq!(shards.memory_bytes(), memory_bytes);
    assert!(memory_bytes < 2 << 20, "{memory_bytes}");
    assert_eq!(shards.references(), 50_000_000);
    let unique = shards.unique_blocks() as f64;
    println!(
        "{memory_bytes} bytes; rate {:.6}; {unique} blocks",
        shards.rate()
    );
    // 12.5 million new ones, and nearly all of the first 2^24 with falling density.
    assert!((20e6..28e6).contains(&unique), "{unique}");
    assert!(shards.rate() < 8192.0 / 20e6);
}
