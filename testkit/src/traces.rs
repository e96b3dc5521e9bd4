//! Block references for tests and benchmarks: generated ones, and those of real traces if
//! available.
//!
//! Real traces are not part of the project. Their folder is `FOREBAY_TRACES`, or else
//! `shared/traces` beside the repository. A test that does not find them prints that and continues
//! without.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

/// Bytes of a block, the unit of references.
pub const BLOCK_BYTES: u64 = 4096;

/// Prints a line that names a skipped check and the reason. It bypasses the test harness, which
/// hides the output of tests that pass.
pub fn skipped(what: &str) {
    let _ = std::io::stderr().write_all(format!("SKIPPED: {what}\n").as_bytes());
}

/// Returns the content of a real trace, for example `arc/P3.lis`. If it is missing, prints the
/// reason and returns `None`.
#[must_use]
pub fn real(name: &str) -> Option<Vec<u8>> {
    let folder = std::env::var_os("FOREBAY_TRACES").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/traces")),
        PathBuf::from,
    );
    let path = folder.join(format!("{name}.zst"));
    if !path.is_file() {
        skipped(&format!(
            "{name}: there is no {} (name the folder of traces in FOREBAY_TRACES)",
            path.display()
        ));
        return None;
    }
    match Command::new("zstd").arg("-dcq").arg(&path).output() {
        Ok(output) if output.status.success() => Some(output.stdout),
        Ok(output) => panic!("zstd on {}: {}", path.display(), output.status),
        Err(error) => {
            skipped(&format!(
                "{name}: zstd does not run: {error} (apt-get install zstd)"
            ));
            None
        }
    }
}

/// Returns the 4 KiB blocks that the CloudPhysics excerpt refers to.
#[must_use]
pub fn cloudphysics() -> Option<Vec<u64>> {
    // Fields: version, time, operation, bytes, sector.
    let text = real("cloudphysics/cloudPhysicsIO.csv")?;
    let field = |line: &[u8], n| {
        let field = line.split(|&byte| byte == b',').nth(n).unwrap_or_default();
        number(field)
    };
    let lines = text.split(|&byte| byte == b'\n').skip(1);
    let lines = lines.filter(|line| !line.is_empty());
    Some(cut(lines.map(|line| (field(line, 4) * 512, field(line, 3)))))
}

/// Returns the 4 KiB blocks that a trace of the ARC paper refers to, for example `P3`.
#[must_use]
pub fn arc(name: &str) -> Option<Vec<u64>> {
    // Fields: first block of 512 bytes, number of blocks, and two more.
    let text = real(&format!("arc/{name}.lis"))?;
    let field = |line: &[u8], n| {
        let field = line.split(|&byte| byte == b' ').nth(n).unwrap_or_default();
        number(field)
    };
    let lines = text.split(|&byte| byte == b'\n');
    let lines = lines.filter(|line| !line.is_empty());
    Some(cut(
        lines.map(|line| (field(line, 0) * 512, field(line, 1) * 512))
    ))
}

/// Returns the block numbers of the CloudPhysics trace w106, a week of one disk. Its blocks are
/// larger. Each counts as one.
#[must_use]
pub fn w106() -> Option<Vec<u64>> {
    let bytes = real("cloudphysics/w106.u32le.bin")?;
    let (ids, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty(), "w106 is a list of 4-byte numbers");
    Some(
        ids.iter()
            .map(|id| u32::from_le_bytes(*id).into())
            .collect(),
    )
}

fn number(field: &[u8]) -> u64 {
    let text = str::from_utf8(field).expect("the trace is text");
    let parsed = text.trim().parse();
    parsed.unwrap_or_else(|error| panic!("{text:?} in a trace: {error}"))
}

/// Returns the blocks of requests, given as offset and length in bytes.
fn cut(requests: impl Iterator<Item = (u64, u64)>) -> Vec<u64> {
    requests
        .flat_map(|(offset, len)| offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES))
        .collect()
}

/// Pseudo-random numbers (PCG's generator of 64 bits, its upper half).
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Creates the sequence of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed ^ 0x853c_49e6_748f_ea9b)
    }

    /// Returns a number below `bound`, which needs at most 32 bits.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 32) * bound) >> 32
    }
}

/// Returns references to blocks `0..blocks` by Zipf's law. The frequency of the n-th most popular
/// block is proportional to 1/n^`exponent`. Popular blocks are scattered.
#[must_use]
pub fn zipf(blocks: usize, exponent: f64, references: usize, seed: u64) -> Vec<u64> {
    let mut sums = Vec::with_capacity(blocks);
    let mut sum = 0.0;
    for rank in 1..=blocks {
        sum += (rank as f64).powf(-exponent);
        sums.push(sum);
    }
    let mut draw = Draw::new(seed);
    let mut scattered: Vec<u64> = (0..blocks as u64).collect();
    for at in (1..blocks).rev() {
        scattered.swap(at, draw.below(at as u64 + 1) as usize);
    }
    let step = |_| {
        let point = draw.below(1 << 32) as f64 / (1_u64 << 32) as f64 * sum;
        scattered[sums.partition_point(|&sum| sum <= point).min(blocks - 1)]
    };
    (0..references).map(step).collect()
}

/// Returns references by Zipf's law with sequential scans in between, of blocks that nothing else
/// refers to.
#[must_use]
pub fn zipf_and_scans(references: usize, seed: u64) -> Vec<u64> {
    const BLOCKS: usize = 60_000;
    const SCAN: usize = 5_000;
    let popular = zipf(BLOCKS, 0.9, references, seed);
    let mut mixed = Vec::with_capacity(references + references / 4);
    for (nth, chunk) in popular.chunks(4 * SCAN).enumerate() {
        mixed.extend_from_slice(chunk);
        // Every third scan is over the same blocks.
        let first = (BLOCKS + nth % 3 * (1 + nth) * SCAN) as u64;
        mixed.extend(first..first + SCAN as u64);
    }
    mixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_follows_its_law() {
        let references = zipf(1000, 1.0, 200_000, 7);
        let mut counts = vec![0_u32; 1000];
        for block in &references {
            counts[*block as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let sum: f64 = (1..=1000).map(|rank| 1.0 / f64::from(rank)).sum();
        for rank in [1, 2, 5, 10, 50] {
            let expected = 200_000.0 / f64::from(rank) / sum;
            let found = f64::from(counts[rank as usize - 1]);
            let sigmas = (found - expected).abs() / expected.sqrt();
            assert!(sigmas < 6.0, "rank {rank}: {found} for {expected:.0}");
        }
    }

    #[test]
    fn requests_are_cut_by_address() {
        let requests = [(0, 4096), (4095, 2), (8192, 8192)];
        assert_eq!(cut(requests.into_iter()), [0, 0, 1, 2, 3]);
    }
}
