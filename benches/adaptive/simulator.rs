//! The simulator on a trace of 4 KiB references, from the trace's file to the counts.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use forebay_benches::{allocated_bytes, processor_time_ns};
use forebay_policy::BlockKey;
use forebay_testkit::traces;
use forebay_trace::policies::{BlockSet, Policy};
use forebay_trace::sim::{CacheModel, Costs, Fill, Replace, Simulated, WriteBack};
use forebay_trace::{Format, OpenOptions, Request, Trace};
use serde_json::{Value, json};

use super::sizes;

const BLOCK_BYTES: u64 = 4096;
/// Capacity of the cache in blocks.
const BLOCKS: u64 = 50_000;
const PASSES: usize = 5;

/// Returns the number of references and a row for each cache. Creates the trace if `file` does not
/// exist.
pub(crate) fn measure(file: Option<&Path>) -> (usize, Vec<Value>) {
    let own = std::env::temp_dir().join(format!("forebay-speed-{}", std::process::id()));
    let file = file.map_or_else(|| own.clone(), PathBuf::from);
    if !file.exists() {
        let references = traces::w106().unwrap_or_else(|| traces::zipf(1 << 18, 0.9, 5_000_000, 1));
        write(&file, &references).expect("the trace can be written");
    }
    let lru = row("LRU of single blocks", &file, || {
        let slots = BLOCKS as usize;
        let mut cache = BlockSet::new(slots, Policy::Lru.build(slots));
        move |request: &Request| {
            cache.reference(BlockKey::new(0, request.offset_bytes / BLOCK_BYTES))
        }
    });
    let simulated = |kib: &[u64], replace, fill, write_back| {
        let model = CacheModel {
            sizes: sizes(kib),
            capacity_bytes: BLOCKS * BLOCK_BYTES,
            replace,
            fill,
            write_back,
            costs: Costs::CLOUD,
        };
        move || {
            let mut cache = Simulated::new(model);
            move |request: &Request| {
                let before = cache.counts().reads.hits;
                cache.request(request);
                cache.counts().reads.hits > before
            }
        }
    };
    let (paper, victim) = (Replace::Paper, WriteBack::Victim);
    let unit = simulated(&[4], paper, Fill::SubBlock, victim);
    let several = simulated(
        &[32, 64, 128, 256],
        Replace::Ours,
        Fill::Learned,
        WriteBack::Runs,
    );
    let rows = vec![
        lru,
        row("LRU of 4K blocks, with devices", &file, unit),
        row("ours, 32K..256K, with devices", &file, several),
    ];
    let references = rows[0]["references"].as_u64().unwrap_or(0) as usize;
    if file == own {
        let _ = std::fs::remove_file(&own);
    }
    (references, rows)
}

/// Replays the file through a new cache several times. The fastest pass counts.
fn row<C: FnMut(&Request) -> bool>(name: &str, file: &Path, cache: impl Fn() -> C) -> Value {
    let (mut references, mut misses, mut bytes) = (0_u64, 0_u64, 0);
    let pass = |_| {
        let before = allocated_bytes();
        let mut cache = cache();
        let options = OpenOptions {
            format: Some(Format::OracleGeneral),
            ..OpenOptions::default()
        };
        (references, misses) = (0, 0);
        let began = processor_time_ns();
        let mut trace = Trace::open(&[file], &options).expect("a trace");
        let mut batch = Vec::new();
        while trace.fill(&mut batch).expect("a sound trace") {
            references += batch.len() as u64;
            for request in &batch {
                misses += u64::from(!cache(request));
            }
        }
        let time_ns = processor_time_ns() - began;
        drop((trace, batch));
        bytes = allocated_bytes().saturating_sub(before);
        time_ns as f64
    };
    let fastest_ns = (0..PASSES).map(pass).fold(f64::INFINITY, f64::min);
    let blocks = match name.contains("32K") {
        true => BLOCKS * BLOCK_BYTES / (32 << 10),
        false => BLOCKS,
    };
    json!({
        "name": name,
        "references": references,
        "misses": misses,
        "capacity_bytes": BLOCKS * BLOCK_BYTES,
        "requests_per_s": references as f64 * 1e9 / fastest_ns,
        "bytes_a_block": bytes as f64 / blocks as f64,
    })
}

/// Writes the references in libCacheSim's format: time, object, size, next use. An object is a
/// sector.
fn write(path: &Path, references: &[u64]) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    for (time, block) in references.iter().enumerate() {
        out.write_all(&((time / 1000) as u32).to_le_bytes())?;
        out.write_all(&(block * (BLOCK_BYTES / 512)).to_le_bytes())?;
        out.write_all(&(BLOCK_BYTES as u32).to_le_bytes())?;
        out.write_all(&(-1_i64).to_le_bytes())?;
    }
    out.flush()
}
